# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A start with real wheels: its table, and a broken kernel found before the first request."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tokenspeed.cache.slab import Slab
from tokenspeed.engine.buffers import Limits
from tokenspeed.engine.device_step import DeviceStep
from tokenspeed.engine.dry_step import dry_steps
from tokenspeed.engine.start import _explained
from tokenspeed.plugins.errors import BrokenPromiseError, describe
from tokenspeed.plugins.host import resolve_installed
from tokenspeed.plugins.load.activate import load_platform
from tokenspeed.plugins.plan import Planned, PluginPlan
from tokenspeed.process.failure import StartError
from tokenspeed.registry.kernels import KernelRegistry
from tokenspeed.registry.models import load_model
from tokenspeed_sdk.contracts import Accept, Decline
from tokenspeed_sdk.contracts.kernel import CallSite
from tokenspeed_sdk.modeling import BuildContext, load_dummy
from tokenspeed_sdk.ops import OPS

LINEARS = 2 * 4 + 1
"""Of the model fixture: four in each layer, and the head."""

LIMITS = Limits(sequences=3, tokens=64, groups=1, max_kv_len=64, page_size=16, mask_words=8)


class Kernel:
    """A kernel that beats all others; what it does is said by the test.

    Attributes:
        ran: whether it was called, where no test says what it does.
    """

    name = "odd"
    ran = False

    def __init__(self, op: str, run: Callable[..., Any] | None = None) -> None:
        self.op, self._run = op, run

    def accept(self, site: object) -> Accept:
        return Accept(1000, "always")

    def bind(self, site: CallSite) -> Callable[..., Any]:
        return self._run or self._counted(site)

    def _counted(self, site: CallSite) -> Callable[..., Any]:
        reference = OPS[self.op].bind_reference(site)

        def run(*args: Any) -> Any:
            self.ran = True
            return reference(*args)

        return run

    def pack_weight(self, site: object, weight: Any) -> Any:
        return weight


def start(model: Path, monkeypatch: pytest.MonkeyPatch, *kernels: Kernel) -> KernelRegistry:
    """What an engine does up to its first steps, with one more plugin. Raises what that raises."""
    config = json.loads((model / "config.json").read_text())
    registry = KernelRegistry(_plan(monkeypatch, kernels), {})
    plan = resolve_installed("cpu").plan
    device = load_platform(plan).open()
    entry = load_model(plan, config["architectures"])
    settings = entry.read_config(config)
    context = BuildContext(registry, device.capabilities, device.torch_device, "float32", 64, 16)
    built = entry.build(settings, context)
    load_dummy(built.weight_map())
    built.prepare()
    groups = entry.cache_groups(settings)
    slab = Slab(device, groups, 16, 1, "float32")
    caches = [slab.layers(group) for group in groups]
    step = DeviceStep(built, device, context, caches, LIMITS, config["vocab_size"])
    with registry.checked_results():
        dry_steps(step, device, LIMITS, registry.row_samples())
    return registry


def _plan(monkeypatch: pytest.MonkeyPatch, kernels: tuple[Kernel, ...]) -> PluginPlan:
    module = ModuleType("odd_kernels")
    vars(module)["make"] = lambda: kernels
    monkeypatch.setitem(sys.modules, "odd_kernels", module)
    claims = tuple(f"{kernel.op}:{kernel.name}" for kernel in kernels)
    odd = Planned("kernel", "odd", "odd_kernels:make", "odd", "1.0", "1.0", claims)
    return PluginPlan.make("cpu", [*resolve_installed("cpu").plan.provisions, odd])


@pytest.mark.rule("R14")
def test_the_first_steps_run_every_kernel_that_was_chosen(model, monkeypatch):
    kernels = [Kernel(op) for op in OPS]
    registry = start(model, monkeypatch, *kernels)
    bound = {site.site.op for site in registry.bound}
    replaced = {"rope@1", "kv_write@1"}  # by rope_kv_write@1, for any number of rows
    assert {kernel.op for kernel in kernels if kernel.ran} == bound - replaced
    assert {choice.kernel for choice in registry.choices()} == {"odd"}


