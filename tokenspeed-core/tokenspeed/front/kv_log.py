# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the engine's prefix cache holds, and how it came to that: a log with a bounded past.

    log = KvEventLog()
    log.append(output.kv_events)
    cursor, blocks = log.snapshot()
    batch = log.after(cursor)

Any number of readers, each with a cursor of its own: none of them makes the log longer.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tokenspeed.front.kv_residents import BlockEvent, Residents, engine_events

if TYPE_CHECKING:
    from tokenspeed.messages import KvEventColumns

MAX_BYTES = 16 << 20
"""Of batches that are kept, by estimate."""
BATCH_EVENTS = 512
"""More are split: sending a batch must not hold up the streams of tokens."""

_EVENT_BYTES = 300  # of an event without its tokens


class Batch(NamedTuple):
    """Events of one step, or a part of them. ``time``: seconds since the epoch."""

    number: int
    time: float
    events: list[BlockEvent]


class CursorLostError(Exception):
    """What follows the cursor is no longer kept, or never was said by this process."""


class KvEventLog:
    """Numbers batches one after the other; keeps the last ones, and all blocks that are resident.

    Attributes:
        number: of the last batch.
        news: set when the next batch comes; there is a new one from then on.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        """Numbers go on from the clock: cursors of an earlier process at this address lie before
        all that is kept, and are refused rather than misunderstood."""
        self.number = time.time_ns() // 1000
        self.news = asyncio.Event()
        self._max_bytes = max_bytes
        self._bytes = 0
        self._batches: deque[Batch] = deque()
        self._residents = Residents()

    def append(self, columns: KvEventColumns) -> None:
        """Take in what the engine says with one message."""
        told = [self._residents.apply(event) for event in engine_events(columns)]
        events = [event for event in told if event is not None]
        for start in range(0, len(events), BATCH_EVENTS):
            self.number += 1
            batch = Batch(self.number, time.time(), events[start : start + BATCH_EVENTS])
            self._batches.append(batch)
            self._bytes += _size(batch)
        while self._bytes > self._max_bytes and len(self._batches) > 1:
            self._bytes -= _size(self._batches.popleft())
        self.news.set()
        self.news = asyncio.Event()

    def after(self, cursor: int) -> Batch | None:
        """The batch that follows number ``cursor``; None when that is the last one so far."""
        if cursor == self.number:
            return None
        index = cursor + len(self._batches) - self.number
        if not 0 <= index < len(self._batches):
            raise CursorLostError
        return self._batches[index]

    def snapshot(self) -> tuple[int, list[BlockEvent]]:
        """(number of the last batch, what is resident after it: a STORED for each copy)."""
        return self.number, self._residents.stored()


def _size(batch: Batch) -> int:
    return len(batch.events) * _EVENT_BYTES + sum([len(event.tokens) for event in batch.events])
