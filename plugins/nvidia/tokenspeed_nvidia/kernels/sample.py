# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""sample@1 in six dependent launches, without a word from the device to the host.

    chunk_maxima     [E, chunks]  largest logit of each chunk, and where
    chunk_masses     [E, chunks]  rows with top-k or top-p: how much lies near the largest logit
    keep_candidates  [E, chunks]  the logits near enough to matter, in order of their ids
    find_limits      [E]          the smallest logit that the filters keep
    race_chunks      [E, chunks]  the exponential race among what they keep
    pick_winners     [E]

Filters are thresholds on logits: bisection over the bits of a float finds the exact one without
sorting. It runs on candidates only: the logits within a distance of the largest that is wide enough
for the row's filters, copied end to end. All sums run in a fixed order.
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
BLOCK = 8192
MASSES = tl.constexpr(8)
"""Numbers that chunk_masses leaves of a chunk: four counts, then four masses."""

NEAR, MIDDLE, FAR = tl.constexpr(5.0), tl.constexpr(10.0), tl.constexpr(20.0)
"""Distances below the largest logit, in units of temperature."""

NO_ID = tl.constexpr(2**31 - 1)
LOWEST_KEY = tl.constexpr(-(2**31))
HIGHEST_KEY = tl.constexpr(2**31 - 1)


