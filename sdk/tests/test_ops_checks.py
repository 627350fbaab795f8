# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Errors of the ops name op, argument, what was wanted and what was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenspeed_sdk import ops

F = torch.zeros
I32 = torch.int32

CASES: list[tuple[str, Callable[[], Any]]] = [
    (
        r"linear@1: argument weight must have shape \[N=3, K=4\]; got \[3, 5\]",
        lambda: ops.linear(F(2, 4), F(3, 5)),
    ),
    (
        r"linear@1: argument bias must have shape \[N=3\]; got \[4\]",
        lambda: ops.linear(F(2, 4), F(3, 4), F(4)),
    ),
    (
        r"linear@1: argument weight must have the dtype of x, float32; got bfloat16",
        lambda: ops.linear(F(2, 4), F(3, 4, dtype=torch.bfloat16)),
    ),
    (
        r"linear@1: argument x must have a unit last stride; got strides \(1, 2\)",
        lambda: ops.linear(F(4, 2).T, F(3, 4)),
    ),
    (
        r"linear@1: argument x must be a tensor \[T K\]; got list",
        lambda: ops.linear([1.0], F(3, 4)),  # type: ignore[arg-type]
    ),
    (
        r"embedding@1: argument ids must lie in \[0, 5\); found values -1..5",
        lambda: ops.embedding(torch.tensor([-1, 5]), F(5, 2)),
    ),
    (
        r"embedding@1: argument ids must have dtype int64; got int32",
        lambda: ops.embedding(F(1, dtype=I32), F(5, 2)),
    ),
    (r"rms_norm@1: argument eps must be positive; got 0", lambda: ops.rms_norm(F(1, 2), F(2), 0)),
    (
        r"add_rms_norm@1: argument residual must have shape \[T=1, H=2\]; got \[2, 2\]",
        lambda: ops.add_rms_norm(F(1, 2), F(2, 2), F(2), 1e-6),
    ),
    (
        r"rope@1: argument positions must lie in \[0, 8\); found values 8..8",
        lambda: ops.rope(
            F(1, 2, 4), F(1, 1, 4), torch.tensor([8], dtype=I32), F(8, 4), interleaved=False
        ),
    ),
    (
        r"rope@1: argument cos_sin must have an even width of at most 4; got 6",
        lambda: ops.rope(F(1, 2, 4), F(1, 1, 4), F(1, dtype=I32), F(8, 6), interleaved=False),
    ),
    (
        r"kv_write@1: argument page_table must lie in \[0, 2\); found values 7..7",
        lambda: ops.kv_write(
            F(1, 1, 4),
            F(1, 1, 4),
            F(2, 1, 4, 4),
            F(2, 1, 4, 4),
            torch.full((3, 2), 7, dtype=I32),
            F(1, dtype=I32),
            F(1, dtype=I32),
        ),
    ),
    (
        r"attention_decode@1: argument q has 3 heads, which 2 KV heads do not divide",
        lambda: _decode(F(1, 3, 4), kv_len=1),
    ),
    (
        r"attention_decode@1: argument kv_len must lie in \[0, 9\); found values 9..9",
        lambda: _decode(F(1, 2, 4), kv_len=9),
    ),
    (
        r"attention_prefill@1: argument query_start must rise from 0 to at most 2 tokens",
        lambda: _prefill(F(2, 2, 4), [0, 3], kv_len=3),
    ),
    (
        r"attention_prefill@1: argument kv_len of row 0 must count its 2 queries; got 1",
        lambda: _prefill(F(2, 2, 4), [0, 2], kv_len=1),
    ),
    (
        r"silu_and_mul@1: argument x must hold gate and up, an even number",
        lambda: ops.silu_and_mul(F(1, 3)),
    ),
    (
        r"gather_rows@1: argument index must lie in \[0, 2\)",
        lambda: ops.gather_rows(F(2, 2), torch.tensor([2])),
    ),
    (
        r"add_norm_linear@1: argument summed must have memory of its own",
        lambda: _add_norm_linear(summed_is_residual=True),
    ),
    (
        r"add_norm_linear@1: argument norm_weight must have shape \[K=4\]; got \[3\]",
        lambda: _add_norm_linear(norm_weight=F(3)),
    ),
    (
        r"rope_kv_write@1: argument k_weight must be given with q_weight, or both be None",
        lambda: _rope_kv_write(q_weight=F(4)),
    ),
    (
        r"rope_kv_write@1: argument v must have shape \[T=1, Hkv=1, D=4\]; got \[1, 2, 4\]",
        lambda: _rope_kv_write(v=F(1, 2, 4)),
    ),
    (r"sample@1: argument temperature must not be negative; got -1", lambda: _sample(-1.0)),
]


def _decode(q: torch.Tensor, kv_len: int) -> torch.Tensor:
    cache, table = F(3, 2, 4, 4), F(3, 2, dtype=I32)
    slot, length = torch.ones(1, dtype=I32), torch.tensor([kv_len], dtype=I32)
    return ops.attention_decode(q, cache, cache, table, slot, length, 1.0, window=None)


def _prefill(q: torch.Tensor, starts: list[int], kv_len: int) -> torch.Tensor:
    cache, table = F(3, 2, 4, 4), F(3, 2, dtype=I32)
    slot, length = torch.ones(1, dtype=I32), torch.tensor([kv_len], dtype=I32)
    start = torch.tensor(starts, dtype=I32)
    return ops.attention_prefill(q, cache, cache, table, slot, start, length, 1.0, window=None)


def _add_norm_linear(
    norm_weight: torch.Tensor | None = None, summed_is_residual: bool = False
) -> torch.Tensor:
    residual, weight = F(2, 4), F(4) if norm_weight is None else norm_weight
    summed = residual if summed_is_residual else F(2, 4)
    return ops.add_norm_linear(F(2, 4), residual, summed, weight, F(3, 4), None, 0.1, gated=False)


def _rope_kv_write(v: torch.Tensor | None = None, q_weight: torch.Tensor | None = None) -> None:
    cache, zero, v = F(2, 1, 4, 4), F(1, dtype=I32), F(1, 1, 4) if v is None else v
    args = (F(1, 2, 4), F(1, 1, 4), v, zero, F(8, 4), cache, cache, F(3, 2, dtype=I32), zero)
    ops.rope_kv_write(*args, q_weight, None, 0.1, interleaved=False)


def _sample(temperature: float) -> torch.Tensor:
    one, whole = torch.ones(1), torch.zeros(1, dtype=torch.int64)
    return ops.sample(F(1, 4), temperature * one, F(1, dtype=I32), one, 0 * one, whole, whole)


@pytest.mark.parametrize(("message", "call"), CASES, ids=[message[:40] for message, _ in CASES])
def test_error(message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=message):
        call()
