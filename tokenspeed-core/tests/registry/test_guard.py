# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A bound kernel says whose it is when it fails, and its results can be checked."""

from __future__ import annotations

import asyncio
import signal

import pytest
import torch
from tokenspeed.plugins.errors import BrokenPromiseError, describe
from tokenspeed.plugins.load.plugin_code import EscapeError
from tokenspeed.process.failure import Terminated
from tokenspeed.registry.kernels import KernelRegistry
from tokenspeed_sdk.contracts.kernel import CallSite, PlannedKernel
from tokenspeed_sdk.contracts.platform import Capabilities

DEVICE = Capabilities("cpu", "x86-64-v3", ("float32",), frozenset(), 4)
SITE = CallSite("rms_norm@1", "model.norm", "float32", DEVICE, {"hidden": 8})
X, WEIGHT = torch.ones(2, 8), torch.ones(8)


def bound(plugins, kernel, call):
    fast = kernel("fast", 9)
    fast.bind = lambda site: call
    plugins.kernels("acme", fast)
    registry = KernelRegistry(plugins.plan(), {})
    return registry, registry.bind(SITE).call


@pytest.mark.rule("R6")
def test_what_a_kernel_raises_names_kernel_owner_op_and_layer(plugins, kernel):
    def fall(*args):
        raise RuntimeError("no such instruction")

    _, call = bound(plugins, kernel, fall)
    with pytest.raises(RuntimeError) as caught:
        call(X, WEIGHT, 1e-5)
    text = describe(caught.value)
    assert text.startswith("RuntimeError: no such instruction")
    assert "kernel fast of acme 1.0 for rms_norm@1 at model.norm" in text


@pytest.mark.rule("R6")
@pytest.mark.parametrize(
    ("result", "found"),
    [
        (torch.ones(2, 4), "[2, 4] of float32"),
        (torch.ones(2, 8, dtype=torch.float64), "[2, 8] of float64"),
        (torch.ones(2, 8, device="meta"), "on meta"),
        (None, "None"),
    ],
)
def test_a_result_of_another_form_is_caught_while_results_are_checked(
    plugins, kernel, result, found
):
    registry, call = bound(plugins, kernel, lambda *args: result)
    call(X, WEIGHT, 1e-5)  # not checked in a step that serves
    with registry.checked_results(), pytest.raises(BrokenPromiseError) as caught:
        call(X, WEIGHT, 1e-5)
    text = str(caught.value)
    assert found in text
    assert "acme 1.0 has a kernel that does not keep to its op" in text
    assert caught.value.where == "kernel fast of acme 1.0 for rms_norm@1 at model.norm"
    assert "--pin rms_norm@1=reference" in caught.value.fix


@pytest.mark.rule("R6")
def test_while_results_are_checked_each_call_is_told_before_it_runs(plugins, kernel):
    """For a native kernel may end the process, and then nothing can be told any more."""
    told = []
    registry, call = bound(plugins, kernel, lambda x, *rest: told.append("ran") or x)
    call(X, WEIGHT, 1e-5)
    with registry.checked_results(told.append):
        call(X, WEIGHT, 1e-5)
    call(X, WEIGHT, 1e-5)
    assert [told[0], *told[2:]] == ["ran", "ran", "", "ran"]
    assert told[1].startswith("kernel fast of acme 1.0 for rms_norm@1 at model.norm; to do: --pin ")


def test_a_right_result_passes(plugins, kernel):
    registry, call = bound(plugins, kernel, lambda x, weight, eps: x)
    with registry.checked_results():
        assert call(X, WEIGHT, 1e-5) is X


def test_a_kernel_that_plans_still_does(plugins, kernel):
    class Planning:
        plan_key = "key"

        def plan(self, step, scale):
            return step, scale

        def __call__(self, *args, plan):
            if plan is None:
                raise RuntimeError("no plan")
            return args[0] if plan == ("step", 2.0) else None

    registry, call = bound(plugins, kernel, Planning())
    assert isinstance(call, PlannedKernel)
    assert call.plan_key == "key"
    with registry.checked_results():
        assert call(X, WEIGHT, 1e-5, plan=call.plan("step", 2.0)) is X
        with pytest.raises(BrokenPromiseError):
            call(X, WEIGHT, 1e-5, plan="other")
    with pytest.raises(RuntimeError) as caught:
        call(X, WEIGHT, 1e-5, plan=None)
    assert "kernel fast of acme 1.0" in describe(caught.value)


