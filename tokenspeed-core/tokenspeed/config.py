# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What an operator may choose, each within its range. Plain data: it travels as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta

_INT32_MAX = (1 << 31) - 1

Text = Annotated[str, Meta(description="a text")]
Flag = Annotated[bool, Meta(description="True or False")]
Count = Annotated[int, Meta(ge=1, le=_INT32_MAX, description=f"an integer from 1 to {_INT32_MAX}")]
Length = Annotated[int, Meta(ge=2, le=_INT32_MAX, description=f"an integer from 2 to {_INT32_MAX}")]
PageSize = Annotated[int, Meta(ge=1, le=4096, description="an integer from 1 to 4096")]
Share = Annotated[float, Meta(gt=0, le=1, description="a number above 0 and at most 1")]
NotNegative = Annotated[float, Meta(ge=0, le=1e9, description="a number from 0 to 1e9")]
Seconds = Annotated[float, Meta(gt=0, le=1e9, description="a number above 0, at most 1e9")]
Port = Annotated[int, Meta(ge=0, le=65535, description="an integer from 0 to 65535")]
Load = Annotated[Literal["auto", "dummy"], Meta(description='"auto" or "dummy"')]
Autotune = Annotated[Literal["auto", "off"], Meta(description='"auto" or "off"')]
Quantization = Annotated[Literal["fp8", "int8"], Meta(description='"fp8" or "int8"')]
KvCacheDtype = Annotated[Literal["auto", "fp8"], Meta(description='"auto" or "fp8"')]
MOST_DRAFTS = 64
Drafts = Annotated[int, Meta(ge=1, le=MOST_DRAFTS, description="an integer from 1 to 64")]
Names = Annotated[tuple[str, ...], Meta(description="a list of texts")]
Pins = Annotated[dict[str, str], Meta(description="a dict from op to kernel name")]


class ConfigError(ValueError):
    """A field is out of its range, or two do not fit together; ``str()`` names them.

    Args:
        what: the message, with each field in braces where its name and value go.
        values: field -> value.
    """

    def __init__(self, what: str, values: Mapping[str, object]) -> None:
        self._what, self._values = what, values
        super().__init__(self.named(str))

    def named(self, name: Callable[[str], str]) -> str:
        """The message with other names for the fields, such as those of command line options."""
        shown = {field: f"{name(field)} {value!r}" for field, value in self._values.items()}
        return self._what.format_map(shown)


class _Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A struct whose constructor checks types and ranges, as msgspec's decoders do."""

    def __post_init__(self) -> None:
        for field, hint in _hints(type(self)).items():
            value = getattr(self, field)
            try:
                msgspec.convert(value, hint)
            except msgspec.ValidationError:
                what = f"{{{field}}} is not allowed: it must be {_allowed(hint)}"
                raise ConfigError(what, {field: value}) from None


