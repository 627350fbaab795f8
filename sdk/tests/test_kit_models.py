# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The model kit finds faults: the template's model passes, and each deliberate fault fails.

A fault is a piece of the template's source put differently, or lines added to its class.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tokenspeed_sdk.templates import write
from tokenspeed_sdk.testing.model.oracle import TINY_CONFIG, Oracle
from tokenspeed_sdk.testing.model.suite import CHECKS, VARIANTS, model_conformance

pytestmark = pytest.mark.rule("R19")

KV_LOST = """
    def weight_map(self):
        weights = super().weight_map()
        attn = "model.layers.0.self_attn"
        weights.slices[f"{attn}.k_proj.weight"] = weights.slices[f"{attn}.v_proj.weight"]
        return weights
"""

POSITIONS_RESTART = """
    def forward(self, batch):
        from dataclasses import replace
        return super().forward(replace(batch, positions=torch.arange(len(batch.positions)).int()))
"""

REMEMBERS = """
    def forward(self, batch):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(batch) * self.calls
"""

EIGHT_BITS = """
    def forward(self, batch):
        hidden = super().forward(batch)
        return hidden if hidden.dtype == torch.float32 else hidden.to(torch.float8_e5m2).bfloat16()
"""

BFLOAT16_LOGITS = """
    def logits(self, hidden):
        return super().logits(hidden).bfloat16()
"""

IGNORES = '\n    ignored_weights = (r".*(_unexpected|_norm|bias).*",)\n'


@dataclass(frozen=True)
class Fault:
    """One deliberate fault.

    Attributes:
        check, says: the check that must fail, and a pattern of what it says.
        old, new: what of the source is replaced.
        added: lines put into the model's class.
        family: the Transformers class that the faulty model is compared with.
        fields: of its config.
        passes: a check that does not see it, to show that ``check`` is needed.
    """

    check: str
    says: str
    old: str = ""
    new: str = ""
    added: str = ""
    family: str = "Llama"
    fields: Mapping[str, Any] = field(default_factory=dict)
    passes: str | None = None


BIASES = {"attention_bias": True}
THETA, TIED = VARIANTS["theta"], VARIANTS["tied"]
ROPE = "rope=read_rope(config, rotary=head_dim)"
EPS = 'eps=read.number("rms_norm_eps", default=1e-6)'
TIES = "embed if c.tied else None"
FLAG = 'read.flag("tie_word_embeddings", default=False)'
HIDDEN = 'hidden, heads = read.size("hidden_size")'
FUSED = '{"gate_proj": c.inter, "up_proj": c.inter}'

FAULTS = {
    "rope base": Fault(
        "prefill",
        "first at position 1, .* rotary positions",
        ROPE,
        "rope=RopeConfig(head_dim)",
        fields=THETA,
    ),
    "norm eps": Fault("prefill", "first at position 0, .*norms", EPS, "eps=1e-6"),
    "attention scale": Fault(
        "prefill", "first at position 1, .* scale", "cache=place)", "cache=place, scale=1.0)"
    ),
    "gate and up swapped": Fault(
        "prefill",
        "first at position 0, .* MLP",
        FUSED,
        '{"up_proj": c.inter, "gate_proj": c.inter}',
    ),
    "MLP reads the residual": Fault(
        "prefill",
        "first at position 0",
        'graph.add(widen, reads=("hidden",)',
        'graph.add(widen, reads=("residual",)',
    ),
    "missing bias": Fault("prefill", "no use for .*q_proj.bias", fields=BIASES),
    "bias ignored": Fault(
        "weights_loaded_once", "ignores them:.*bias", added=IGNORES, fields=BIASES
    ),
    "bias not needed": Fault("missing_tensor", r"bias loads", added=IGNORES, fields=BIASES),
    "q/k norm left out": Fault("prefill", "no use for .*k_norm", family="Qwen3"),
    "q/k norm ignored": Fault("weights_loaded_once", "_norm", added=IGNORES, family="Qwen3"),
    "anything ignored": Fault("unexpected_tensor", "_unexpected loads", added=IGNORES),
    "tied head not tied": Fault("tied_tensors", r"the model ties \[\]", TIES, "None", fields=TIED),
    "always tied": Fault("tied_tensors", r"Transformers ties \[\]", TIES, "embed"),
    "key lost": Fault("weights_loaded_once", "no tensor fills: .*qkv_proj.weight", added=KV_LOST),
    "head size not read": Fault(
        "prefill",
        "shapes differ: .*q_proj",
        'read.size("head_dim", default=hidden // heads)',
        "hidden // heads",
        fields={"head_dim": 32},
    ),
    "layers share a place in the cache": Fault(
        "chunks",
        "cache",
        "cache_place(self.cache_groups(c), i)",
        "cache_place(self.cache_groups(c), 0)",
        passes="prefill",
    ),
    "positions restart": Fault(
        "decode", "first at position 1", added=POSITIONS_RESTART, passes="prefill"
    ),
    "positions of one sequence": Fault(
        "batches", "slot .* of three", added=POSITIONS_RESTART, passes="prefill"
    ),
    "remembers": Fault("reused_slot", "sequence 2", added=REMEMBERS, passes="prefill"),
    "rounds in bfloat16": Fault("bfloat16", "RMS error", added=EIGHT_BITS, passes="prefill"),
    "logits in bfloat16": Fault("prefill", "must be float32", added=BFLOAT16_LOGITS),
    "takes any flag": Fault(
        "config_errors",
        "tie_word_embeddings = 'nonsense': it was accepted",
        FLAG,
        'bool(config.get("tie_word_embeddings"))',
    ),
    "fails without a field": Fault(
        "config_errors",
        "vocab_size absent: KeyError, not a ValueError",
        'read.size("vocab_size")',
        'int(config["vocab_size"])',
    ),
    "does not name the field": Fault(
        "config_errors",
        "hidden_size = 'nonsense': the error does not name the field",
        HIDDEN,
        'hidden, heads = int(config["hidden_size"])',
    ),
    "takes a field of rope": Fault(
        "config_errors",
        "rope_parameters.rope_theta = -7: it was accepted",
        ROPE,
        'rope=RopeConfig(head_dim, config.get("rope_parameters", {})["rope_theta"])',
    ),
    "another name": Fault(
        "architecture", "config.json says", '("LlamaForCausalLM",)', '("Other",)'
    ),
}


