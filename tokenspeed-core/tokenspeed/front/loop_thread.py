# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""An event loop for a program that has none, or whose own must not be blocked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines in a thread while its ``with`` block lasts."""

    def __enter__(self) -> LoopThread:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result; an interrupt here cancels it there."""
        future = self.submit(coroutine)
        try:
            return future.result()
        finally:
            future.cancel()

    def iterate(
        self, start: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]]
    ) -> Iterator[T]:
        """What a coroutine hands to its argument, as it comes; leaving the iterator cancels it."""
        items: SimpleQueue[tuple[T] | None] = SimpleQueue()
        future = self.submit(start(lambda item: items.put((item,))))
        future.add_done_callback(lambda _: items.put(None))
        try:
            while (item := items.get()) is not None:
                yield item[0]
            future.result()
        finally:
            future.cancel()