@triton.jit
def order_key(value):
    """int32 that orders as the float32 does; both zeros are equal."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def load_row(logits, column, vocab):
    """Logits with -inf beyond the row, and whether any is a NaN."""
    value = tl.load(logits + column, mask=column < vocab, other=float("-inf")).to(tl.float32)
    broken = value != value  # noqa: PLR0124 (a NaN is not itself)
    return tl.where(broken, float("-inf"), value), tl.max(broken.to(tl.int32), 0)


@triton.jit
def row_maximum(chunk_value, chunk_id, row, chunks, CHUNKS: tl.constexpr):
    """Largest logit of a row and its lowest id; NO_ID if it has a NaN or nothing finite."""
    each = tl.arange(0, CHUNKS)
    inside = each < chunks
    value = tl.load(chunk_value + row * chunks + each, mask=inside, other=float("-inf"))
    where = tl.load(chunk_id + row * chunks + each, mask=inside, other=NO_ID)
    largest = tl.max(value, 0)
    first = tl.min(tl.where(value == largest, where, NO_ID), 0)
    broken = tl.max((inside & (where < 0)).to(tl.int32), 0)
    finite = (largest > float("-inf")) & (largest < float("inf")) & (broken == 0)
    return largest, tl.where(finite, first, NO_ID)


@triton.jit
def chunk_maxima(
    logits, chunk_value, chunk_id, vocab, chunks, row_stride, CHUNK: tl.constexpr, PDL: tl.constexpr
):
    """Largest logit of one chunk of one row and its lowest id; -1 for a chunk with a NaN."""
    start_dependents(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    value, broken = load_row(logits + row * row_stride, column, vocab)
    largest = tl.max(value, 0)
    first = tl.min(tl.where(value == largest, column, NO_ID), 0)
    tl.store(chunk_value + row * chunks + chunk, largest)
    tl.store(chunk_id + row * chunks + chunk, tl.where(broken > 0, -1, first))


@triton.jit
def filters(temperature, top_k, top_p, vocab):
    """Whether a row asks for a threshold, and its top-k, 0 for none.

    Asked before anything else is read: most rows of most steps do not.
    """
    top_k = tl.where(top_k >= vocab, 0, tl.maximum(top_k, 0))
    return (temperature > 0.0) & ((top_k > 0) | (top_p < 1.0)), top_k


@triton.jit
def chunk_masses(
    logits, masses, chunk_value, chunk_id, temperatures, top_ks, top_ps,
    vocab, chunks, row_stride, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Number and mass of one chunk's logits within each distance of the row's largest."""
    start_dependents(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    temperature = tl.load(temperatures + row)
    filtered, _ = filters(temperature, tl.load(top_ks + row), tl.load(top_ps + row), vocab)
    if not filtered:
        return
    largest, winner = row_maximum(chunk_value, chunk_id, row, chunks, CHUNKS)
    if winner == NO_ID:
        return
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    value, _ = load_row(logits + row * row_stride, column, vocab)
    level = (value - largest) / temperature
    weight = tl.exp(level)
    at = masses + (row * chunks + chunk) * MASSES
    tl.store(at + 0, tl.sum((level > -NEAR).to(tl.float32), 0))
    tl.store(at + 1, tl.sum((level > -MIDDLE).to(tl.float32), 0))
    tl.store(at + 2, tl.sum((level > -FAR).to(tl.float32), 0))
    tl.store(at + 3, tl.sum((value > float("-inf")).to(tl.float32), 0))
    tl.store(at + 4, tl.sum(tl.where(level > -NEAR, weight, 0.0), 0))
    tl.store(at + 5, tl.sum(tl.where(level > -MIDDLE, weight, 0.0), 0))
    tl.store(at + 6, tl.sum(tl.where(level > -FAR, weight, 0.0), 0))
    tl.store(at + 7, tl.sum(weight, 0))


@triton.jit
def row_candidates(masses, row, chunks, top_k, top_p, CHUNKS: tl.constexpr):
    """Distance within which all lies that the filters may keep, how many candidates each chunk has
    there, and the mass of the whole row.

    The margin on mass covers the rounding of sums.
    """
    each = tl.arange(0, CHUNKS)
    inside = each < chunks
    at = masses + (row * chunks + each) * MASSES
    near = tl.load(at + 0, mask=inside, other=0.0)
    middle = tl.load(at + 1, mask=inside, other=0.0)
    far = tl.load(at + 2, mask=inside, other=0.0)
    finite = tl.load(at + 3, mask=inside, other=0.0)
    near_mass = tl.sum(tl.load(at + 4, mask=inside, other=0.0), 0)
    middle_mass = tl.sum(tl.load(at + 5, mask=inside, other=0.0), 0)
    far_mass = tl.sum(tl.load(at + 6, mask=inside, other=0.0), 0)
    mass = tl.sum(tl.load(at + 7, mask=inside, other=0.0), 0)
    wanted = top_p * mass * 1.0001
    if top_k > 0:  # top-p then asks for a share of what top-k keeps
        near_enough = tl.sum(near, 0) >= top_k
        middle_enough = tl.sum(middle, 0) >= top_k
        far_enough = tl.sum(far, 0) >= top_k
    else:
        near_enough = near_mass >= wanted
        middle_enough = middle_mass >= wanted
        far_enough = far_mass >= wanted
    cut = tl.where(far_enough, FAR, float("inf"))
    cut = tl.where(middle_enough, MIDDLE, cut)
    cut = tl.where(near_enough, NEAR, cut)
    number = tl.where(far_enough, far, finite)
    number = tl.where(middle_enough, middle, number)
    number = tl.where(near_enough, near, number)
    return cut, number.to(tl.int32), mass


@triton.jit
def chunk_candidates(logits, chunk, largest, temperature, cut, vocab, CHUNK: tl.constexpr):
    """Ids and logits of one chunk, which are candidates, and how many are up to each."""
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    value, _ = load_row(logits, column, vocab)
    keep = ((value - largest) / temperature) > -cut
    return column, value, keep, tl.cumsum(keep.to(tl.int32), 0)


@triton.jit
def keep_candidates(
    logits, candidates, masses, chunk_value, chunk_id, temperatures, top_ks, top_ps,
    vocab, chunks, row_stride, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Put one chunk's candidates behind those of the chunks before it."""
    start_dependents(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    temperature = tl.load(temperatures + row)
    top_p = tl.load(top_ps + row)
    filtered, top_k = filters(temperature, tl.load(top_ks + row), top_p, vocab)
    if not filtered:
        return
    largest, winner = row_maximum(chunk_value, chunk_id, row, chunks, CHUNKS)
    if winner == NO_ID:
        return
    cut, numbers, _ = row_candidates(masses, row, chunks, top_k, top_p, CHUNKS)
    before = tl.sum(tl.where(tl.arange(0, CHUNKS) < chunk, numbers, 0), 0)
    _, value, keep, upto = chunk_candidates(
        logits + row * row_stride, chunk, largest, temperature, cut, vocab, CHUNK
    )
    tl.store(candidates + row * vocab + before + upto - 1, value, mask=keep)


@triton.jit
def candidate_id(
    logits, numbers, index, largest, temperature, cut, vocab,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Id of a row's candidate by its index: found again in the chunk that it came from."""
    ends = tl.cumsum(numbers, 0)
    chunk = tl.minimum(tl.sum((ends <= index).to(tl.int32), 0), CHUNKS - 1)
    before = tl.sum(tl.where(tl.arange(0, CHUNKS) < chunk, numbers, 0), 0)
    column, _, keep, upto = chunk_candidates(logits, chunk, largest, temperature, cut, vocab, CHUNK)
    return tl.max(tl.where(keep & (before + upto - 1 == index), column, 0), 0)


@triton.jit
def load_candidates(candidates, start, count, BLOCK: tl.constexpr):
    """BLOCK candidates: logit, key, index, and which are there."""
    index = start + tl.arange(0, BLOCK)
    inside = index < count
    value = tl.load(candidates + index, mask=inside, other=float("-inf"))
    return value, order_key(value), index, inside


@triton.jit
def count_above(candidates, count, limit, BLOCK: tl.constexpr):
    """Number of candidates whose key is greater than the limit."""
    number = tl.zeros([BLOCK], tl.int32)
    for start in range(0, count, BLOCK):
        _, key, _, inside = load_candidates(candidates, start, count, BLOCK)
        number += (inside & (key > limit)).to(tl.int32)
    return tl.sum(number, 0)


@triton.jit
def mass_above(candidates, count, limit, k_key, k_index, largest, temperature, BLOCK: tl.constexpr):
    """Mass of the candidates that top-k keeps and whose key is greater than the limit."""
    mass = tl.zeros([BLOCK], tl.float32)
    for start in range(0, count, BLOCK):
        value, key, index, inside = load_candidates(candidates, start, count, BLOCK)
        stays = inside & ((key > k_key) | ((key == k_key) & (index <= k_index))) & (key > limit)
        mass += tl.where(stays, tl.exp((value - largest) / temperature), 0.0)
    return tl.sum(mass, 0)


@triton.jit
def nth_index(candidates, count, wanted_key, rank, BLOCK: tl.constexpr):
    """Index of the rank-th candidate with the key, counted from 1; the last if there are fewer."""
    found, before = 0, 0
    for start in range(0, count, BLOCK):
        _, key, index, inside = load_candidates(candidates, start, count, BLOCK)
        equal = inside & (key == wanted_key)
        place = before + tl.cumsum(equal.to(tl.int32), 0)
        found = tl.maximum(found, tl.max(tl.where(equal & (place <= rank), index, 0), 0))
        before += tl.sum(equal.to(tl.int32), 0)
    return found


@triton.jit
def top_k_limit(candidates, count, top_k, low, high, BLOCK: tl.constexpr):
    """Key and index of the last candidate that top-k keeps."""
    while low < high:
        middle = low + ((high - low) >> 1)
        enough = count_above(candidates, count, middle, BLOCK) >= top_k
        low = tl.where(enough, middle + 1, low)
        high = tl.where(enough, high, middle)
    key = low.to(tl.int32)
    rank = top_k - count_above(candidates, count, key, BLOCK)
    return key, nth_index(candidates, count, key, rank, BLOCK)


@triton.jit
def top_p_limit(
    candidates, count, wanted, k_key, k_index, largest, temperature, low, high, BLOCK: tl.constexpr
):
    """Key and index of the last candidate that top-p keeps of what top-k keeps."""
    while low < high:
        middle = low + ((high - low) >> 1)
        above = mass_above(candidates, count, middle, k_key, k_index, largest, temperature, BLOCK)
        low = tl.where(above >= wanted, middle + 1, low)
        high = tl.where(above >= wanted, high, middle)
    key = low.to(tl.int32)
    above = mass_above(candidates, count, key, k_key, k_index, largest, temperature, BLOCK)
    bits = tl.where(key < 0, key ^ 0x7FFFFFFF, key)
    each = tl.exp((bits.to(tl.float32, bitcast=True) - largest) / temperature)
    rank = tl.ceil(tl.minimum((wanted - above) / tl.maximum(each, 1e-38), 1e9)).to(tl.int32)
    last = nth_index(candidates, count, key, tl.maximum(rank, 1), BLOCK)
    return key, tl.where(key == k_key, tl.minimum(last, k_index), last)


@triton.jit
def find_limits(
    logits, limits, candidates, masses, chunk_value, chunk_id, temperatures, top_ks, top_ps,
    vocab, chunks, row_stride, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """(key, id) of the last token that top-k and then top-p keep, for one row.

    The key is the smallest one above which less than the wanted number (top-k) or mass (top-p)
    lies. Candidates stand in the order of their ids, so among equal keys the index decides.
    """
    start_dependents(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    top_p = tl.load(top_ps + row)
    key = tl.full([], LOWEST_KEY, tl.int32)
    last = tl.full([], NO_ID, tl.int32)
    filtered, top_k = filters(temperature, tl.load(top_ks + row), top_p, vocab)
    largest, winner = float("-inf"), NO_ID
    if filtered:
        largest, winner = row_maximum(chunk_value, chunk_id, row, chunks, CHUNKS)
    if winner != NO_ID:
        cut, numbers, mass = row_candidates(masses, row, chunks, top_k, top_p, CHUNKS)
        candidates += row * vocab
        count = tl.sum(numbers, 0)
        low = order_key(largest - 1.01 * cut * temperature).to(tl.int64) - 1
        high = order_key(largest).to(tl.int64)
        if top_k > 0:
            key, last = top_k_limit(candidates, count, top_k, low, high, BLOCK)
            low = tl.maximum(low, key.to(tl.int64))
            mass = mass_above(candidates, count, LOWEST_KEY, key, last, largest, temperature, BLOCK)
        if top_p < 1.0:
            wanted = tl.maximum(top_p * mass, 1e-30)
            key, last = top_p_limit(
                candidates, count, wanted, key, last, largest, temperature, low, high, BLOCK
            )
        last = candidate_id(
            logits + row * row_stride, numbers, last, largest, temperature, cut, vocab,
            CHUNK, CHUNKS,
        )  # fmt: skip
    tl.store(limits + 2 * row, key)
    tl.store(limits + 2 * row + 1, last)


@triton.jit
def philox_word(token, low, high, key0, key1):
    """First word of the Philox4x32-10 block with the counter (token, low, high, 0); all uint32."""
    c0, c1, c2, c3 = token, low + token * 0, high + token * 0, token * 0
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(c0, 0xD2511F53), c0 * 0xD2511F53
        high1, low1 = tl.umulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0 += 0x9E3779B9
        key1 += 0xBB67AE85
    return c0


@triton.jit
def gumbel(word):
    """-ln(-ln(u)) with u = (word + 0.5) / 2^32, right to a few units in the last place.

    Near 1, u would round to 1: there -ln(u) = -ln(1 - v) is taken from v = 1 - u (Kahan).
    """
    u = (word.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    v = ((word ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    rest = 1.0 - v
    gap = 1.0 - rest
    upper = tl.where(gap == 0.0, v, -tl.log(rest) * (v / tl.where(gap == 0.0, 1.0, gap)))
    e = tl.where(word >= 0x80000000, upper, -tl.log(tl.minimum(u, 0.5)))
    return -tl.log(e)


@triton.jit
def race_chunks(
    logits, limits, chunk_value, chunk_id, race_value, race_id,
    temperatures, min_ps, seeds, positions, vocab, chunks, row_stride,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Best of one chunk of one row in the race of what the filters keep."""
    start_dependents(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    temperature = tl.load(temperatures + row)
    best, best_id = float("-inf"), NO_ID
    largest, winner = float("-inf"), NO_ID
    if temperature > 0.0:
        largest, winner = row_maximum(chunk_value, chunk_id, row, chunks, CHUNKS)
    if winner != NO_ID:
        column = chunk * CHUNK + tl.arange(0, CHUNK)
        value, _ = load_row(logits + row * row_stride, column, vocab)
        key = order_key(value)
        key_limit, id_limit = tl.load(limits + 2 * row), tl.load(limits + 2 * row + 1)
        level = (value - largest) / temperature
        min_p = tl.minimum(tl.load(min_ps + row), 1.0)
        kept = (key > key_limit) | ((key == key_limit) & (column <= id_limit))
        kept = kept & (value > float("-inf")) & (tl.exp(level) >= min_p)
        if tl.max(kept.to(tl.int32), 0) > 0:
            seed, position = tl.load(seeds + row), tl.load(positions + row)
            word = philox_word(
                column.to(tl.uint32), position.to(tl.uint32), (position >> 32).to(tl.uint32),
                seed.to(tl.uint32), (seed >> 32).to(tl.uint32),
            )  # fmt: skip
            score = tl.where(kept, level + gumbel(word), float("-inf"))
            best = tl.max(score, 0)
            best_id = tl.min(tl.where(kept & (score == best), column, NO_ID), 0)
    tl.store(race_value + row * chunks + chunk, best)
    tl.store(race_id + row * chunks + chunk, best_id)


@triton.jit
def pick_winners(
    out, chunk_value, chunk_id, race_value, race_id, temperatures, chunks,
    CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The token of one row."""
    start_dependents(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    _, winner = row_maximum(chunk_value, chunk_id, row, chunks, CHUNKS)
    _, drawn = row_maximum(race_value, race_id, row, chunks, CHUNKS)
    token = tl.where(tl.load(temperatures + row) > 0.0, drawn, winner)
    tl.store(out + row, tl.where((winner == NO_ID) | (token == NO_ID), -1, token).to(tl.int64))


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """One token per row of logits."""
    rows, vocab = logits.shape
    device = logits.device
    out = torch.empty((rows,), dtype=torch.int64, device=device)
    if not rows:
        return out
    chunks = triton.cdiv(vocab, CHUNK)
    width = triton.next_power_of_2(chunks)
    values = torch.empty((2, rows, chunks), dtype=torch.float32, device=device)
    places = torch.empty((2, rows, chunks), dtype=torch.int32, device=device)
    masses = torch.empty((rows, chunks, int(MASSES)), dtype=torch.float32, device=device)
    limits = torch.empty((rows, 2), dtype=torch.int32, device=device)
    candidates = torch.empty((rows, vocab), dtype=torch.float32, device=device)
    best, race = (values[0], places[0]), (values[1], places[1])
    sizes = (vocab, chunks, logits.stride(0))
    grid = (rows, chunks)
    launch = {"PDL": pdl, **options(pdl)}
    chunk_maxima[grid](logits, *best, *sizes, CHUNK=CHUNK, num_warps=8, **launch)
    rules = (temperature, top_k, top_p)
    chunk_masses[grid](
        logits, masses, *best, *rules, *sizes, CHUNK=CHUNK, CHUNKS=width, num_warps=8, **launch
    )
    keep_candidates[grid](
        logits, candidates, masses, *best, *rules, *sizes,
        CHUNK=CHUNK, CHUNKS=width, num_warps=8, **launch,
    )  # fmt: skip
    find_limits[(rows,)](
        logits, limits, candidates, masses, *best, *rules, *sizes,
        CHUNK=CHUNK, CHUNKS=width, BLOCK=BLOCK, num_warps=16, **launch,
    )  # fmt: skip
    race_chunks[grid](
        logits, limits, *best, *race, temperature, min_p, seed, position, *sizes,
        CHUNK=CHUNK, CHUNKS=width, num_warps=16, **launch,
    )  # fmt: skip
    pick_winners[(rows,)](
        out, *best, *race, temperature, chunks, CHUNKS=width, num_warps=1, **launch
    )
    return out


def bind(site: CallSite) -> Callable[..., torch.Tensor]:
    return partial(sample, pdl=has_pdl(site))
