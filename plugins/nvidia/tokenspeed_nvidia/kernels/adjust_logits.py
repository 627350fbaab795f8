# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""adjust_logits@1, adjust_logits_verify@1 and record_tokens@1: penalties and biases, one launch
before the draw and one behind it. A program whose row asks for nothing reads a few words and ends.

Launched without fusing a product with a sum: each step rounds, as the ops say, so that every device
gives the same bits.
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
ROWS = 128
"""Tokens that one program records."""


@triton.jit
def load_penalties(penalties, slot, stride, mask):
    """Repetition, frequency and presence of slots, and whether there are any."""
    at = penalties + slot * stride
    repetition = tl.load(at, mask=mask, other=0.0)
    frequency = tl.load(at + 1, mask=mask, other=0.0)
    presence = tl.load(at + 2, mask=mask, other=0.0)
    any_penalty = (repetition != 0.0) | (frequency != 0.0) | (presence != 0.0)
    return repetition, frequency, presence, any_penalty


@triton.jit
def penalized(value, count, repetition, frequency, presence):
    """Logits of tokens that were seen so often."""
    repeated = tl.where(value > 0.0, tl.div_rn(value, repetition), value * repetition)
    value = tl.where(count > 0, repeated, value)
    times = count >> 1
    less = value - frequency * times.to(tl.float32)
    return tl.where(times > 0, less - presence, value)


@triton.jit
def count_guesses(count, column, slots, guesses, row):
    """Counts of tokens behind the guesses of a row's run, up to its own."""
    slot = tl.load(slots + row)
    before = tl.load(slots + row - 1, mask=row > 0, other=-1)
    while before == slot:
        count += tl.where(column == tl.load(guesses + row), 2, 0)
        row -= 1
        before = tl.load(slots + row - 1, mask=row > 0, other=-1)
    return count


@triton.jit
def adjust_chunk(
    logits, kept, slots, positions, guesses, wanted, penalties, counts, bias_id, bias_value,
    bias_until, vocab, num_slots, biases, logits_stride, kept_stride, wanted_stride,
    penalties_stride, counts_stride, id_stride, value_stride, until_stride,
    CHUNK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One chunk of one row; biases are applied in their order by whoever has the token's chunk."""
    start_dependents(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.minimum(tl.maximum(tl.load(slots + row), 0), num_slots - 1)
    keep = tl.load(wanted + slot * wanted_stride) != 0
    repetition, frequency, presence, penalizes = load_penalties(
        penalties, slot, penalties_stride, slot >= 0
    )
    until_at = bias_until + slot * until_stride
    until = tl.load(until_at)
    if keep | penalizes | (until != 0):
        first = tl.program_id(1) * CHUNK
        column = first + tl.arange(0, CHUNK)
        inside = column < vocab
        value = tl.load(logits + row * logits_stride + column, mask=inside, other=0.0)
        if keep:
            tl.store(kept + row * kept_stride + column, value, mask=inside)
        if penalizes:
            count = tl.load(counts + slot * counts_stride + column, mask=inside, other=0)
            if guesses is not None:
                count = count_guesses(count, column, slots, guesses, row)
            value = penalized(value, count, repetition, frequency, presence)
        position = tl.load(positions + row)
        entry = 0
        while until != 0:
            token = tl.load(bias_id + slot * id_stride + entry)
            if (position < until) & (token >= first) & (token < first + CHUNK):
                added = tl.load(bias_value + slot * value_stride + entry)
                value = tl.where(column == token, value + added, value)
            entry += 1
            until = tl.load(until_at + entry, mask=entry < biases, other=0)
        if penalizes | (entry > 0):
            tl.store(logits + row * logits_stride + column, value, mask=inside)


def adjust_logits(
    logits: torch.Tensor,
    kept: torch.Tensor,
    slot: torch.Tensor,
    position: torch.Tensor,
    *settings: torch.Tensor,
    guess: torch.Tensor | None = None,
    pdl: bool = False,
) -> None:
    """Adjust rows in place; the launch covers all, so that a graph may hold it.

    Args:
        settings: of slots, from ``wanted`` to ``bias_until``.
        guess: of rows that stand behind guesses.
    """
    rows, vocab = logits.shape
    if not rows:
        return
    wanted, _, _, bias_id, _, _ = settings
    adjust_chunk[(rows, triton.cdiv(vocab, CHUNK))](
        logits, kept, slot, position, guess, *settings, vocab, wanted.shape[0], bias_id.shape[1],
        *(each.stride(0) for each in (logits, kept, *settings)),
        CHUNK=CHUNK, PDL=pdl, num_warps=8, enable_fp_fusion=False, **options(pdl),
    )  # fmt: skip


def adjust_logits_verify(
    logits: torch.Tensor,
    kept: torch.Tensor,
    slot: torch.Tensor,
    position: torch.Tensor,
    guess: torch.Tensor,
    *settings: torch.Tensor,
    pdl: bool = False,
) -> None:
    """Adjust rows in place, some of which stand behind guesses."""
    adjust_logits(logits, kept, slot, position, *settings, guess=guess, pdl=pdl)


@triton.jit(do_not_specialize=["rows"])
def record_rows(
    last_token, counts, penalties, slots, tokens, rows, num_slots, vocab,
    counts_stride, penalties_stride, ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """ROWS tokens a program."""
    start_dependents(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + row, mask=row < rows, other=-1)
    token = tl.load(tokens + row, mask=row < rows, other=-1)
    inside = (slot >= 0) & (slot < num_slots)
    tl.store(last_token + slot, token, mask=inside)
    _, _, _, penalizes = load_penalties(penalties, slot, penalties_stride, inside)
    counted = inside & penalizes & (token >= 0) & (token < vocab)
    at = counts + slot * counts_stride + token
    tl.store(at, tl.load(at, mask=counted, other=0) + 2, mask=counted)


def record_tokens(
    last_token: torch.Tensor,
    counts: torch.Tensor,
    penalties: torch.Tensor,
    slot: torch.Tensor,
    token: torch.Tensor,
    *,
    pdl: bool = False,
) -> None:
    """Note and count the tokens that were drawn."""
    rows = slot.shape[0]
    if rows:
        record_rows[(triton.cdiv(rows, ROWS),)](
            last_token, counts, penalties, slot, token, rows, last_token.shape[0],
            counts.shape[1], counts.stride(0), penalties.stride(0),
            ROWS=ROWS, PDL=pdl, num_warps=4, **options(pdl),
        )  # fmt: skip


def bind_adjust(site: CallSite) -> Callable[..., None]:
    return partial(adjust_logits, pdl=has_pdl(site))


def bind_adjust_verify(site: CallSite) -> Callable[..., None]:
    return partial(adjust_logits_verify, pdl=has_pdl(site))


def bind_record(site: CallSite) -> Callable[..., None]:
    return partial(record_tokens, pdl=has_pdl(site))