@cache
def source() -> str:
    """The model file of the template, with the names of Llama."""
    with tempfile.TemporaryDirectory() as folder:
        write("model", "acme_lm", folder)
        return Path(folder, "acme_lm", "model.py").read_text().replace("AcmeLm", "Llama")


@contextmanager
def module(text: str) -> Iterator[Any]:
    """The source as an importable module: dataclasses look theirs up."""
    made = ModuleType("model_under_test")
    sys.modules[made.__name__] = made
    try:
        exec(compile(text, made.__name__, "exec"), vars(made))
        yield made
    finally:
        del sys.modules[made.__name__]


def with_fault(fault: Fault) -> str:
    text = source()
    assert text.count(fault.old) == 1 or not fault.old, f"the template no longer says {fault.old}"
    text = text.replace(fault.old, fault.new) if fault.old else text
    return text.replace("\nEntryClass", f"{fault.added}\n\nEntryClass") if fault.added else text


def transformers_class(family: str) -> type[Any]:
    import transformers

    kind: type[Any] = getattr(transformers, f"{family}ForCausalLM")
    return kind


@pytest.fixture
def scratch(tmp_path: Path) -> Callable[[str], Path]:
    def folder(name: str) -> Path:
        (tmp_path / name).mkdir()
        return tmp_path / name

    return folder


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, scratch: Callable[[str], Path]) -> None:
    fault = FAULTS[name]
    with module(with_fault(fault)) as faulty:
        kind, fields = transformers_class(fault.family), {**TINY_CONFIG, **fault.fields}
        oracle = Oracle.make(faulty.EntryClass, kind, fields, scratch("oracle"))
        if fault.passes is not None:
            CHECKS[fault.passes](oracle, scratch("passes"))
        with pytest.raises((AssertionError, ValueError), match=f"(?s){fault.says}"):
            CHECKS[fault.check](oracle, scratch("check"))


def test_every_check_finds_a_fault() -> None:
    """But one: the loader itself compares shapes, and no weight map can hide one from it."""
    assert {fault.check for fault in FAULTS.values()} == CHECKS.keys() - {"misshapen_tensor"}


def test_a_model_without_a_fault_passes(
    tmp_path_factory: pytest.TempPathFactory, scratch: Callable[[str], Path]
) -> None:
    """All that the parametrised test consists of; the template's own test is run by pytest."""
    with module(source()) as faultless:
        variants = {"wide": {"head_dim": 32}, "gqa": None}
        test = model_conformance(faultless.EntryClass, transformers_class("Llama"), variants)
        cases = {mark.args[0]: mark.args[1] for mark in test.pytestmark}  # type: ignore[attr-defined]
        assert cases == {"variant": ["tied", "theta", "wide"], "check": list(CHECKS)}
        for variant, check in product(*cases.values()):
            test(variant, check, scratch(f"{variant}-{check}"), tmp_path_factory)


def test_the_page_lists_every_check_and_its_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "test-kit.md").read_text()
    section = page[page.index("\n## Models\n") :]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(CHECKS)
    example = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert example is not None
    with module(source()) as faultless:
        monkeypatch.setitem(sys.modules, "acme_lm", ModuleType("acme_lm"))
        monkeypatch.setitem(sys.modules, "acme_lm.model", faultless)
        names: dict[str, Any] = {}
        exec(example[1], names)
    variants = {mark.args[0]: mark.args[1] for mark in names["test_model"].pytestmark}["variant"]
    assert variants == [*VARIANTS, "wide"]
