# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Kernels of any op that are wrong in what they return or where they write are caught."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mutants import NAN, Call, Mutant, caught_by, reports, wrong

pytestmark = pytest.mark.rule("R19")


def ignores_row_stride(call: Call) -> Call:
    """Takes rows as if they stood side by side."""

    def packed(x: torch.Tensor, *rest: Any) -> Any:
        return call(x.as_strided(x.shape, (x.shape[1], 1)), *rest)

    return packed


def ignores_head_view(call: Call) -> Call:
    """Takes heads of a fused projection as if they were all of it."""

    def packed(x: torch.Tensor, *rest: Any) -> Any:
        if x.dim() == 3:
            x = x.as_strided(x.shape, (x.shape[1] * x.shape[2], x.shape[2], 1))
        return call(x, *rest)

    return packed


def writes_past_result(call: Call) -> Call:
    def longer(*args: Any) -> Any:
        right = call(*args)
        out = torch.empty(right.shape, dtype=right.dtype)
        out.copy_(right)
        behind = out.storage_offset() + out.numel()
        out.as_strided((8,), (1,), behind).zero_()
        return out

    return longer


def writes_past_rows(call: Call) -> Call:
    """Changes the row behind the last one in place, too."""

    def longer(x: torch.Tensor, residual: torch.Tensor, *rest: Any) -> Any:
        out = call(x, residual, *rest)
        residual.as_strided((2,), (1,), residual.storage_offset() + residual.numel()).zero_()
        return out

    return longer


def turns_values_too(call: Call) -> Call:
    """Rotates the values that lie behind the keys of a fused projection."""

    def more(q: torch.Tensor, k: torch.Tensor, *rest: Any) -> None:
        wider = k.as_strided((len(k), 2 * k.shape[1], k.shape[2]), k.stride(), k.storage_offset())
        call(q, wider, *rest)

    return more


def returns_float64(call: Call) -> Call:
    return lambda *args: call(*args).double()


def returns_alias(call: Call) -> Call:
    """Normalises in place: right numbers in memory that is another's."""
    return lambda x, *rest: x.copy_(call(x, *rest))


def returns_view(call: Call) -> Call:
    """A result whose rows are apart."""

    def apart(*args: Any) -> Any:
        out = call(*args)
        return torch.nn.functional.pad(out, (0, 4))[:, : out.shape[1]]

    return apart


def returns_nan(call: Call) -> Call:
    def spoilt(*args: Any) -> Any:
        out = call(*args)
        out[-1:, -1:] = NAN
        return out

    return spoilt


def leaves_hole(call: Call) -> Call:
    """Does not write its last row."""

    def short(*args: Any) -> Any:
        right = call(*args)
        out = torch.empty_like(right)
        out[:-1] = right[:-1]
        return out

    return short


def one_row_at_least(call: Call) -> Call:
    """Wrong on zero rows."""

    def padded(x: torch.Tensor, *rest: Any) -> Any:
        return call(x, *rest) if len(x) else x.new_zeros(1, x.shape[-1])

    return padded


def returns_something(call: Call) -> Call:
    def both(*args: Any) -> Any:
        call(*args)
        return args[0]

    return both


MUTANTS = [
    # op, fault, a case that catches it (part of its name), what the report says
    ("gather_rows@1", ignores_row_stride, "-apart", "differs from the reference"),
    ("silu_and_mul@1", ignores_row_stride, "-apart", "is off by inf"),
    ("linear@1", ignores_row_stride, "-apart", "is off by inf"),
    ("rms_norm@1", ignores_head_view, "heads", "is off by"),
    ("rms_norm@1", writes_past_result, "rows5-200", "past the end of memory"),
    ("add_rms_norm@1", writes_past_rows, "rows5-37", "memory that is not its own"),
    ("rope@1", turns_values_too, "rows5", "memory that is not its own"),
    ("linear@1", returns_float64, "rows1", "has dtype torch.float64, not torch.float32"),
    ("rms_norm@1", returns_alias, "rows5", "lies in the memory of an argument"),
    ("silu_and_mul@1", returns_view, "rows5", "is not contiguous"),
    ("linear@1", returns_nan, "rows5", "is off by inf"),
    ("attention_decode@1", leaves_hole, "length1-", "is off by inf"),
    ("embedding@1", leaves_hole, "rows5", "differs from the reference"),
    ("rms_norm@1", one_row_at_least, "rows0-37", "has shape (1, 37), not (0, 37)"),
    ("rope@1", returns_something, "rows5", "returns Tensor where the op returns nothing"),
]


@wrong(MUTANTS)
def test_a_wrong_kernel_is_caught(op: str, fault: Any, case: str, says: str) -> None:
    assert caught_by(case, says, reports(Mutant(op, fault)))
