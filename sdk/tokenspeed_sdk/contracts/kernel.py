# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Contract ``kernel``: implementations of the public ops, chosen per call site.

An entry point in ``tokenspeed.kernel`` is a zero-argument callable that returns the plugin's
kernels. There is no global table: a model asks a resolver while it is built, and holds what it got.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from tokenspeed_sdk.contracts.platform import Capabilities
from tokenspeed_sdk.contracts.probe import Verdict

if TYPE_CHECKING:
    import torch

Trait: TypeAlias = str | int | float | bool | None
"""A fact that is fixed at a call site."""

PUBLIC_OPS = (
    "add_norm_linear@1",
    "add_norm_linear_fp8@1",
    "add_norm_linear_int8@1",
    "add_rms_norm@1",
    "adjust_logits@1",
    "adjust_logits_verify@1",
    "attention_decode@1",
    "attention_decode_fp8@1",
    "attention_prefill@1",
    "attention_prefill_fp8@1",
    "attention_verify@1",
    "attention_verify_fp8@1",
    "embedding@1",
    "gather_rows@1",
    "kv_write@1",
    "kv_write_fp8@1",
    "linear@1",
    "linear_fp8@1",
    "linear_int8@1",
    "logprobs@1",
    "mask_logits@1",
    "page_table_update@1",
    "record_tokens@1",
    "rms_norm@1",
    "rope@1",
    "rope_kv_write@1",
    "rope_kv_write_fp8@1",
    "sample@1",
    "silu_and_mul@1",
    "silu_linear_fp8@1",
)
"""Names of the ops in ``tokenspeed_sdk.ops``, for those who must not import torch."""


@dataclass(frozen=True)
class CallSite:
    """One place in one model where an op is called, with all that a choice may depend on.

    Attributes:
        op: "name@major", such as "linear@1".
        layer: where in the model, such as "model.layers.0.self_attn.qkv_proj"; for people.
        dtype: dtype of the activations.
        device: capabilities of the device it will run on.
        traits: what is fixed at this site; each op's page lists its traits.
        role: part of the engine it belongs to; pins are per role.
        rows: fewest and most rows (of the first argument) it is asked for; None: no bound. A
            resolver may choose other kernels for one row than for a thousand.
    """

    op: str
    layer: str
    dtype: str
    device: Capabilities
    traits: Mapping[str, Trait] = field(default_factory=dict)
    role: str = "main"
    rows: tuple[int, int | None] = (1, None)


class BoundKernel(Protocol):
    """A kernel made for one call site. Called with the op's arguments; holds no mutable state."""

    def __call__(self, *args: Any) -> Any: ...


@dataclass(frozen=True)
class HostStep:
    """What an attention kernel may plan a step with: lengths that are known on the host.

    Attributes:
        query_start: [rows + 1] int32 on the host.
        kv_len: [rows] int32 on the host.
        page_table, row_slot: the device tensors of the calls that follow.
    """

    query_start: torch.Tensor
    kv_len: torch.Tensor
    page_table: torch.Tensor
    row_slot: torch.Tensor


@runtime_checkable
class PlannedKernel(Protocol):
    """A bound attention kernel that wants to look at a step before its first layer runs.

    ``plan`` is called once per step and cache group for all sites of equal ``plan_key``; each call
    then takes its answer as ``plan``. Such a kernel cannot be part of a captured graph.
    """

    @property
    def plan_key(self) -> Hashable: ...

    def plan(self, step: HostStep, scale: float) -> Any:
        """Prepare a step. Only launches: it must not wait for the device."""

    def __call__(self, *args: Any, plan: Any) -> Any: ...


class Kernel(Protocol):
    """One implementation of one op by one plugin."""

    @property
    def op(self) -> str: ...

    @property
    def name(self) -> str:
        """Unique among the kernels of the op, such as "cpu" or "triton"."""

    def accept(self, site: CallSite) -> Verdict:
        """Whether it can serve the site, and how well. Pure; asks only what the site says."""

    def bind(self, site: CallSite) -> BoundKernel:
        """Make it for a site that it accepted."""

    def pack_weight(self, site: CallSite, weight: Any) -> Any:
        """Lay a loaded weight out as this kernel wants it; the result replaces it in calls.

        Called once per site after loading, only for ops that take a weight of rank 2. A kernel that
        takes the plain layout returns ``weight``.
        """


KernelProvider: TypeAlias = Callable[[], "tuple[Kernel, ...]"]
"""What an entry point in ``tokenspeed.kernel`` is: returns the kernels that the manifest claims."""


@dataclass(frozen=True)
class Binding:
    """What a resolver answers: the bound kernel, and how to prepare its weight."""

    kernel: str
    call: BoundKernel
    pack_weight: Callable[[Any], Any]


class KernelResolver(Protocol):
    """Answers a model's questions while it is built."""

    def bind(self, site: CallSite) -> Binding:
        """The chosen kernel. LookupError names the op, the site and every refusal."""


@runtime_checkable
class FusingResolver(KernelResolver, Protocol):
    """A resolver that is also asked for sites that do the work of several ops in one launch."""

    def bind_fused(self, site: CallSite, parts: Collection[str]) -> Binding | None:
        """The kernel of a site that stands for calls of ``parts``; None leaves them as they are.

        None where nothing but the reference would serve the site, where the site's op is pinned to
        the reference, and where one of ``parts`` is pinned: what a user names is what runs.

        Args:
            parts: names of ops, such as "linear@1".

        Raises:
            LookupError: the site's op is pinned to a kernel that does not serve the site.
        """
