# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""sample@1 in four launches, without a word from the device to the host.

    chunk_maxima   [E, chunks]  largest logit of each chunk, and where
    find_limits    [E]          rows with top-k or top-p: the smallest logit that stays
    race_chunks    [E, chunks]  the exponential race among what stays
    pick_winners   [E]

Filters are thresholds on logits: bisection over the bits of a float finds the exact one without
sorting. It runs on candidates only: the logits within a distance of the largest that is wide enough
for the row's filters, copied in id order.
"""

# The dialect of @triton.jit bodies has no annotations beyond tl.constexpr.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from tokenspeed_sdk.contracts.kernel import CallSite

CHUNK = 4096
BLOCK = 4096
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
    broken = value != value
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
    logits, chunk_value, chunk_id, vocab, chunks, row_stride, CHUNK: tl.constexpr
):
    """Largest logit of one chunk of one row and its lowest id; -1 for a chunk with a NaN."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    value, broken = load_row(logits + row * row_stride, column, vocab)
    largest = tl.max(value, 0)
    first = tl.min(tl.where(value == largest, column, NO_ID), 0)
    tl.store(chunk_value + row * chunks + chunk, largest)
    tl.store(chunk_id + row * chunks + chunk, tl.where(broken > 0, -1, first))


@triton.jit
def choose_cut(
    logits, largest, temperature, top_k, top_p, vocab, BLOCK: tl.constexpr
):
    """Distance below the largest logit, in units of temperature, beyond which nothing stays."""
    near_count, near_mass, far_count, far_mass, mass = 0, 0.0, 0, 0.0, 0.0
    for start in range(0, vocab, BLOCK):
        value, _ = load_row(logits, start + tl.arange(0, BLOCK), vocab)
        level = (value - largest) / temperature
        weight = tl.exp(level)
        near, far = level > -8.0, level > -20.0
        near_count += tl.sum(near.to(tl.int32), 0)
        far_count += tl.sum(far.to(tl.int32), 0)
        near_mass += tl.sum(tl.where(near, weight, 0.0), 0)
        far_mass += tl.sum(tl.where(far, weight, 0.0), 0)
        mass += tl.sum(weight, 0)
    # The margin covers the rounding of sums; with top-k on, top-p asks for no more than all mass.
    wanted = tl.minimum(top_p, 1.0) * mass * 1.0001
    near_enough = tl.where(top_k > 0, near_count >= top_k, near_mass >= wanted)
    far_enough = tl.where(top_k > 0, far_count >= top_k, far_mass >= wanted)
    cut = tl.where(near_enough, 8.0, tl.where(far_enough, 20.0, float("inf")))
    return cut


