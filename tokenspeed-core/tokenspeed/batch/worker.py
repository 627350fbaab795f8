# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The asking side of a batch on a thread of its own: the main one watches servers and signals."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any


class Worker:
    """Runs one coroutine to its end.

    with Worker(work) as worker:
        while not worker.done(): ...

    Left early, the work is cancelled and waited for. Left after its end, its error is raised.

    Attributes:
        on_look: called whenever somebody asks whether it is done.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.on_look: Callable[[], None] = lambda: None
        self._work = work
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="batch")

    def __enter__(self) -> Worker:
        self._thread.start()
        self._begun.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._ended.is_set() and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def done(self) -> bool:
        """Whether it ended, well or not."""
        self.on_look()
        return self._ended.is_set()

    def wait(self, seconds: float) -> None:
        """Until it ended, so long at most."""
        self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main())
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # raised where the block is left
            self._error = error
        finally:
            self._begun.set()
            self._ended.set()

    async def _main(self) -> None:
        self._task = asyncio.current_task()
        self._begun.set()
        await self._work()
