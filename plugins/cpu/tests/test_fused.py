# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Ops that are several in one call give the bits of their parts: a step with more rows than the one
call takes runs the parts, and must draw the same tokens."""

from __future__ import annotations

import pytest
import torch
from tokenspeed_sdk.ops.int8 import quantize_weight
from tokenspeed_sdk.testing import Inputs
from tokenspeed_sdk.testing.kernel.cases.paged import make_pool

from .support import bind, find, int32, randn, site

pytestmark = pytest.mark.usefixtures("isa")

EPS = 1e-5


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("quantization", ["", "_int8"])
@pytest.mark.parametrize("rows", [1, 9, 32])
def test_norm_product_and_activation(
    rng: torch.Generator, quantization: str, rows: int, gated: bool
) -> None:
    n, k, op = 48, 70, f"linear{quantization}@1"
    traits = {"n": n, "k": k, "bias": True}
    weight = randn(rng, n, k)
    plain, *scales = quantize_weight(weight) if quantization else (weight,)
    weights = (find(op).pack_weight(site(op, **traits), plain), *scales)
    x, residual, norm, bias = (randn(rng, *size) for size in ((rows, k), (rows, k), (k,), (n,)))
    summed = torch.full_like(residual, torch.nan)
    fused = bind(f"add_norm_{op}", **traits, gated=gated)
    out = fused(x, residual, summed, norm, *weights, bias, EPS)

    hidden = bind("add_rms_norm@1", hidden=k)(x, residual, norm, EPS)
    product = bind(op, **traits)(hidden, *weights, bias)
    assert summed.equal(residual)
    assert out.equal(bind("silu_and_mul@1", inter=n // 2)(product) if gated else product)


@pytest.mark.parametrize("normed", [False, True])
def test_norms_of_heads_rotation_and_write(normed: bool) -> None:
    shape = {"kv_heads": 2, "head_dim": 16, "page_size": 4}
    turn = {"rotary": 16, "interleaved": False}
    inputs = Inputs(7, torch.float32)
    q, k, v = inputs.fused(5, 4, 2, 2, head_dim=16)
    pools = [make_pool(Inputs(1, torch.float32), [9, 3], 2, 16, 4) for _ in range(2)]
    slots = pools[0].row_slot[[0, 0, 0, 0, 1]]
    positions, angles = int32([5, 6, 7, 8, 2]), inputs.random(9, 16)
    weights = [1 + inputs.random(16) for _ in range(2)] if normed else [None, None]
    mine, theirs = q.clone(), q.clone()
    kept = k.clone(), v.clone()
    fused = bind("rope_kv_write@1", heads=4, head_norm=normed, **shape, **turn)
    caches = [(pool.keys, pool.values, pool.table) for pool in pools]
    fused(mine, k, v, positions, angles, *caches[0], slots, *weights, EPS)
    assert (k.equal(kept[0]), v.equal(kept[1])) == (True, True)

    keys = k.clone()
    if normed:
        norm = bind("rms_norm@1", hidden=16)
        theirs, keys = norm(theirs, weights[0], EPS), norm(keys, weights[1], EPS)
    bind("rope@1", head_dim=16, **turn)(theirs, keys, positions, angles)
    bind("kv_write@1", **shape)(keys, v, *caches[1], slots, positions)
    assert mine.equal(theirs)
    for ours, wanted in zip(caches[0][:2], caches[1][:2], strict=True):
        assert ours.nan_to_num(7).equal(wanted.nan_to_num(7))
