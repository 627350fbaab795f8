# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""mask_logits@1: minus infinity for the tokens that a grammar forbids. Logits are never read."""

# The dialect of @triton.jit bodies has no annotations beyond tl.constexpr, and triton has no stubs.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from tokenspeed_sdk.contracts.kernel import CallSite

BLOCK = 4096


@triton.jit
def forbid(
    logits, mask, row, rows, vocab, logits_stride, mask_stride, BLOCK: tl.constexpr
):  # fmt: skip
    """One program takes BLOCK tokens of one mask; a mask whose row is not there does nothing."""
    which = tl.program_id(0).to(tl.int64)
    target = tl.load(row + which).to(tl.int64)
    if (target >= 0) & (target < rows):
        token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = token < vocab
        words = tl.load(mask + which * mask_stride + token // 32, mask=inside, other=-1)
        forbidden = ((words >> (token % 32)) & 1) == 0
        place = logits + target * logits_stride + token
        tl.store(place, float("-inf"), mask=inside & forbidden)


def mask_logits(logits: torch.Tensor, mask: torch.Tensor, row: torch.Tensor) -> None:
    """A launch for all masks."""
    masks, vocab = row.shape[0], logits.shape[1]
    if masks and logits.shape[0]:
        block = min(BLOCK, triton.next_power_of_2(vocab))
        forbid[(masks, triton.cdiv(vocab, block))](
            logits, mask, row, logits.shape[0], vocab, logits.stride(0), mask.stride(0),
            BLOCK=block,
        )  # fmt: skip


def bind(site: CallSite) -> Callable[..., None]:
    return mask_logits
