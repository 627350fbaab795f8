# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Wrong kernels of a step outside the model are caught."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mutants import Call, Mutant, caught_by, reports, wrong

pytestmark = pytest.mark.rule("R19")


def ignores_epoch(call: Call) -> Call:
    return lambda table, epochs, slot, epoch, *rest: call(
        table, epochs, slot, torch.full_like(epoch, 9), *rest
    )


def ignores_count(call: Call) -> Call:
    return lambda *args: call(*args[:-1], torch.full_like(args[-1], len(args[2])))


def ignores_seed_high(call: Call) -> Call:
    return lambda *args: call(*args[:5], args[5] & 0xFFFFFFFF, args[6])


def counts_no_guesses(call: Call) -> Call:
    """Takes every row as the first of its slot."""
    return lambda *args: call(*args[:4], torch.full_like(args[4], -1), *args[5:])


def counts_first_guess(call: Call) -> Call:
    """Counts what the first row of a run stands behind, too."""

    def more(*args: Any) -> None:
        slots, guesses, counts = args[2].tolist(), args[4].tolist(), args[7].clone()
        for s in {*slots}:
            token = guesses[slots.index(s)]
            if 0 <= token < counts.shape[1]:
                counts[s, token] += 2
        call(*args[:7], counts, *args[8:])

    return more


def is_one_guess_ahead(call: Call) -> Call:
    return lambda *args: call(*args[:4], args[4].roll(-1), *args[5:])


def first_of_row(call: Call) -> Call:
    """Gathers without looking at the order."""
    return lambda x, index: call(x, index.sort().values)


MUTANTS = [
    # op, fault, a case that catches it (part of its name), what the report says
    ("page_table_update@1", ignores_epoch, "count290", "differs from the reference"),
    ("page_table_update@1", ignores_count, "count0", "differs from the reference"),
    ("adjust_logits_verify@1", counts_no_guesses, "guesses", "differs from the reference"),
    ("adjust_logits_verify@1", counts_first_guess, "guesses", "differs from the reference"),
    ("adjust_logits_verify@1", is_one_guess_ahead, "guesses", "differs from the reference"),
    ("sample@1", ignores_seed_high, "spread-rows15", "differs from the reference"),
    ("gather_rows@1", first_of_row, "rows5", "differs from the reference"),
]


@wrong(MUTANTS)
def test_a_wrong_kernel_is_caught(op: str, fault: Any, case: str, says: str) -> None:
    assert caught_by(case, says, reports(Mutant(op, fault)))
