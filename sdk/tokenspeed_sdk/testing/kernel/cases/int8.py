# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Cases of linear_int8@1: those of the plain op, with codes and scales instead of the weight."""

from __future__ import annotations

from collections.abc import Iterator

from tokenspeed_sdk.ops.int8 import quantize_weight
from tokenspeed_sdk.testing.kernel.cases import rows
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
        codes, scale = quantize_weight(weight)
        gap = (weight.stride(0) - weight.shape[1]) // 2
        spread = 1 + inputs.random(*scale.shape, dtype=scale.dtype).abs()
        return (x, inputs.place(codes, gap), inputs.place(scale * spread, gap), bias)

    yield from recast(rows.linear(grid), "linear_int8@1", coded)
