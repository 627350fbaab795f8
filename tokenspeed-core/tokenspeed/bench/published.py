# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Agentic work as others publish it: long first turns, many short ones, at several concurrencies.

A user begins with 50,000 tokens, adds 800 in each of 10 to 15 turns, and gets 500 tokens each time,
whether the model would have stopped or not. Nothing is cached at the start; every user sends the
next turn when the answer before has ended.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.bench.answers import tokens_per_user
from tokenspeed.bench.engine import launch_plan, measured_engine
from tokenspeed.bench.prompts import random_prompt
from tokenspeed.bench.report import Point, Report, Row, new_report
from tokenspeed.bench.turns import Conversation, Played, play

if TYPE_CHECKING:
    from tokenspeed.bench.session import Progress
    from tokenspeed.config import EngineConfig

CONCURRENCIES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Shape:
    """Lengths in tokens; each user has from ``fewest`` to ``most`` turns."""

    first: int = 50_000
    added: int = 800
    output: int = 500
    fewest: int = 10
    most: int = 15

    @property
    def longest(self) -> int:
        """Tokens of the longest conversation, its last answer included."""
        return self.first + (self.most - 1) * self.added + self.most * self.output


def scaled(factor: float) -> Shape:
    """The published lengths times ``factor``; the numbers of turns stay."""
    whole = Shape()
    lengths = (max(1, round(n * factor)) for n in (whole.first, whole.added, whole.output))
    return Shape(*lengths)


def conversations(shape: Shape, users: int) -> list[Conversation]:
    """New ones for each user; who has how many turns is the same in every run."""
    turns = random.Random(0)
    return [
        Conversation(
            random_prompt(0),
            [
                random_prompt(shape.added if turn else shape.first)
                for turn in range(turns.randint(shape.fewest, shape.most))
            ],
            shape.output,
        )
        for _ in range(users)
    ]


def run(
    config: EngineConfig, shape: Shape, *, concurrencies: Sequence[int], progress: Progress
) -> Report:
    """All conversations of each concurrency, once."""
    taken: dict[int, Played] = {}
    with launch_plan(config) as plan:
        progress("loading the engine")
        with measured_engine(plan) as engine:
            for users in concurrencies:
                taken[users] = play(engine, conversations(shape, users), lockstep=False)
                progress(f"concurrency {users}: {taken[users].seconds:.1f} s")
    rows = [row for users, played in taken.items() for row in _rows(users, played)]
    notes = {
        "agentic": f"first turn {shape.first} tokens, then +{shape.added}, {shape.fewest} to "
        f"{shape.most} turns, {shape.output} decoded; weights: {config.load}",
        "tps/user": "1000 / TPOT in ms",
        "tps/gpu": "tokens of prompts, cached ones included, and of answers, in a second",
    }
    samples = {f"seconds {users}": [played.seconds] for users, played in taken.items()}
    points = [
        Point(
            concurrency=users,
            per_user=round(tokens_per_user(played.answers), 3),
            per_device=round(played.tokens_s, 3),
        )
        for users, played in taken.items()
    ]
    return new_report("ts bench agentic", config.model, rows, samples, notes, points)


def _rows(users: int, played: Played) -> list[Row]:
    figures = (
        ("tps/user", "tokens/s", tokens_per_user(played.answers)),
        ("tps/gpu", "tokens/s", played.tokens_s),
        ("hit rate", "%", played.hit_rate * 100),
        ("tokens per iteration", "tokens", played.tokens_per_iteration),
    )
    return [
        Row(what=f"{what}, concurrency {users}", unit=unit, ours=round(value, 3))
        for what, unit, value in figures
    ]