@pytest.mark.rule("R6")
def test_the_kernel_before_may_be_at_fault_and_the_arguments_are_shown(plugins, kernel):
    def fall(*args):
        raise RuntimeError("wrong dtype")

    registry, call = bound(plugins, kernel, fall)
    with pytest.raises(RuntimeError) as caught:
        call(X[:1].double(), WEIGHT, 1e-5)
    (note,) = caught.value.__notes__
    assert "at model.norm, or the kernel that made its arguments" in note
    assert "x [1, 8] of float64, weight [8] of float32, eps float" in note
    assert "rerun with --check-kernels" in note
    with registry.checked_results(), pytest.raises(RuntimeError) as caught:
        call(X, WEIGHT, 1e-5)
    assert "or the kernel that made" not in caught.value.__notes__[0]


@pytest.mark.rule("R6")
def test_a_result_that_is_not_contiguous_is_caught(plugins, kernel):
    registry, call = bound(plugins, kernel, lambda x, *rest: x.t().contiguous().t())
    with registry.checked_results(), pytest.raises(BrokenPromiseError, match=r"strides \[1, 2\]"):
        call(X, WEIGHT, 1e-5)


@pytest.mark.rule("R6")
def test_results_can_be_checked_always(plugins, kernel):
    fast = kernel("fast", 9)
    fast.bind = lambda site: lambda *args: None
    plugins.kernels("acme", fast)
    registry = KernelRegistry(plugins.plan(), {}, check_results=True)
    with pytest.raises(BrokenPromiseError, match="does not keep to its op"):
        registry.bind(SITE).call(X, WEIGHT, 1e-5)


@pytest.mark.rule("R6")
@pytest.mark.parametrize("raised", [SystemExit(0), asyncio.CancelledError("x"), GeneratorExit()])
def test_what_would_end_the_process_silently_is_an_error_of_the_kernel(plugins, kernel, raised):
    def end(*args):
        raise raised

    _, call = bound(plugins, kernel, end)
    with pytest.raises(EscapeError) as caught:
        call(X, WEIGHT, 1e-5)
    text = describe(caught.value)
    assert f"{type(raised).__name__}(" in text.splitlines()[0]
    assert "kernel fast of acme 1.0 for rms_norm@1 at model.norm" in text
    assert caught.value.__cause__ is raised


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), Terminated(0)])
def test_what_the_operator_sends_stays_what_it_is_and_says_who_ran(plugins, kernel, raised, caplog):
    def end(*args):
        raise raised

    _, call = bound(plugins, kernel, end)
    with pytest.raises(type(raised)) as caught:
        call(X, WEIGHT, 1e-5)
    assert "while kernel fast of acme 1.0" in caught.value.__notes__[0]
    is_interrupt = isinstance(raised, KeyboardInterrupt)
    assert ("interrupted while kernel fast of acme 1.0" in caplog.text) == is_interrupt


@pytest.mark.rule("R6")
def test_an_interrupt_where_signals_are_ignored_is_the_kernel_s(plugins, kernel):
    """As in a child, whose SIGINT belongs to the supervisor."""

    def end(*args):
        raise KeyboardInterrupt

    _, call = bound(plugins, kernel, end)
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(EscapeError, match="KeyboardInterrupt"):
            call(X, WEIGHT, 1e-5)
    finally:
        signal.signal(signal.SIGINT, old)


@pytest.mark.rule("R6")
@pytest.mark.parametrize("raised", [ValueError("cannot pack"), SystemExit(0)])
def test_what_packing_raises_names_kernel_owner_op_layer_and_remedy(plugins, kernel, raised):
    def pack(site, weight):
        raise raised

    fast = kernel("fast", 9)
    fast.pack_weight = pack
    plugins.kernels("acme", fast)
    binding = KernelRegistry(plugins.plan(), {}).bind(SITE)
    with pytest.raises((ValueError, EscapeError)) as caught:
        binding.pack_weight(WEIGHT)
    note = caught.value.__notes__[0]
    assert "in pack_weight of kernel fast of acme 1.0 for rms_norm@1 at model.norm" in note
    assert "--pin rms_norm@1=reference" in note


@pytest.mark.rule("R6")
def test_a_weight_that_is_packed_into_nothing_is_a_broken_promise(plugins, kernel):
    fast = kernel("fast", 9)
    fast.pack_weight = lambda site, weight: None
    plugins.kernels("acme", fast)
    binding = KernelRegistry(plugins.plan(), {}).bind(SITE)
    with pytest.raises(BrokenPromiseError, match="whose pack_weight returned None"):
        binding.pack_weight(WEIGHT)
