# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Cases of the ops on integers: those of the plain ops, with codes and scales instead."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tokenspeed_sdk.ops.int8 import quantize_weight
from tokenspeed_sdk.testing.kernel.cases import fused, rows
from tokenspeed_sdk.testing.kernel.cases.base import Case, Grid, Inputs
from tokenspeed_sdk.testing.kernel.cases.recast import Args, recast

OUTLIER = 100.0
"""What one feature of a token is multiplied with: it must cost no other group a digit."""


def linear(grid: Grid) -> Iterator[Case]:
    """Weights whose groups have scales of their own; tokens with a feature that is far too large,
    and with a group of zeros."""

    def coded(inputs: Inputs, args: Args) -> Args:
        x, weight, bias = args
        x[:, -1:] *= OUTLIER
        x[1:2, :32] = 0
        return (x, *_weight(inputs, weight), bias)

    yield from recast(rows.linear(grid), "linear_int8@1", coded)


def add_norm_linear(grid: Grid) -> Iterator[Case]:
    """The same behind a sum and a norm."""

    def coded(inputs: Inputs, args: Args) -> Args:
        *before, weight, bias, eps = args
        before[0][:, -1:] *= OUTLIER
        return (*before, *_weight(inputs, weight), bias, eps)

    yield from recast(fused.add_norm_linear(grid), "add_norm_linear_int8@1", coded)


def _weight(inputs: Inputs, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of a weight, whose groups are of different sizes."""
    codes, scale = quantize_weight(weight)
    gap = (weight.stride(0) - weight.shape[1]) // 2
    spread = 1 + inputs.random(*scale.shape, dtype=scale.dtype).abs()
    return inputs.place(codes, gap), inputs.place(scale * spread, gap)
