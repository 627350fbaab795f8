# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Wrong kernels of attention, and of what writes its pages, are caught."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from mutants import Call, Mutant, caught_by, reports, takes_eps, wrong

pytestmark = pytest.mark.rule("R19")


def drops_last_of_full_page(call: Call) -> Call:
    """Counts one token too few where a row ends with its page."""

    def short(*args: Any) -> Any:
        *others, kv_len, scale = args
        new = args[5].diff() if len(args) == 8 else 1
        full = (kv_len > new) & (kv_len % args[1].shape[2] == 0)
        return call(*others, kv_len - full.int(), scale)

    return short


def reads_one_behind_page(call: Call) -> Call:
    """Counts a token too many where a row begins a new page."""

    def long(*args: Any) -> Any:
        *others, kv_len, scale = args
        begun = (kv_len > 1) & (kv_len % args[1].shape[2] == 1)
        return call(*others, kv_len + begun.int(), scale)

    return long


def writes_next_page_early(call: Call) -> Call:
    """Puts the last token of a page where the first of the next one belongs."""

    def early(k: torch.Tensor, v: torch.Tensor, *rest: Any) -> None:
        *cache, positions = rest
        last = positions % rest[0].shape[2] == rest[0].shape[2] - 1
        call(k, v, *cache, positions + last.int())

    return early


def flips(keyword: str) -> Callable[[Call], Call]:
    """Takes a trait for its contrary."""

    def fault(call: Call) -> Call:
        assert isinstance(call, partial)
        return partial(call, **{keyword: not call.keywords[keyword]})

    return fault


def norms_keys_with_query_weight(call: Call) -> Call:
    return lambda *args: call(*args[:10], args[9], args[11])


def rotates_keys_too(call: Call) -> Call:
    """Leaves rotated keys where the plain ones were."""

    def changing(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> None:
        call(q, k, v, *rest)
        call(k.clone(), k, v, *rest)
        k += 1

    return changing


def rounds_values(call: Call) -> Call:
    """Values that are not quite those that were given."""

    def near(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> None:
        call(q, k, v * (1 + 1e-6), *rest)

    return near


def clears_pages(call: Call) -> Call:
    """Writes where nobody's tokens lie."""

    def clearing(*args: Any) -> None:
        call(*args)
        args[5].nan_to_num_(0.0)

    return clearing


def clears_pages_fp8(call: Call) -> Call:
    """Writes where nobody's tokens lie; 0 is a code."""

    def clearing(*args: Any) -> None:
        call(*args)
        codes = args[5].view(torch.uint8)
        codes[args[5].isnan()] = 0

    return clearing


def swaps(index: int) -> Callable[[Call], Call]:
    """Takes two neighbours for each other, such as the scales of keys and values."""

    def fault(call: Call) -> Call:
        return lambda *args: call(*args[:index], args[index + 1], args[index], *args[index + 2 :])

    return fault


def wraps_around(call: Call) -> Call:
    """What is too large becomes something else."""

    def writing(k: torch.Tensor, v: torch.Tensor, *rest: Any) -> None:
        call(k, v.clamp(-10, 10), *rest)

    return writing


def answers_dead_rows(call: Call) -> Call:
    """Leaves a little in dead rows, too little for the norm of a batch to show."""

    def alive(q: torch.Tensor, *rest: Any) -> Any:
        out = call(q, *rest)
        dead = rest[-2] == 0
        out[dead] = 1e-6
        return out

    return alive


def ignores_group(call: Call) -> Call:
    """Query head h reads KV head h modulo their number."""

    def modulo(q: torch.Tensor, k_cache: torch.Tensor, *rest: Any) -> Any:
        kv_heads = k_cache.shape[1]
        group = q.shape[1] // kv_heads
        order = torch.arange(q.shape[1]).view(group, kv_heads).t().flatten()
        out = torch.empty_like(q)
        out[:, order] = call(q[:, order].contiguous(), k_cache, *rest)
        return out

    return modulo


def sees_later_guesses(call: Call) -> Call:
    """All queries of a run see what its last one does."""

    def fault(
        q: Any, keys: Any, values: Any, table: Any, slot: Any, kv_len: Any, *rest: Any
    ) -> Any:
        longest = kv_len.clone()
        for row in reversed(range(len(slot) - 1)):
            if slot[row] == slot[row + 1] and kv_len[row] + 1 == kv_len[row + 1]:
                longest[row] = longest[row + 1]
        return call(q, keys, values, table, slot, longest, *rest)

    return fault


def window_of_one_more(call: Call) -> Call:
    assert isinstance(call, partial)
    window = call.keywords["window"]
    return partial(call, window=None if window is None else window + 1)


MUTANTS = [
    # op, fault, a case that catches it (part of its name), what the report says
    ("attention_decode@1", drops_last_of_full_page, "length16-", "is off by"),
    ("attention_decode@1", reads_one_behind_page, "length17-", "is off by inf"),
    ("attention_prefill@1", drops_last_of_full_page, "batch", "is off by"),
    ("attention_prefill@1", reads_one_behind_page, "new17-", "is off by inf"),
    ("kv_write@1", writes_next_page_early, "rows1-", "differs from the reference"),
    ("rope_kv_write@1", flips("interleaved"), "interleaved", "argument 0, changed in place, is"),
    ("rope_kv_write@1", norms_keys_with_query_weight, "batch1-", "argument 5, changed in place,"),
    ("rope_kv_write@1", takes_eps(1e-6), "batch1-", "argument 5, changed in place, is off by"),
    ("rope_kv_write@1", rotates_keys_too, "batch4", "memory that is not its own"),
    ("rope_kv_write@1", rounds_values, "rows1_2", "argument 6, changed in place, differs"),
    ("rope_kv_write@1", clears_pages, "rows1_2", "argument 5, changed in place, is written where"),
    ("kv_write_fp8@1", swaps(7), "rows1-", "differs from the reference"),
    ("kv_write_fp8@1", wraps_around, "rows1-", "differs from the reference"),
    ("rope_kv_write_fp8@1", swaps(11), "batch1-", "argument 5, changed in place, is off by"),
    ("rope_kv_write_fp8@1", clears_pages_fp8, "rows1_2", "is written where"),
    ("attention_decode_fp8@1", swaps(6), "length16-", "is off by"),
    ("attention_prefill_fp8@1", swaps(7), "batch", "is off by"),
    ("attention_verify@1", sees_later_guesses, "run17-", "is off by"),
    ("attention_verify@1", answers_dead_rows, "batch", "is not zero in rows"),
    ("attention_verify@1", window_of_one_more, "window9", "is off by"),
    ("attention_verify_fp8@1", swaps(6), "run16-", "is off by"),
    ("attention_decode@1", answers_dead_rows, "batch", "is not zero in rows"),
    ("attention_decode@1", answers_dead_rows, "dead_rows", "is off by"),
    ("attention_decode@1", ignores_group, "batch-6:2", "is off by"),
    ("attention_prefill@1", window_of_one_more, "window9", "is off by"),
]


@wrong(MUTANTS)
def test_a_wrong_kernel_is_caught(op: str, fault: Any, case: str, says: str) -> None:
    assert caught_by(case, says, reports(Mutant(op, fault)))
