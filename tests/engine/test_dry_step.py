# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The first steps are as many as call every kernel, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tokenspeed.engine.buffers import Limits
from tokenspeed.engine.device_step import StepShape
from tokenspeed.engine.dry_step import dry_steps
from tokenspeed.registry.by_rows import BUCKETS
from tokenspeed_sdk.contracts.platform import Device

SIZES = [low for low, _ in BUCKETS]


class Listening:
    """A step that keeps what it is asked for."""

    def __init__(self) -> None:
        self.shapes: list[StepShape] = []

    def run(self, shape: StepShape, host: Any) -> None:
        self.shapes.append(shape)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None


def shapes(cpu: Device, *, row_tokens: int, sequences: int = 64, tokens: int = 512) -> Any:
    limits = Limits(
        sequences=sequences,
        tokens=tokens,
        groups=1,
        max_kv_len=1024,
        page_size=16,
        row_tokens=row_tokens,
    )
    step: Any = Listening()
    dry_steps(step, cpu, limits, SIZES)
    assert len(step.shapes) == len(set(step.shapes)), "no step runs twice"
    return step.shapes


def bucket(rows: int) -> int:
    return sum(low <= rows for low in SIZES)


def test_steps_without_guesses(cpu: Device) -> None:
    found = shapes(cpu, row_tokens=1)
    assert not any(shape.verifies for shape in found)
    assert [s.rows for s in found if s.decode_rows] == [1, 2, 5, 9, 17, 33, 64]
    assert [s.tokens for s in found if not s.decode_rows] == [2, 5, 9, 17, 33, 65, 129]


def test_steps_with_guesses_stay_small(cpu: Device) -> None:
    """However many guesses a row may have."""
    found = shapes(cpu, row_tokens=8)
    assert [s for s in found if not s.verifies] == shapes(cpu, row_tokens=1)
    verified = [(s.rows, s.tokens, s.emits, s.max_query_len) for s in found if s.verifies]
    assert verified == [(n, 3 * n, 3 * n, 3) for n in (1, 2, 5, 9, 17, 33, 64)]
    assert [s for s in shapes(cpu, row_tokens=64) if s.verifies] == [s for s in found if s.verifies]


@pytest.mark.parametrize("row_tokens", [3, 8])
def test_rows_and_tokens_of_steps_with_guesses_reach_every_bucket(
    cpu: Device, row_tokens: int
) -> None:
    found = shapes(cpu, row_tokens=row_tokens, sequences=256, tokens=2048)
    verified = [s for s in found if s.verifies]
    assert {bucket(s.rows) for s in verified} == {*range(1, 9)}
    assert {bucket(s.emits) for s in verified} == {*range(2, 9)}


def test_one_guess_is_all_that_a_row_may_have(cpu: Device) -> None:
    found = shapes(cpu, row_tokens=2)
    assert {s.max_query_len for s in found if s.verifies} == {2}
