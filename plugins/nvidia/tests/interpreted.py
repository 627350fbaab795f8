# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The kit's tests of the Triton kernels, for a pytest of their own under Triton's interpreter.

The interpreter is chosen when a kernel is decorated, so ``test_interpreter.py`` starts it. bf16
products are left out: the interpreter of triton 3.6 multiplies their raw bits (fp16 takes the same
path).
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Any

assert os.environ["TRITON_INTERPRET"] == "1", "run test_interpreter.py"

import numpy as np
import pytest
import torch
import triton.language as tl
from tokenspeed_sdk import ops
from tokenspeed_sdk.contracts.kernel import HostStep
from tokenspeed_sdk.ops.fp8 import quantize_rows
from tokenspeed_sdk.testing import H100, TINY, kernel_conformance
from triton.runtime import interpreter

from tokenspeed_nvidia.catalog import kernels
from tokenspeed_nvidia.kernels.attention_verify import attention_verify
from tokenspeed_nvidia.kernels.fp8_quantize import add_norm_quantize, quantize
from tokenspeed_nvidia.kernels.kv_gather import Gathering, gather_kv

interpreter_floats = interpreter._convert_float


def right_floats(values: Any, source: tl.dtype, target: tl.dtype, rounding: Any) -> Any:
    """How the interpreter converts floats, but for e4m3 codes.

    That of triton 3.6 loses the carry of a mantissa that is rounded up to the next power of two.
    """
    if (source, target) == (tl.float32, tl.float8e4nv):
        wide = torch.from_numpy(np.array(values, dtype=np.float32))
        return wide.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return interpreter_floats(values, source, target, rounding)


interpreter._convert_float = right_floats

FEW_UNITS = replace(H100, units=3)
"""So that decode splits rows."""

PRODUCTS = ("attention_decode@1", "attention_prefill@1", "attention_verify@1")
FP8_PRODUCTS = ("attention_decode_fp8@1", "attention_prefill_fp8@1", "attention_verify_fp8@1")
FEW_ROWS = ("add_norm_linear@1", "linear@1")
FP8_FEW_ROWS = ("add_norm_linear_fp8@1", "linear_fp8@1")
MANY_CASES = ("rope_kv_write@1",)
ON_A_GPU = ("rope_kv_write_fp8@1",)
"""Its parts are here: rotation as without 8 bits, and codes as ``kv_write_fp8`` makes them."""

OTHERS = {kernel.op for kernel in kernels() if kernel.name in ("triton", "cublas")}
OTHERS -= {*PRODUCTS, *FP8_PRODUCTS, *MANY_CASES, *ON_A_GPU}
ONE_HEADS = replace(TINY, heads=TINY.heads[:1])
ONE_SHAPE = replace(ONE_HEADS, windows=(None,))
SMALL_PAGES = (4,)
"""For what writes them: the tokens of a case are as many as it takes to cross their ends."""

SCALES = replace(TINY, rows=(5,), matrices=((136, 272),))
"""Several scales both ways, and parts of blocks."""

DECODE = ("attention_decode@1", "attention_decode_fp8@1")

conforms = partial(kernel_conformance, kernels, capabilities=FEW_UNITS, names=["triton", "cublas"])
test_attention = conforms(ops=PRODUCTS, grid=TINY, dtypes=["float32"])
test_half_attention = conforms(ops=PRODUCTS, grid=ONE_SHAPE, dtypes=["float16"])
test_fp8_attention = conforms(ops=FP8_PRODUCTS, grid=ONE_SHAPE, dtypes=["float16"])
test_split = conforms(ops=DECODE, grid=ONE_HEADS, dtypes=["float16"], names=["split"])
test_many_cases = conforms(
    ops=MANY_CASES, grid=replace(ONE_SHAPE, page_sizes=SMALL_PAGES), dtypes=["float32"]
)
test_fp8_tiles = conforms(
    ops=["linear_fp8@1"],
    grid=replace(SCALES, rows=(0, 5, 70)),
    dtypes=["float16"],
    names=["tiles"],
    capabilities=H100,
)
test_few_rows = conforms(ops=FEW_ROWS, grid=TINY, dtypes=["float16"], names=["few_rows"])
test_fp8_few_rows = conforms(ops=FP8_FEW_ROWS, grid=TINY, dtypes=["float16"], names=["few_rows"])
test_fp8_scales = conforms(
    ops=FP8_FEW_ROWS[1:], grid=SCALES, dtypes=["float16"], names=["few_rows"]
)
test_others = conforms(
    ops=sorted(OTHERS), grid=replace(TINY, vocabs=(4500,), page_sizes=SMALL_PAGES)
)


