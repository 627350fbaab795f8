# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Cases of the ops on eight-bit numbers: those of the plain ops, with codes and scales instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tokenspeed_sdk.ops.fp8 import encode, quantize_weight
from tokenspeed_sdk.testing.kernel.cases import fused, paged, rows
from tokenspeed_sdk.testing.kernel.cases.base import Case, Grid, Inputs
from tokenspeed_sdk.testing.kernel.cases.recast import Args, recast

KV_SCALES = (0.07, 0.05)
"""Of keys and of values: neither is 1 or a power of two, and one is not the other."""

CODES_PER_UNIT = 16.0
"""What cached values are multiplied with to become codes: far from both ends of their range."""

LARGE = 1000.0
"""Beyond the largest code, with the scale of values."""


def linear(grid: Grid) -> Iterator[Case]:
    """Weights whose blocks are of different sizes."""

    def coded(inputs: Inputs, args: Args) -> Args:
        x, weight, bias = args
        return (x, *_weight(inputs, weight), bias)

    yield from recast(rows.linear(grid), "linear_fp8@1", coded)


def add_norm_linear(grid: Grid) -> Iterator[Case]:
    """The same behind a sum and a norm."""

    def coded(inputs: Inputs, args: Args) -> Args:
        *before, weight, bias, eps = args
        return (*before, *_weight(inputs, weight), bias, eps)

    yield from recast(fused.add_norm_linear(grid), "add_norm_linear_fp8@1", coded)


def silu_linear(grid: Grid) -> Iterator[Case]:
    """The same behind an activation: gate and up are as far from the next row as ``x`` was."""

    def coded(inputs: Inputs, args: Args) -> Args:
        gate, weight, bias = args
        up = inputs.random(*gate.shape)
        gap = (gate.stride(0) - gate.shape[1]) // 2
        pair = inputs.place(torch.cat((gate, up), 1), gap)
        return (pair, *_weight(inputs, weight), bias)

    yield from recast(rows.linear(grid), "silu_linear_fp8@1", coded)


def kv_write(grid: Grid) -> Iterator[Case]:
    """A key and a value that are too large for a code."""

    def coded(inputs: Inputs, args: Args) -> Args:
        k, v, *cache_and_places = args
        k[:1, :1, :1], v[:1, :1, 1:2] = -LARGE, LARGE
        return (k, v, *_caches(cache_and_places, 0), *_scales(inputs))

    yield from recast(paged.kv_write(grid), "kv_write_fp8@1", coded)


def rope_kv_write(grid: Grid) -> Iterator[Case]:
    """A value that is too large for a code."""

    def coded(inputs: Inputs, args: Args) -> Args:
        *before, eps = _caches(args, 5)
        before[2][:1, :1, :1] = LARGE
        return (*before, *_scales(inputs), eps)

    yield from recast(fused.rope_kv_write(grid), "rope_kv_write_fp8@1", coded)


def attention_prefill(grid: Grid) -> Iterator[Case]:
    """What no row owns is NaN here, too."""
    yield from recast(paged.attention_prefill(grid), "attention_prefill_fp8@1", _attention)


def attention_decode(grid: Grid) -> Iterator[Case]:
    """What no row owns is NaN here, too."""
    yield from recast(paged.attention_decode(grid), "attention_decode_fp8@1", _attention)


def attention_verify(grid: Grid) -> Iterator[Case]:
    """What no row owns is NaN here, too."""
    yield from recast(paged.attention_verify(grid), "attention_verify_fp8@1", _attention)


def _attention(inputs: Inputs, args: Args) -> Args:
    *before, scale = _caches(args, 1)
    return (*before, *_scales(inputs), scale)


def _weight(inputs: Inputs, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, as far apart as the weight's rows, and scales, each its own."""
    codes, scale = quantize_weight(weight)
    gap = (weight.stride(0) - weight.shape[1]) // 2
    spread = 1 + inputs.random(*scale.shape, dtype=torch.float32).abs()
    return inputs.place(codes, gap), inputs.place(scale * spread)


def _caches(args: Any, first: int) -> Args:
    """The arguments with codes instead of the caches, of which ``first`` is the one of keys."""
    keys, values = args[first : first + 2]
    flat = torch.empty(0, dtype=keys.dtype, device=keys.device).set_(keys.untyped_storage())
    codes = encode(flat * CODES_PER_UNIT, torch.ones(1, device=keys.device))
    both = (
        codes.as_strided(cache.shape, cache.stride(), cache.storage_offset())
        for cache in (keys, values)
    )
    return (*args[:first], *both, *args[first + 2 :])


def _scales(inputs: Inputs) -> list[torch.Tensor]:
    return [inputs.floats([scale]) for scale in KV_SCALES]
