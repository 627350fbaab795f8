# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Codes of eight bits, float8_e4m3fn (Micikevicius et al., 2022, arXiv:2209.05433): to and from."""

# The dialect of @triton.jit bodies has no annotations beyond tl.constexpr, and triton has no stubs.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

import triton
import triton.language as tl
from tokenspeed_sdk.contracts.kernel import CallSite

GROUP: tl.constexpr = tl.constexpr(128)
"""Features that share a scale."""

LARGEST: tl.constexpr = tl.constexpr(448.0)
"""The largest finite code."""


@triton.jit
def group_scales(value):
    """[..., groups, GROUP] float32 -> [..., groups]: the largest of each group becomes LARGEST."""
    largest = tl.max(tl.abs(value), len(value.shape) - 1)
    return tl.where(largest > 0, largest / LARGEST, 1.0)


@triton.jit
def saturated(value):
    """Clamped to what codes hold: a conversion alone would give NaN beyond it."""
    return tl.minimum(tl.maximum(value, -LARGEST), LARGEST)


@triton.jit
def widen(codes, PTX: tl.constexpr):
    """Codes as fp16, which holds each of them; four of a thread at a time.

    Triton moves a plain conversion behind the change of layout that a product's operand needs, and
    then every byte of a value is read from shared memory on its own. It does not move assembly that
    is not pure. PTX: the code is for an NVIDIA GPU, and not interpreted.
    """
    if PTX:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b16 low, high;
            mov.b32 {low, high}, $2;
            cvt.rn.f16x2.e4m3x2 $0, low;
            cvt.rn.f16x2.e4m3x2 $1, high;
            }
            """,
            "=r,=r,r", [codes], dtype=tl.float16, is_pure=False, pack=4,
        )  # fmt: skip
    return codes.to(tl.float16)


def has_ptx(site: CallSite) -> bool:
    """Whether kernels of a site may hold NVIDIA's assembly; Triton's interpreter reads none."""
    return site.device.arch.startswith("sm_") and not triton.knobs.runtime.interpret
