# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Random traffic: requests come and share prefixes; half of them are aborted midway."""

from __future__ import annotations

import random

from harness import Answer, submit
from tokenspeed._scheduler import Finish
from tokenspeed.messages import EngineInput

VOCABULARY = 97
STEMS = 4
ABORTED_SHARE = 1 / 2


class Churn:
    """A script for a mailbox.

    Attributes:
        kept: requests that are never aborted.
        asked: prompt and answer length of each request.
    """

    def __init__(self, *, seed: int, steps: int, most: int = 12, longest: int = 60) -> None:
        """At most ``most`` requests alive at once; prompt and answer up to ``longest`` each."""
        self._random = random.Random(seed)
        self._steps = steps
        self._most = most
        self._longest = longest
        self._stems = [self._tokens(longest // 2) for _ in range(STEMS)]
        self._alive: dict[int, int] = {}  # request -> step at which it is aborted, or 0
        self._count = 0
        self.kept: set[int] = set()
        self.asked: dict[int, tuple[list[int], int]] = {}

    def script(self, step: int, answers: dict[int, Answer]) -> EngineInput | None:
        """What the front says before a step."""
        over = [r for r in self._alive if r in answers and answers[r].finish != Finish.NONE]
        for request in over:
            del self._alive[request]
        if step >= self._steps:
            return EngineInput() if self._alive else None
        aborts = [request for request, at in self._alive.items() if at == step]
        submits = []
        while len(self._alive) < self._most and self._random.random() < 0.5:
            self._count += 1
            doomed = self._random.random() < ABORTED_SHARE
            self._alive[self._count] = step + self._random.randint(1, 40) if doomed else 0
            if not doomed:
                self.kept.add(self._count)
            self.asked[self._count] = self._prompt(), self._random.randint(1, self._longest)
            submits.append(submit(self._count, *self.asked[self._count]))
        return EngineInput(submits=submits, aborts=aborts)

    def _prompt(self) -> list[int]:
        stem = self._random.choice(self._stems) if self._random.random() < 0.5 else []
        return stem + self._tokens(self._random.randint(1, self._longest - len(stem)))

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(VOCABULARY) for _ in range(count)]
