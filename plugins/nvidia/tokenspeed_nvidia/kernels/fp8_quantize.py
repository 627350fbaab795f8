# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Activations to e4m3 codes with a scale for each token and 128 features, in one pass.

Scales lie by group, then by token, as a product reads them: for a tile of tokens, those of one
group are side by side. It is also the layout that cuBLAS asks for.
"""

# The dialect of @triton.jit bodies has no annotations beyond tl.constexpr, and triton has no stubs.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tokenspeed_nvidia.kernels.e4m3 import GROUP, group_scales, saturated
from tokenspeed_nvidia.kernels.pdl import options, start_dependents, wait_for_inputs

ROWS, COLUMNS = 8, 1024
"""Of one program: every thread has two loads of 16 bytes under way for each row of its own."""

ALIGNMENT = 4
"""Tokens are padded to it, since cuBLAS reads four scales at once. The padding is never written:
what lies there ends in rows that nobody reads."""


@dataclass(frozen=True)
class Codes:
    """Quantised activations.

    Attributes:
        codes: [T, K] float8_e4m3fn, T padded to ALIGNMENT.
        scales: [ceil(K / 128), T] float32.
        rows: tokens that were asked for.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    rows: int


@triton.jit
def quantize_rows(
    codes, scales, x, rows, x_stride, padded,
    K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EVEN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """COLUMNS features of ROWS tokens."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    present = (row < rows)[:, None]
    if not EVEN:
        present = present & (column < K)[None, :]
    wait_for_inputs(PDL)
    at = row[:, None].to(tl.int64)
    value = tl.load(x + at * x_stride + column[None, :], mask=present, other=0.0).to(tl.float32)
    start_dependents(PDL)
    value = tl.reshape(value, [ROWS, COLUMNS // GROUP, GROUP])
    scale = group_scales(value)
    code = saturated(value / scale[:, :, None])
    code = tl.reshape(code.to(codes.dtype.element_ty), [ROWS, COLUMNS])
    tl.store(codes + at * K + column[None, :], code, mask=present)
    group = tl.program_id(1) * (COLUMNS // GROUP) + tl.arange(0, COLUMNS // GROUP)
    known = (row < rows)[:, None] & (group < tl.cdiv(K, GROUP))[None, :]
    tl.store(scales + group[None, :].to(tl.int64) * padded + row[:, None], scale, mask=known)


def quantize(x: torch.Tensor, *, pdl: bool = False) -> Codes:
    """Codes and scales of x [T, K], whose rows may lie apart."""
    rows, k = x.shape
    padded = triton.cdiv(rows, ALIGNMENT) * ALIGNMENT
    codes = torch.empty((padded, k), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(
        (triton.cdiv(k, GROUP.value), padded), dtype=torch.float32, device=x.device
    )
    columns = max(GROUP.value, min(COLUMNS, triton.next_power_of_2(k)))
    quantize_rows[(triton.cdiv(rows, ROWS), triton.cdiv(k, columns))](
        codes, scales, x, rows, x.stride(0), padded,
        K=k, ROWS=ROWS, COLUMNS=columns, EVEN=k % columns == 0, PDL=pdl,
        num_warps=8, **options(pdl),
    )  # fmt: skip
    return Codes(codes, scales, rows)
