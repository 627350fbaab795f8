# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Users who come back: each turn sends the whole conversation again, with some new tokens.

Each user has a history of its own. In lockstep all send a turn when the slowest answer of the turn
before has ended, as a batch job would; otherwise each sends its next turn when its own answer has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenspeed.bench.answers import Answer
from tokenspeed.bench.engine import MeasuredEngine, Work
from tokenspeed.bench.floors import Turns
from tokenspeed.bench.prompts import random_prompt

TURNS = Turns(users=8, history=24 * 1024, turns=6, added=512, output=128)


@dataclass(frozen=True)
class Played:
    """All turns of all users.

    Attributes:
        seconds: from the first turn's submission to the last answer's end.
        turns: turn -> the answers of its users.
        work: what the engine did meanwhile.
    """

    seconds: float
    turns: list[list[Answer]]
    work: Work

    @property
    def answers(self) -> list[Answer]:
        return [answer for turn in self.turns for answer in turn]

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that the engine did not compute, by its own counters."""
        return self.work.cached_tokens / max(self.work.prompt_tokens, 1)

    @property
    def between_steps_s(self) -> float:
        """Seconds in which no step was on the device, as far as the engine's loop sees."""
        return self.seconds - self.work.busy_s


def histories(engine: MeasuredEngine, work: Turns) -> list[NDArray[np.int32]]:
    """One for each user, computed and cached."""
    made = [random_prompt(work.history) for _ in range(work.users)]
    engine.answers(made, 1)
    return made


def play(
    engine: MeasuredEngine, work: Turns, begun: Sequence[NDArray[np.int32]], *, lockstep: bool
) -> Played:
    """All turns after the histories; what the users say is new each time."""
    watched = engine.look()
    start = time.perf_counter()
    added = [[random_prompt(work.added) for _ in range(work.turns)] for _ in begun]
    run = _in_lockstep if lockstep else _freely
    by_user = engine.run(run(engine, work, begun, added))
    ended = max(answers[-1].ended for answers in by_user)
    turns = [list(turn) for turn in zip(*by_user, strict=True)]
    return Played(ended - start, turns, watched())


async def _freely(
    engine: MeasuredEngine,
    work: Turns,
    begun: Sequence[NDArray[np.int32]],
    added: Sequence[Sequence[NDArray[np.int32]]],
) -> list[list[Answer]]:
    async def user(history: NDArray[np.int32], says: Sequence[NDArray[np.int32]]) -> list[Answer]:
        answers = []
        for new in says:
            prompt = np.concatenate([history, new])
            answers.append(await engine.ask(prompt, work.output))
            history = _with_answer(prompt, answers[-1])
        return answers

    return await asyncio.gather(*(user(*each) for each in zip(begun, added, strict=True)))


async def _in_lockstep(
    engine: MeasuredEngine,
    work: Turns,
    begun: Sequence[NDArray[np.int32]],
    added: Sequence[Sequence[NDArray[np.int32]]],
) -> list[list[Answer]]:
    conversations = list(begun)
    by_user: list[list[Answer]] = [[] for _ in begun]
    for turn in range(work.turns):
        prompts = [np.concatenate([c, added[i][turn]]) for i, c in enumerate(conversations)]
        answers = await asyncio.gather(*(engine.ask(prompt, work.output) for prompt in prompts))
        for user, answer in enumerate(answers):
            by_user[user].append(answer)
            conversations[user] = _with_answer(prompts[user], answer)
    return by_user


def _with_answer(prompt: NDArray[np.int32], answer: Answer) -> NDArray[np.int32]:
    return np.concatenate([prompt, np.asarray(answer.token_ids, np.int32)])