@pytest.mark.parametrize("rows", [5, 8])
def test_many_rows_are_quantised_behind_what_stands_in_front(rows: int) -> None:
    """By group, then by token; 272 features are two groups and a part of one."""
    x, residual, weight = torch.randn(rows, 272), torch.randn(rows, 272), torch.randn(272)
    summed = torch.empty_like(x)
    normed = add_norm_quantize(summed, x, residual, weight, 0.1)
    assert summed.equal(x + residual)
    pair = torch.randn(rows, 600)[:, 20:564]  # further apart than they are wide
    for made, wanted in (
        (normed, ops.rms_norm(x + residual, weight, 0.1)),
        (quantize(pair, gate=True), ops.silu_and_mul(pair)),
    ):
        codes, scales = quantize_rows(wanted)
        torch.testing.assert_close(made.scales.t()[:rows], scales)
        near = (made.codes[:rows].float() - codes.float()).abs() <= codes.float().abs() / 8
        assert near.all()
        assert (made.codes[:rows].float() == codes.float()).float().mean() > 0.99


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float16])
def test_pages_of_rows_are_laid_end_to_end(dtype: torch.dtype) -> None:
    """Rows of 25, 0 and 18 tokens in pages of 18; what lies behind a row's end is not copied."""
    slab = torch.randn(5, 2, 2, 18, 32).to(dtype)
    table = torch.tensor([[0, 0, 0], [3, 0, 0], [0, 0, 0], [4, 1, 0]], dtype=torch.int32)
    slots, lengths = (torch.tensor(n, dtype=torch.int32) for n in ([3, 2, 1], [25, 0, 18]))
    scale = torch.tensor([0.5])
    scales = (scale, 2 * scale) if dtype.itemsize == 1 else (None, None)
    gathering = Gathering.of(HostStep(torch.zeros(4).int(), lengths, table, slots), 18)
    made = gather_kv(slab[:, 0], slab[:, 1], gathering, scales, torch.float16)
    for each, copy, factor in zip(range(2), made, (0.5, 1.0), strict=True):
        tokens = slab[torch.tensor([4, 1, 3]), each].float().transpose(1, 2).flatten(0, 1)
        rows = torch.cat((tokens[:25], tokens[36:]))
        assert torch.equal(copy.float(), rows * (factor if scales[0] is not None else 1))


@pytest.mark.parametrize("window", [None, 400])
def test_runs_that_many_programs_share(window: int | None) -> None:
    """Runs of three, one and four rows behind up to 700 tokens, in up to eight parts."""
    runs, width, page = ((3, 700), (1, 33), (4, 500)), 64, 16
    generator = torch.Generator().manual_seed(0)
    slab = torch.randn(100, 2, 2, page, width, generator=generator).half()
    order = torch.randperm(99, generator=generator).int() + 1
    table = torch.zeros((5, 44), dtype=torch.int32)
    for slot, pages in ((1, order[:44]), (2, order[44:47]), (4, order[47:79])):
        table[slot, : len(pages)] = pages
    slots = torch.tensor([1] * 3 + [2] + [4] * 4, dtype=torch.int32)
    seen = [n for count, last in runs for n in range(last - count + 1, last + 1)]
    q = torch.randn(8, 6, width, generator=generator).half()
    args = (q, slab[:, 0], slab[:, 1], table, slots, torch.tensor(seen, dtype=torch.int32), 0.2)
    found = attention_verify(*args, window=window, queries=5, units=8)
    expected = ops.attention_verify(*args, window=window)
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)