@triton.jit
def keep_candidates(
    logits, keys, ids, largest, temperature, cut, vocab, BLOCK: tl.constexpr
):
    """Copy what lies within the cut, in id order; returns how many."""
    count = 0
    for start in range(0, vocab, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value, _ = load_row(logits, column, vocab)
        keep = (((value - largest) / temperature) > -cut) & (column < vocab)
        place = count + tl.cumsum(keep.to(tl.int32), 0) - 1
        tl.store(keys + place, order_key(value), mask=keep)
        tl.store(ids + place, column, mask=keep)
        count += tl.sum(keep.to(tl.int32), 0)
    return count


@triton.jit
def weigh(key, largest, temperature):
    """exp((logit - largest) / temperature) of a key."""
    bits = tl.where(key < 0, key ^ 0x7FFFFFFF, key)
    return tl.exp((bits.to(tl.float32, bitcast=True) - largest) / temperature)


@triton.jit
def measure(
    keys, ids, count, above, k_key, k_id, largest, temperature, BLOCK: tl.constexpr
):
    """Number and mass of the top-k candidates whose key is greater than ``above``."""
    number, mass = 0, 0.0
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < count
        key = tl.load(keys + at, mask=inside, other=LOWEST_KEY)
        token = tl.load(ids + at, mask=inside, other=0)
        stays = inside & ((key > k_key) | ((key == k_key) & (token <= k_id))) & (key > above)
        number += tl.sum(stays.to(tl.int32), 0)
        mass += tl.sum(tl.where(stays, weigh(key, largest, temperature), 0.0), 0)
    return number, mass


@triton.jit
def nth_id(keys, ids, count, wanted_key, rank, BLOCK: tl.constexpr):
    """Id of the rank-th candidate with the key, counted from 1; the last one if there are fewer."""
    found, before = 0, 0
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < count
        equal = inside & (tl.load(keys + at, mask=inside, other=LOWEST_KEY) == wanted_key)
        token = tl.load(ids + at, mask=inside, other=0)
        place = before + tl.cumsum(equal.to(tl.int32), 0)
        found = tl.maximum(found, tl.max(tl.where(equal & (place <= rank), token, 0), 0))
        before += tl.sum(equal.to(tl.int32), 0)
    return found


@triton.jit
def find_limits(
    logits, limits, keys, ids, chunk_value, chunk_id, temperatures, top_ks, top_ps,
    vocab, chunks, row_stride, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(key, id) of the last token that top-k and then top-p keep, for one row.

    Keys are searched from above: the answer is the smallest key for which less than the wanted
    number (top-k) or mass (top-p) lies strictly above it.
    """
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    top_k = tl.load(top_ks + row)
    top_p = tl.load(top_ps + row)
    largest, winner = row_maximum(chunk_value, chunk_id, row, chunks, CHUNKS)
    top_k = tl.where(top_k >= vocab, 0, top_k)
    key_limit = tl.full([], LOWEST_KEY, tl.int32)
    id_limit = tl.full([], NO_ID, tl.int32)
    if (temperature > 0.0) & (winner != NO_ID) & ((top_k > 0) | (top_p < 1.0)):
        logits += row * row_stride
        keys += row * vocab
        ids += row * vocab
        cut = choose_cut(logits, largest, temperature, top_k, top_p, vocab, BLOCK)
        count = keep_candidates(logits, keys, ids, largest, temperature, cut, vocab, BLOCK)
        tl.debug_barrier()  # other threads of this program read what was just written
        highest = order_key(largest).to(tl.int64)
        if top_k > 0:
            low, high = tl.full([], LOWEST_KEY, tl.int64), highest
            while low < high:
                middle = low + ((high - low) >> 1)
                number, _ = measure(
                    keys, ids, count, middle, LOWEST_KEY, NO_ID, largest, temperature, BLOCK
                )
                low = tl.where(number < top_k, low, middle + 1)
                high = tl.where(number < top_k, middle, high)
            key_limit = low.to(tl.int32)
            number, _ = measure(
                keys, ids, count, key_limit, LOWEST_KEY, NO_ID, largest, temperature, BLOCK
            )
            id_limit = nth_id(keys, ids, count, key_limit, top_k - number, BLOCK)
        if top_p < 1.0:
            _, mass = measure(
                keys, ids, count, LOWEST_KEY, key_limit, id_limit, largest, temperature, BLOCK
            )
            if top_k <= 0:  # of the whole row, candidates or not
                mass = row_mass(logits, largest, temperature, vocab, BLOCK)
            wanted = tl.maximum(top_p * mass, 1e-30)
            low, high = key_limit.to(tl.int64), highest
            while low < high:
                middle = low + ((high - low) >> 1)
                _, above = measure(
                    keys, ids, count, middle, key_limit, id_limit, largest, temperature, BLOCK
                )
                low = tl.where(above < wanted, low, middle + 1)
                high = tl.where(above < wanted, middle, high)
            p_key = low.to(tl.int32)
            _, above = measure(
                keys, ids, count, p_key, key_limit, id_limit, largest, temperature, BLOCK
            )
            each = tl.maximum(weigh(p_key, largest, temperature), 1e-38)
            rank = tl.ceil(tl.minimum((wanted - above) / each, 1e9)).to(tl.int32)
            p_id = nth_id(keys, ids, count, p_key, tl.maximum(rank, 1), BLOCK)
            id_limit = tl.where(p_key == key_limit, tl.minimum(p_id, id_limit), p_id)
            key_limit = p_key
    tl.store(limits + 2 * row, key_limit)
    tl.store(limits + 2 * row + 1, id_limit)


@triton.jit
def row_mass(logits, largest, temperature, vocab, BLOCK: tl.constexpr):
    """Sum of exp((logit - largest) / temperature) over a row."""
    mass = 0.0
    for start in range(0, vocab, BLOCK):
        value, _ = load_row(logits, start + tl.arange(0, BLOCK), vocab)
        mass += tl.sum(tl.exp((value - largest) / temperature), 0)
    return mass


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
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Best of one chunk of one row in the race of what the filters keep."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    temperature = tl.load(temperatures + row)
    best, best_id = float("-inf"), NO_ID
    largest, winner = row_maximum(chunk_value, chunk_id, row, chunks, CHUNKS)
    if (temperature > 0.0) & (winner != NO_ID):
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
    out, chunk_value, chunk_id, race_value, race_id, temperatures, chunks, CHUNKS: tl.constexpr
):
    """The token of one row."""
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
    limits = torch.empty((rows, 2), dtype=torch.int32, device=device)
    candidates = torch.empty((2, rows, vocab), dtype=torch.int32, device=device)
    stride = logits.stride(0)
    chunk_maxima[(rows, chunks)](
        logits, values[0], places[0], vocab, chunks, stride, CHUNK=CHUNK, num_warps=8
    )
    find_limits[(rows,)](
        logits, limits, candidates[0], candidates[1], values[0], places[0],
        temperature, top_k, top_p, vocab, chunks, stride,
        CHUNKS=width, BLOCK=BLOCK, num_warps=16,
    )  # fmt: skip
    race_chunks[(rows, chunks)](
        logits, limits, values[0], places[0], values[1], places[1],
        temperature, min_p, seed, position, vocab, chunks, stride,
        CHUNK=CHUNK, CHUNKS=width, num_warps=8,
    )  # fmt: skip
    pick_winners[(rows,)](
        out, values[0], places[0], values[1], places[1], temperature, chunks,
        CHUNKS=width, num_warps=1,
    )  # fmt: skip
    return out


def bind(site: CallSite) -> Callable[..., torch.Tensor]:
    return sample
