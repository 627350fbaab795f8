# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Conversations whose turns come back: each prompt is the one before, its answer, and more."""

from __future__ import annotations

import random

from harness import Answer, submit
from tokenspeed._scheduler import Finish
from tokenspeed.messages import EngineInput

VOCABULARY = 97


class Conversations:
    """A script for a mailbox: ``most`` conversations at a time have a turn in the engine.

    Attributes:
        prompts: of every turn that was asked, by request.
    """

    def __init__(
        self, *, seed: int, number: int, turns: int, first: int, more: int, answer: int, most: int
    ) -> None:
        """``first`` and ``more`` are the tokens of the first and of each further message."""
        luck = random.Random(seed)
        self._turns, self._answer, self._most = turns, answer, most
        # Of every turn, whoever is answered first.
        self._messages = [
            [luck.randrange(VOCABULARY) for _ in range(more if request % turns else first)]
            for request in range(number * turns)
        ]
        self._next = self._messages[::turns]
        self._alive: set[int] = set()
        self.prompts: dict[int, list[int]] = {}

    def script(self, step: int, answers: dict[int, Answer]) -> EngineInput | None:
        """What the front says before a step."""
        for request in sorted(self._alive):
            answer = answers.get(request, Answer())
            if answer.finish != Finish.NONE:
                self._alive.remove(request)
                if (request + 1) % self._turns:
                    told = [*self.prompts[request], *answer.tokens, *self._messages[request + 1]]
                    self._next[request // self._turns] = told
        if not self._alive and len(self.prompts) == len(self._messages):
            return None
        submits = []
        while len(self._alive) < self._most and (ready := self._ready()):
            request = ready[0]  # whoever waits longest: round and round
            self.prompts[request] = self._next[request // self._turns]
            self._alive.add(request)
            submits.append(submit(request, self.prompts[request], self._answer))
        return EngineInput(submits=submits)

    def _ready(self) -> list[int]:
        """The next turn of each conversation that has none in the engine, earlier turns first."""
        ready = []
        for conversation in range(len(self._next)):
            turns = range(conversation * self._turns, (conversation + 1) * self._turns)
            left = [request for request in turns if request not in self.prompts]
            if left and not self._alive.intersection(turns):
                ready.append((left[0] - turns.start, conversation, left[0]))
        return [request for _, _, request in sorted(ready)]
