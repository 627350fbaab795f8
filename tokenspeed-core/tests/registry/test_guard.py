# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A bound kernel says whose it is when it fails, and its results can be checked."""

from __future__ import annotations

import pytest
import torch
from tokenspeed.plugins.errors import BrokenPromiseError, describe
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