def _wide(x: torch.Tensor, *args: Any) -> torch.Tensor:
    return x.new_zeros(x.shape[0], x.shape[1] + 1)


def _double(logits: torch.Tensor, *args: Any) -> torch.Tensor:
    return logits.argmax(-1).int()


def _fall(*args: Any) -> Any:
    raise RuntimeError("invalid device function")


@pytest.mark.rule("R6")
@pytest.mark.parametrize(
    ("op", "run", "message"),
    [
        ("rms_norm@1", _wide, "must return [1, 64] of float32; the kernel returned [1, 65]"),
        ("sample@1", _double, "of int64; the kernel returned [1] of int32"),
        ("rope_kv_write@1", lambda q, *args: q, "must return None"),
    ],
)
def test_a_result_that_is_wrong_ends_the_start(model, monkeypatch, op, run, message):
    with pytest.raises(BrokenPromiseError) as caught:
        start(model, monkeypatch, Kernel(op, run))
    assert message in str(caught.value)
    assert "odd 1.0 has a kernel that does not keep to its op" in str(caught.value)
    assert f"kernel odd of odd 1.0 for {op} at " in caught.value.where


@pytest.mark.rule("R6")
def test_a_kernel_that_falls_ends_the_start_and_is_named(model, monkeypatch):
    with pytest.raises(RuntimeError, match="invalid device function") as caught:
        start(model, monkeypatch, Kernel("silu_and_mul@1", _fall))
    assert "kernel odd of odd 1.0 for silu_and_mul@1 at model.layers.0.mlp" in describe(
        caught.value
    )


class Declining(Kernel):
    """A kernel that takes no site."""

    def __init__(self) -> None:
        super().__init__("rms_norm@1", _fall)

    def accept(self, site: object) -> Decline:
        return Decline("not on this machine")


@pytest.mark.rule("R13")
def test_a_pinned_kernel_that_declines_ends_the_start_without_a_traceback(monkeypatch):
    device = load_platform(resolve_installed("cpu").plan).open().capabilities
    site = CallSite("rms_norm@1", "model.norm", "float32", device, {"hidden": 64})
    registry = KernelRegistry(_plan(monkeypatch, (Declining(),)), {"rms_norm@1": "odd"})
    with pytest.raises(StartError) as caught, _explained():
        registry.bind(site)
    text = str(caught.value)
    assert text.startswith('the pinned kernel "odd" does not serve rms_norm@1 at model.norm')
    assert "odd of odd 1.0: declined: not on this machine" in text
    assert "to do: take another kernel (--pin rms_norm@1=reference)" in text
    with pytest.raises(KeyError), _explained():  # what is wrong with ourselves is shown whole
        _ = {}["absent"]


def test_the_first_steps_leave_nothing_that_a_request_reads(model, monkeypatch):
    """They belong to the sentinel slot: page tables and last tokens of all others stay zero."""
    seen = []
    original = DeviceStep.__init__

    def remember(self: DeviceStep, *args: Any) -> None:
        original(self, *args)
        seen.append(self)

    monkeypatch.setattr(DeviceStep, "__init__", remember)
    start(model, monkeypatch)
    (step,) = seen
    assert not step._page_tables[0].any()
    assert not step._slot_epochs[0].any()
    assert not step._last_token[:-1].any()


@pytest.mark.rule("R13")
def test_explain_start_says_every_choice(ts_without, model):
    done = ts_without(None)("explain", "start", str(model), "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    rows = {row["role"]: row for row in data["table"]}
    assert {"platform", "model", "linear@1", "sample@1", "page_table_update@1"} <= set(rows)
    assert rows["platform"]["chosen"] == "cpu"
    assert rows["model"]["why"] == "claims architecture LlamaForCausalLM"
    assert rows["linear@1"]["sites"] == LINEARS
    for name, row in rows.items():
        assert row["why"]
        if name.endswith("@1"):
            assert all(other["why"] for other in row["runners_up"])
            assert "reference" in {row["chosen"], *(o["name"] for o in row["runners_up"])}
