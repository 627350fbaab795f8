# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""References of embedding, linear, norms, activation, gather against other formulations."""

from __future__ import annotations

import pytest
import torch
from tokenspeed_sdk import ops

DOUBLE = torch.float64


def random(*shape: int, dtype: torch.dtype = DOUBLE) -> torch.Tensor:
    return torch.randn(*shape, dtype=DOUBLE).to(dtype)


def test_embedding_is_a_one_hot_product() -> None:
    weight, ids = random(11, 6), torch.tensor([3, 0, 10, 3])
    one_hot = torch.nn.functional.one_hot(ids, 11).to(DOUBLE)
    torch.testing.assert_close(ops.embedding(ids, weight), one_hot @ weight)


@pytest.mark.parametrize("tokens", [0, 1, 5])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_is_a_sum_of_products(tokens: int, bias: bool) -> None:
    x, weight, b = random(tokens, 4), random(3, 4), random(3)
    wanted = torch.zeros(tokens, 3, dtype=DOUBLE)
    for t in range(tokens):
        for n in range(3):
            wanted[t, n] = sum(x[t, k] * weight[n, k] for k in range(4)) + (b[n] if bias else 0)
    torch.testing.assert_close(ops.linear(x, weight, b if bias else None), wanted)


@pytest.mark.parametrize("shape", [(3, 8), (2, 5, 8), (1, 8)])
def test_rms_norm_scales_to_unit_root_mean_square(shape: tuple[int, ...]) -> None:
    x, weight = random(*shape), random(8)
    out = ops.rms_norm(x, weight, 1e-12)
    rms = (out / weight).square().mean(-1).sqrt()
    torch.testing.assert_close(rms, torch.ones_like(rms))
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(x, (8,), weight, 1e-12))


def test_rms_norm_eps_stands_inside_the_root() -> None:
    x, weight = torch.zeros(1, 4, dtype=DOUBLE), torch.ones(4, dtype=DOUBLE)
    x[0, 0] = 2.0
    torch.testing.assert_close(ops.rms_norm(x, weight, 3.0)[0, 0], torch.tensor(1.0, dtype=DOUBLE))


def test_add_rms_norm_changes_the_residual_and_nothing_else() -> None:
    x, residual, weight = random(3, 8), random(3, 8), random(8)
    x_before, total = x.clone(), x + residual
    out = ops.add_rms_norm(x, residual, weight, 1e-6)
    torch.testing.assert_close(residual, total)
    torch.testing.assert_close(x, x_before)
    torch.testing.assert_close(out, ops.rms_norm(total, weight, 1e-6))


def test_silu_and_mul_is_the_derivative_form() -> None:
    x = random(4, 10)
    gate, up = x[:, :5], x[:, 5:]
    torch.testing.assert_close(ops.silu_and_mul(x), gate * up * (1 + (gate / 2).tanh()) / 2)


def test_silu_and_mul_does_not_overflow() -> None:
    x = torch.tensor([[-1e30, 1.0]])
    assert ops.silu_and_mul(x).item() == 0.0


def test_gather_rows_may_repeat() -> None:
    x = random(4, 3)
    torch.testing.assert_close(
        ops.gather_rows(x, torch.tensor([2, 2, 0])), torch.stack([x[2], x[2], x[0]])
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_dtypes_are_rounded_once(dtype: torch.dtype) -> None:
    x, weight = random(3, 64, dtype=dtype), random(64, dtype=dtype)
    exact = ops.rms_norm(x.double(), weight.double(), 1e-6)
    torch.testing.assert_close(
        ops.rms_norm(x, weight, 1e-6).double(), exact.to(dtype).double(), rtol=8e-3, atol=0
    )
    assert ops.linear(x, x).dtype == ops.silu_and_mul(x).dtype == dtype


def test_strided_inputs() -> None:
    wide = random(3, 20)
    x, weight = wide[:, 4:12], random(8)
    torch.testing.assert_close(
        ops.rms_norm(x, weight, 1e-6), ops.rms_norm(x.contiguous(), weight, 1e-6)
    )
