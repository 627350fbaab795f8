# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The sdk's kit on every kernel, once per instruction set, and sizes around the kernels' tiles."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from tokenspeed_cpu.kernels import kernels
from tokenspeed_sdk.testing import USUAL, Call, Case, Inputs, kernel_conformance
from tokenspeed_sdk.testing.kernel.cases.paged import make_pool
from tokenspeed_sdk.testing.kernel.cases.tables import sample_args

pytestmark = pytest.mark.rule("R20")

HEADS = (*USUAL.heads, (11, 1, 16), (32, 8, 128), (4, 2, 80))  # the last: at all lengths
GRID = replace(USUAL, widths=(16, 37, 1536), heads=HEADS, lengths=(65, 700))
TILES = replace(
    USUAL,
    rows=(0, 1, 2, 3, 5, 6, 7, 13, 16, 17, 31, 33, 75),
    matrices=((960, 64), (49, 17), (1, 1), (16, 1025), (130, 2050)),
)


def long_row_of_one_weight(inputs: Inputs) -> Call:
    """Decode splits the row into parts, one of which holds nearly all of the weight."""
    pool = make_pool(inputs, [3001], 1, 16, 16)
    q = inputs.place(inputs.random(1, 2, 16) * 20)
    return Call((q, *pool.cache, pool.kv_len, 0.25))


def flat_nucleus(inputs: Inputs) -> Call:
    """Top-p keeps thousands of tokens, or few, of a large vocabulary."""
    filters = [(1.0, 0, top_p, 0.0) for top_p in (0.5, 0.9, 0.999, 0.1, 0.01, 0.3)]
    return Call(sample_args(inputs, inputs.normal(6, 49152, dtype=torch.float32), filters))


LONG = {"heads": 2, "kv_heads": 1, "head_dim": 16, "page_size": 16, "window": None}
CASES = (
    Case("one_weight_of_3001", "attention_decode@1", LONG, long_row_of_one_weight),
    Case("flat_nucleus-49152", "sample@1", {"vocab": 49152}, flat_nucleus, rows=6),
)

own = partial(kernel_conformance, kernels, names=["cpu"])
each_isa = pytest.mark.usefixtures("isa")
test_kernels = each_isa(own(grid=GRID, cases=CASES))
test_linear_tiles = each_isa(own(grid=TILES, ops=["linear@1", "linear_int8@1"]))
test_linear_of_torch = kernel_conformance(kernels, names=["onednn", "torch"])
