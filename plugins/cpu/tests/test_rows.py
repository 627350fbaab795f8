# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Norms, rope, silu_and_mul, gather_rows."""

from __future__ import annotations

import pytest
import torch

from .support import bind, embedded, int32, randn, reference

pytestmark = pytest.mark.usefixtures("isa")

ROWS = [0, 1, 3, 16, 130]


@pytest.mark.parametrize("hidden", [576, 16, 37])
@pytest.mark.parametrize("rows", ROWS)
def test_rms_norm(rng: torch.Generator, rows: int, hidden: int) -> None:
    x, weight = embedded(randn(rng, rows, hidden)), randn(rng, hidden)
    out = bind("rms_norm@1", hidden=hidden)(x, weight, 1e-5)
    torch.testing.assert_close(out, reference("rms_norm@1", hidden=hidden)(x, weight, 1e-5))


def test_rms_norm_of_heads(rng: torch.Generator) -> None:
    x, weight = randn(rng, 5, 9, 64)[:, 2:5], randn(rng, 64)
    out = bind("rms_norm@1", hidden=64)(x, weight, 1e-6)
    torch.testing.assert_close(out, reference("rms_norm@1", hidden=64)(x, weight, 1e-6))


@pytest.mark.parametrize("hidden", [576, 16, 37])
@pytest.mark.parametrize("rows", ROWS)
def test_add_rms_norm(rng: torch.Generator, rows: int, hidden: int) -> None:
    x, residual, weight = (
        randn(rng, rows, hidden),
        embedded(randn(rng, rows, hidden)),
        randn(rng, hidden),
    )
    expected = residual.clone()
    wanted = reference("add_rms_norm@1", hidden=hidden)(x, expected, weight, 1e-5)
    before = x.clone()
    out = bind("add_rms_norm@1", hidden=hidden)(x, residual, weight, 1e-5)
    assert torch.equal(residual, expected)
    assert torch.equal(x, before)
    torch.testing.assert_close(out, wanted)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary"), [(64, 64), (16, 16), (128, 128), (64, 24)])
@pytest.mark.parametrize("tokens", ROWS)
def test_rope_on_views_of_a_fused_qkv(
    rng: torch.Generator, tokens: int, head_dim: int, rotary: int, interleaved: bool
) -> None:
    traits = {"head_dim": head_dim, "rotary": rotary, "interleaved": interleaved}
    qkv = randn(rng, tokens, (9 + 3 + 3) * head_dim)
    expected = qkv.clone()
    positions = torch.randint(0, 40, (tokens,), generator=rng, dtype=torch.int32)
    cos_sin = randn(rng, 40, rotary)
    for x, op in ((qkv, bind), (expected, reference)):
        heads = x.view(tokens, 15, head_dim)
        op("rope@1", **traits)(heads[:, :9], heads[:, 9:12], positions, cos_sin)
    torch.testing.assert_close(qkv, expected)
    assert torch.equal(
        qkv.view(tokens, 15, head_dim)[:, 12:], expected.view(tokens, 15, head_dim)[:, 12:]
    )


@pytest.mark.parametrize("inter", [1536, 16, 21])
@pytest.mark.parametrize("rows", ROWS)
def test_silu_and_mul(rng: torch.Generator, rows: int, inter: int) -> None:
    x = embedded(randn(rng, rows, 2 * inter) * 30)
    out = bind("silu_and_mul@1", inter=inter)(x)
    torch.testing.assert_close(
        out, reference("silu_and_mul@1", inter=inter)(x), rtol=1e-5, atol=1e-6
    )


def test_silu_keeps_nan_and_extremes() -> None:
    gate = torch.tensor([float("nan"), float("inf"), 1e30, -1e30, 0.0] + [1.0] * 12)
    out = bind("silu_and_mul@1", inter=17)(torch.cat((gate, torch.ones(17)))[None])[0]
    assert out[0].isnan()
    assert out[1:5].tolist() == [float("inf"), pytest.approx(1e30), 0.0, 0.0]


@pytest.mark.parametrize("count", ROWS)
def test_gather_rows(rng: torch.Generator, count: int) -> None:
    x = embedded(randn(rng, 20, 33))
    index = torch.randint(0, 20, (count,), generator=rng)
    assert torch.equal(bind("gather_rows@1")(x, index), x[index])


def test_gather_of_a_row_that_is_not_there() -> None:
    out = bind("gather_rows@1")(torch.ones(2, 3), torch.tensor([2, -1, 1]))
    assert out.sum(1).tolist() == [0, 0, 3]


def test_positions_out_of_range_do_not_fault() -> None:
    q, k = torch.ones(2, 1, 16), torch.ones(2, 1, 16)
    bind("rope@1", head_dim=16, rotary=16, interleaved=False)(
        q, k, int32([-5, 99]), torch.ones(4, 16)
    )
    assert q.isfinite().all()
