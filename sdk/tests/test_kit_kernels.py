# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The kit for kernels: the references pass, each op has cases, facts and bounds, and a report says
what is wrong with a kernel that cannot be called.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mutants import NAN, Call, Mutant, reports, right, takes_eps
from tokenspeed_sdk.ops import OPS
from tokenspeed_sdk.testing import TINY, Inputs, check_kernel
from tokenspeed_sdk.testing.kernel.call_check import relative_error
from tokenspeed_sdk.testing.kernel.cases import FACTS, GENERATORS, cases_of

pytestmark = pytest.mark.rule("R19")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("op", OPS)
def test_the_reference_passes(op: str, dtype: str) -> None:
    assert not [str(r) for r in reports(Mutant(op, right), dtype).values() if r.problems]


def test_a_few_wrong_elements_do_not_hide_among_many() -> None:
    def swapped(call: Call) -> Call:
        def spoilt(*args: Any) -> Any:
            out = call(*args)
            out[-1, -1] += 1.5
            return out

        return spoilt

    (case,) = (case for case in cases_of("rms_norm@1") if case.name.startswith("rows130-576"))
    report = check_kernel(Mutant("rms_norm@1", swapped), case, dtype="bfloat16")
    assert report.error < report.bound
    assert "has a few elements that are far off (rows 129 of 130)" in str(report)


def test_a_kernel_of_the_wrong_arity_is_told_the_arguments() -> None:
    def too_few(call: Call) -> Call:
        return lambda x, residual, weight: call(x, residual, weight, 1e-6)

    def too_many(call: Call) -> Call:
        return lambda x, residual, weight, eps, more: call(x, residual, weight, eps)

    passed = "the op passes 4 arguments: x, residual, weight, eps; the kernel takes others: "
    for fault, says in ((too_few, "takes 3 positional"), (too_many, "missing 1 required")):
        for report in reports(Mutant("add_rms_norm@1", fault)).values():
            (problem,) = report.problems
            assert problem.startswith(passed)
            assert says in problem


def test_a_type_error_inside_a_kernel_is_its_own() -> None:
    def raises(call: Call) -> Call:
        return lambda x, *rest: call(x + "not a tensor", *rest)

    with pytest.raises(TypeError, match="Tensor"):
        reports(Mutant("rms_norm@1", raises))


def test_the_error_measure_rejects_nan() -> None:
    good = torch.ones(4)
    assert relative_error(good, good) == 0
    assert relative_error(good * NAN, good) == float("inf")
    assert relative_error(good, good * NAN) == float("inf")
    assert relative_error(torch.tensor([1.0, 1.1]), torch.ones(2)) == pytest.approx(
        0.0707, rel=1e-2
    )


def test_bounds_may_be_given() -> None:
    case = cases_of("rms_norm@1", TINY)[-1]
    kernel = Mutant("rms_norm@1", takes_eps(0.1001))
    assert check_kernel(kernel, case).problems
    assert not check_kernel(kernel, case, bounds={"rms_norm@1": {"float32": 1e-3}}).problems


def test_a_dtype_without_a_bound_needs_one() -> None:
    case, kernel = cases_of("rms_norm@1", TINY)[-1], Mutant("rms_norm@1", right)
    with pytest.raises(ValueError, match="no bound for rms_norm@1 in float64; state one"):
        check_kernel(kernel, case, dtype="float64")
    wide = {"rms_norm@1": {"float64": 1e-12}}
    assert not check_kernel(kernel, case, dtype="float64", bounds=wide).problems


def test_every_public_op_has_cases_and_facts() -> None:
    assert set(GENERATORS) == set(FACTS) == set(OPS)
    for op in OPS:
        names = [case.name for case in cases_of(op)]
        assert len(names) == len(set(names))


def test_cases_are_the_same_every_time() -> None:
    case = cases_of("attention_decode@1", TINY)[-1]
    for one, other in zip(*(case.make(Inputs(3, torch.float32)).args for _ in "ab"), strict=True):
        assert torch.equal(torch.as_tensor(one).nan_to_num(), torch.as_tensor(other).nan_to_num())
