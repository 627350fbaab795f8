# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What one request gets from the engine, gathered while nobody reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tokenspeed.front.errors import RequestError
from tokenspeed.front.finish import Finish

if TYPE_CHECKING:
    from tokenspeed.front.logprobs import TokenLogprobs
    from tokenspeed.observe.events import RequestRecord


class Delta:
    """News of one sequence since the last look.

    Attributes:
        index: which of the request's n sequences.
        tokens: new token ids, a matched stop token included.
        stop_token: the stop id that matched, else -1.
        cached_tokens: prompt tokens that the engine did not compute.
        error: why the sequence failed.
        logprobs: of each token, in a request that asked; else empty.
        prompt_logprobs: of tokens of the prompt, by position, likewise.
    """

    __slots__ = (
        *("index", "tokens", "finish", "stop_token", "cached_tokens", "error"),
        *("logprobs", "prompt_logprobs"),
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.tokens: list[int] = []
        self.finish = Finish.NONE
        self.stop_token = -1
        self.cached_tokens = 0
        self.error: RequestError | None = None
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: dict[int, TokenLogprobs] = {}

    @property
    def is_about_the_answer(self) -> bool:
        """Whether it tells more than log-probabilities of the prompt."""
        return bool(self.tokens or self.finish != Finish.NONE or self.error)


class Stream:
    """The n sequences of one request. The client fills it, one reader empties it.

    Args:
        abort: stops a sequence, by its id.

    Attributes:
        record: where the request's progress is noted, if anywhere.
    """

    def __init__(
        self, abort: Callable[[int], None], ids: list[int], record: RequestRecord | None = None
    ) -> None:
        self.record = record
        self._abort = abort
        self._ids = ids
        self._news: dict[int, Delta] = {}
        self._arrived = asyncio.Event()
        self._failure: RequestError | None = None

    async def take(self) -> list[Delta]:
        """All news, one Delta a sequence; waits for some. Raises what the stream failed with."""
        while not self._news:
            if self._failure is not None:
                raise self._failure
            await self._arrived.wait()
        self._arrived.clear()
        news, self._news = self._news, {}
        return list(news.values())

    def news_of(self, index: int) -> Delta:
        """Where to add news of a sequence; wakes the reader."""
        self._arrived.set()
        delta = self._news.get(index)
        if delta is None:
            delta = self._news[index] = Delta(index)
        return delta

    def name_of(self, index: int) -> str:
        """A sequence, for people."""
        record = self.record
        request = "a request" if record is None else f"request {record.number} {record.request_id}"
        return f"{request} (sequence {index + 1} of {len(self._ids)})"

    def fail(self, error: RequestError) -> None:
        """End the stream, after the news that it has."""
        self._failure = error
        self._arrived.set()

    def abort(self, index: int) -> None:
        """Stop one sequence; nothing more comes of it."""
        self._abort(self._ids[index])

    def close(self) -> None:
        """Stop all sequences that still run."""
        for request in self._ids:
            self._abort(request)