class EngineConfig(_Checked, frozen=True, kw_only=True):
    """One engine.

    Attributes:
        model: folder with config.json, weights and tokenizer.
        load: "auto" reads the folder's weights; "dummy" makes random ones, for measuring.
        dtype: dtype of weights and activations; "auto" takes the platform's first choice.
        quantization: of the weights of linears, while they are loaded: "fp8" turns them into e4m3
            with block scales, "int8" into integers with a scale for 32 inputs, the head too; None
            takes them as the checkpoint has them.
        kv_cache_dtype: "fp8" keeps keys and values in e4m3, half the bytes of bfloat16, with the
            scales of the checkpoint; "auto" in the dtype of the model.
        max_model_len: longest prompt and answer together, in tokens; None takes the model's.
        kv_pages: usable KV pages; None fills the memory that is free after loading.
        host_kv_gb: GB (10^9 bytes) of the host's memory that keep copies of cached pages; 0: none.
        page_size: tokens per page.
        prefix_cache: whether computed pages are kept for later prompts.
        retention: whether pages of conversations that came back before are kept longer than those
            of the others.
        kv_events: whether the front hears what the prefix cache holds, as a gateway that routes by
            it asks.
        max_num_seqs: requests that run at once.
        max_step_tokens: query tokens in one step, the prefill chunk.
        prefill_share: share of max_step_tokens that prefill may take while others decode.
        itl_target_ms: milliseconds between two tokens of a request to aim at: the share of prefill
            follows from it, instead of prefill_share; 0: no target.
        priority_aging_ms: milliseconds of waiting that count as much as one class of priority.
        drafter: who guesses what requests say next, so that a step may return several tokens of
            each; "suffix" looks for what was said before. None: nobody.
        drafter_model: folder with config.json and weights of a drafter that is a model.
        draft_tokens: most guesses that a step verifies for a request.
        graphs: whether decode steps are captured and replayed, where the device can.
        verify_page_tables: whether every step's page tables on the device are compared with the
            scheduler's; slow, for tests.
        check_kernels: whether every kernel's results are compared with what its op says in every
            step, not in the first ones alone; slow, to find the kernel that is at fault.
        autotune: "auto" measures kernels that compete for a call site, where the device can, unless
            a start before has; "off" lets their scores decide.
        threads: CPU threads of the engine; None leaves one core to the other processes.
        platform: name of the platform; None resolves it.
        pins: op -> kernel name that must be used.
        allow: entries of an allow list, such as "kernel=cpu,acme"; None takes the environment's.
        deny: entries of a deny list, beside those of the environment.
    """

    model: Text
    load: Load = "auto"
    dtype: Text = "auto"
    quantization: Quantization | None = None
    kv_cache_dtype: KvCacheDtype = "auto"
    max_model_len: Length | None = None
    kv_pages: Count | None = None
    host_kv_gb: NotNegative = 0.0
    page_size: PageSize = 16
    prefix_cache: Flag = True
    retention: Flag = True
    kv_events: Flag = False
    max_num_seqs: Count = 64
    max_step_tokens: Count = 512
    prefill_share: Share = 0.75
    itl_target_ms: NotNegative = 0.0
    priority_aging_ms: Count = 10_000
    drafter: Text | None = None
    drafter_model: Text | None = None
    draft_tokens: Drafts = 7
    graphs: Flag = True
    verify_page_tables: Flag = False
    check_kernels: Flag = False
    autotune: Autotune = "auto"
    threads: Count | None = None
    platform: Text | None = None
    pins: Pins = {}
    allow: Names | None = None
    deny: Names = ()

    @property
    def row_tokens(self) -> int:
        """Most tokens that a step returns of a request."""
        return 1 + self.draft_tokens if self.drafter else 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_num_seqs > self.max_step_tokens:  # each may decode a token in the same step
            raise ConfigError(
                "{max_num_seqs} is more than {max_step_tokens}; lower the one or raise the other",
                {"max_num_seqs": self.max_num_seqs, "max_step_tokens": self.max_step_tokens},
            )
        if self.drafter_model and not self.drafter:
            raise ConfigError(
                "{drafter_model} needs {drafter}: the name of one that guesses with a model",
                {"drafter_model": self.drafter_model, "drafter": "NAME"},
            )
        if self.host_kv_gb and not self.prefix_cache:  # it holds nothing but the cache's pages
            raise ConfigError(
                "{host_kv_gb} needs the prefix cache, and {prefix_cache} turns it off; "
                "leave one of them out",
                {"host_kv_gb": self.host_kv_gb, "prefix_cache": self.prefix_cache},
            )


class FrontConfig(_Checked, frozen=True, kw_only=True):
    """The process between the gateway and the engine.

    Attributes:
        model: folder with the tokenizer.
        served_model_name: name in the API; by default the folder's.
        grpc_port, admin_port: on 127.0.0.1; 0 takes a free one.
        request_timeout: seconds after which a request ends with DEADLINE_EXCEEDED.
        max_queue: requests that may wait; one more gets RESOURCE_EXHAUSTED.
        drain_timeout: seconds that requests have to end once the server shall.
        isolate_tenants: whether a request without a salt is refused.
        reasoning: whether the gateway takes what the model thinks out of the answer, so that a
            constraint is about what follows.
    """

    model: Text
    served_model_name: Text
    grpc_port: Port = 0
    admin_port: Port = 0
    request_timeout: Seconds = 600.0
    max_queue: Count = 1024
    drain_timeout: Seconds = 20.0
    isolate_tenants: Flag = False
    reasoning: Flag = False


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _allowed(hint: Any) -> str:
    """What a field may hold, in words: the description of its type, or of a part of its union."""
    notes = [note for part in (hint, *get_args(hint)) for note in getattr(part, "__metadata__", ())]
    words = " or ".join(note.description for note in notes)
    return f"{words}, or None" if type(None) in get_args(hint) else words
