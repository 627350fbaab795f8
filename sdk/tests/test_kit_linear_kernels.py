# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Wrong kernels of linears, norms and activations, fused or of eight bits, are caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from mutants import Call, Mutant, caught_by, reports, takes_eps, wrong
from tokenspeed_sdk import ops
from tokenspeed_sdk.ops import int8
from tokenspeed_sdk.ops.fp8 import dequantize_weight
from tokenspeed_sdk.testing import Grid

pytestmark = pytest.mark.rule("R19")


def sums_in_place(call: Call) -> Call:
    """Changes the residual, as add_rms_norm does, and copies the sum from there."""

    def changing(x: torch.Tensor, residual: torch.Tensor, summed: torch.Tensor, *rest: Any) -> Any:
        out = call(x, residual, summed, *rest)
        residual.copy_(summed)
        return out

    return changing


def forgets_sum(call: Call) -> Call:
    """The right result, and nothing in the memory for the sum."""
    return lambda x, residual, summed, *rest: call(x, residual, summed.clone(), *rest)


def without(index: int) -> Callable[[Call], Call]:
    """Takes an optional argument for None."""

    def fault(call: Call) -> Call:
        return lambda *args: call(*args[:index], None, *args[index + 1 :])

    return fault


def gates_with_up(call: Call) -> Call:
    """Takes the second half of the columns for the gate."""
    return lambda x, *rest: call(torch.cat(x.chunk(2, 1)[::-1], 1), *rest)


def keeps_activations(call: Call) -> Call:
    """Multiplies what it was given, not the codes."""
    return lambda x, codes, scale, bias: ops.linear(
        x, dequantize_weight(codes, scale, x.dtype), bias
    )


def keeps_floats(call: Call) -> Call:
    """The same of integers."""
    return lambda x, codes, scale, bias: ops.linear(
        x, int8.dequantize_weight(codes, scale, x.dtype), bias
    )


def ignores_scale_row(call: Call) -> Call:
    return lambda x, codes, scale, bias: call(x, codes, scale[:1].expand_as(scale), bias)


MUTANTS = [
    # op, fault, a case that catches it (part of its name), what the report says
    ("add_norm_linear@1", sums_in_place, "rows5", "memory that is not its own"),
    ("add_norm_linear@1", forgets_sum, "rows1-", "argument 2, changed in place, is off by inf"),
    ("add_norm_linear@1", without(5), "-bias", "is off by"),
    ("add_norm_linear@1", takes_eps(1e-6), "rows1-", "is off by"),
    ("linear_fp8@1", keeps_activations, "rows5", "is off by"),
    ("linear_int8@1", keeps_floats, "rows5", "is off by"),
    ("linear_int8@1", ignores_scale_row, "rows1-", "is off by"),
    ("add_norm_linear_fp8@1", takes_eps(1e-6), "rows1-", "is off by"),
    ("silu_linear_fp8@1", gates_with_up, "rows5", "is off by"),
    ("add_norm_linear_int8@1", takes_eps(1e-6), "rows1-", "is off by"),
    ("rms_norm@1", takes_eps(1e-6), "rows1-37", "is off by"),
    ("add_rms_norm@1", takes_eps(0.0999), "rows1-200", "is off by"),
]


@wrong(MUTANTS)
def test_a_wrong_kernel_is_caught(op: str, fault: Any, case: str, says: str) -> None:
    assert caught_by(case, says, reports(Mutant(op, fault)))


def test_blocks_of_rows_have_scales_of_their_own() -> None:
    found = reports(
        Mutant("linear_fp8@1", ignores_scale_row), grid=Grid((5,), matrices=((130, 9),))
    )
    assert all("is off by" in str(report) for report in found.values())
