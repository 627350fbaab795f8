# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""logprobs@1 in two launches; a program whose row wants nothing reads a few words and ends.

chunk_likeliest  [E, chunks]  largest logit of each chunk, sum of e^x, and likeliest tokens
row_likeliest    [E]          the same of the row, out of its chunks'
"""

# The dialect of @triton.jit bodies has no annotations beyond tl.constexpr, and triton has no stubs.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from tokenspeed_sdk.contracts.kernel import CallSite

from tokenspeed_nvidia.kernels.pdl import has_pdl, options, start_dependents, wait_for_inputs

CHUNK = 4096
NO_ID = tl.constexpr(2**31 - 1)


@triton.jit
def wish_of(slots, tokens, wanted, row, num_slots, vocab, wanted_stride, most):
    """Slot and token of a row, and how many entries are wanted of it."""
    slot = tl.minimum(tl.maximum(tl.load(slots + row), 0), num_slots - 1)
    token = tl.load(tokens + row)
    count = tl.minimum(tl.load(wanted + slot * wanted_stride), most)
    return slot, token, tl.where((token >= 0) & (token < vocab), count, 0)


@triton.jit
def chunk_likeliest(
    logits, sums, best_value, best_id, slots, tokens, wanted,
    vocab, chunks, num_slots, most, logits_stride, wanted_stride,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """sums [E, chunks, 2], best [E, chunks, WIDTH]: NO_ID behind the chunk's last token."""
    start_dependents(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    _, _, count = wish_of(slots, tokens, wanted, row, num_slots, vocab, wanted_stride, most)
    if count > 0:
        column = chunk * CHUNK + tl.arange(0, CHUNK)
        left = column < vocab
        value = tl.load(logits + row * logits_stride + column, mask=left, other=float("-inf"))
        largest = tl.max(value, 0)
        at = row * chunks + chunk
        tl.store(sums + 2 * at, largest)
        origin = tl.where(largest == float("-inf"), 0.0, largest)  # of a chunk that is masked
        tl.store(sums + 2 * at + 1, tl.sum(tl.exp(value - origin), 0))
        for i in range(count - 1):
            best = tl.max(tl.where(left, value, float("-inf")), 0)
            first = tl.min(tl.where(left & (value == best), column, NO_ID), 0)
            tl.store(best_value + at * WIDTH + i, best)
            tl.store(best_id + at * WIDTH + i, first)
            left = left & (column != first)


@triton.jit
def row_likeliest(
    logits, sums, best_value, best_id, top_id, top_value, slots, tokens, wanted,
    vocab, chunks, num_slots, most, logits_stride, wanted_stride, id_stride, value_stride,
    CHUNKS: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Entries of one row."""
    start_dependents(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    slot, token, count = wish_of(slots, tokens, wanted, row, num_slots, vocab, wanted_stride, most)
    if count > 0:
        chunk = tl.arange(0, CHUNKS)
        at = row * chunks + chunk
        there = chunk < chunks
        peaks = tl.load(sums + 2 * at, mask=there, other=float("-inf"))
        parts = tl.load(sums + 2 * at + 1, mask=there, other=0.0)
        peak = tl.max(peaks, 0)
        total = tl.log(tl.sum(parts * tl.exp(peaks - peak), 0))
        chosen = tl.load(logits + row * logits_stride + token)
        tl.store(top_id + slot * id_stride, token.to(tl.int32))
        tl.store(top_value + slot * value_stride, chosen - peak - total)
        place = tl.arange(0, CHUNKS * WIDTH)
        filled = (place // WIDTH < chunks) & (place % WIDTH < count - 1)
        value = tl.load(best_value + row * chunks * WIDTH + place, mask=filled, other=0.0)
        each = tl.load(best_id + row * chunks * WIDTH + place, mask=filled, other=NO_ID)
        left = each != NO_ID
        for i in range(1, count):
            best = tl.max(tl.where(left, value, float("-inf")), 0)
            first = tl.min(tl.where(left & (value == best), each, NO_ID), 0)
            tl.store(top_id + slot * id_stride + i, first, mask=first != NO_ID)
            tl.store(top_value + slot * value_stride + i, best - peak - total, mask=first != NO_ID)
            left = left & (each != first)


def logprobs(
    logits: torch.Tensor,
    token: torch.Tensor,
    slot: torch.Tensor,
    wanted: torch.Tensor,
    top_id: torch.Tensor,
    top_value: torch.Tensor,
    *,
    pdl: bool = False,
) -> None:
    """Write what is wanted; the launches cover all rows, so that a graph may hold them."""
    rows, vocab = logits.shape
    if not rows:
        return
    most, chunks = top_id.shape[1], triton.cdiv(vocab, CHUNK)
    width = triton.next_power_of_2(max(most - 1, 1))
    device = logits.device
    sums = torch.empty((rows, chunks, 2), dtype=torch.float32, device=device)
    best_value = torch.empty((rows, chunks, width), dtype=torch.float32, device=device)
    best_id = torch.empty((rows, chunks, width), dtype=torch.int32, device=device)
    asked = (slot, token, wanted)
    sizes = (vocab, chunks, wanted.shape[0], most, logits.stride(0), wanted.stride(0))
    launch = {"PDL": pdl, **options(pdl)}
    chunk_likeliest[(rows, chunks)](
        logits, sums, best_value, best_id, *asked, *sizes,
        CHUNK=CHUNK, WIDTH=width, num_warps=8, **launch,
    )  # fmt: skip
    row_likeliest[(rows,)](
        logits, sums, best_value, best_id, top_id, top_value, *asked, *sizes,
        top_id.stride(0), top_value.stride(0),
        CHUNKS=triton.next_power_of_2(chunks), WIDTH=width, num_warps=4, **launch,
    )  # fmt: skip


def bind(site: CallSite) -> Callable[..., None]:
    return partial(logprobs, pdl=has_pdl(site))
