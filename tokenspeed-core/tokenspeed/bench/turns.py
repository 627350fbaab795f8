# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Users who come back: each turn sends the whole conversation again, with some new tokens.

In lockstep all send a turn when the slowest answer of the turn before has ended, as a batch job
would; otherwise each user sends the next turn when the user's own answer has ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tokenspeed.bench.answers import Answer
    from tokenspeed.bench.engine import MeasuredEngine, Work

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class Conversation:
    """What one user does.

    Attributes:
        before: what was said before; empty for a new conversation.
        says: the new tokens of each turn.
        output: tokens of each answer.
    """

    before: Tokens
    says: Sequence[Tokens]
    output: int


@dataclass(frozen=True)
class Played:
    """All turns of all users.

    Attributes:
        seconds: from the first turn's submission to the last answer's end.
        by_user: each user's answers.
        work: what the engine did meanwhile.
    """

    seconds: float
    by_user: list[list[Answer]]
    work: Work

    @property
    def answers(self) -> list[Answer]:
        return [answer for answers in self.by_user for answer in answers]

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that the engine did not compute, by its own counters."""
        return self.work.cached_tokens / max(self.work.prompt_tokens, 1)

    @property
    def between_steps_s(self) -> float:
        """Seconds in which no step was on the device, as far as the engine's loop sees."""
        return self.seconds - self.work.busy_s

    @property
    def tokens_s(self) -> float:
        """Tokens of prompts, cached ones included, and of answers in a second."""
        tokens = sum(answer.prompt_tokens + answer.tokens for answer in self.answers)
        return tokens / self.seconds

    @property
    def tokens_per_iteration(self) -> float:
        """Tokens of a decode step for each sequence in it; above 1 if drafts are accepted."""
        return (self.work.output_tokens - len(self.answers)) / max(self.work.decode_rows, 1)


def play(
    engine: MeasuredEngine, conversations: Sequence[Conversation], *, lockstep: bool
) -> Played:
    """All turns of all users; in lockstep they must have equally many."""
    watched = engine.look()
    start = time.perf_counter()
    turns = _in_lockstep if lockstep else _freely
    by_user = engine.run(turns(engine, conversations))
    ended = max(answers[-1].ended for answers in by_user)
    return Played(ended - start, by_user, watched())


async def _freely(
    engine: MeasuredEngine, conversations: Sequence[Conversation]
) -> list[list[Answer]]:
    async def user(conversation: Conversation) -> list[Answer]:
        context, answers = conversation.before, []
        for new in conversation.says:
            prompt = np.concatenate([context, new])
            answers.append(await engine.ask(prompt, conversation.output))
            context = _with_answer(prompt, answers[-1])
        return answers

    return await asyncio.gather(*(user(conversation) for conversation in conversations))


async def _in_lockstep(
    engine: MeasuredEngine, conversations: Sequence[Conversation]
) -> list[list[Answer]]:
    contexts = [conversation.before for conversation in conversations]
    by_user: list[list[Answer]] = [[] for _ in conversations]
    for said in zip(*(conversation.says for conversation in conversations), strict=True):
        prompts = [np.concatenate(pair) for pair in zip(contexts, said, strict=True)]
        asked = (
            engine.ask(prompt, conversation.output)
            for prompt, conversation in zip(prompts, conversations, strict=True)
        )
        for user, answer in enumerate(await asyncio.gather(*asked)):
            by_user[user].append(answer)
            contexts[user] = _with_answer(prompts[user], answer)
    return by_user


def _with_answer(prompt: Tokens, answer: Answer) -> Tokens:
    return np.concatenate([prompt, np.asarray(answer.token_ids, np.int32)])
