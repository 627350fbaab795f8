# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""One observer on a thread of its own, behind a bounded queue: it can only harm itself."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.observer import Event

log = logging.getLogger(__name__)

QUEUE_EVENTS = 8192
"""Events that may wait for an observer: about a second of a busy server."""
MAX_ERRORS = 10
"""So many hooks may raise before the observer is switched off."""


class Delivery:
    """Takes events without waiting, and gives them to an observer one by one.

    Attributes:
        name, owner: of the observer; the owner is a distribution with its version.
        hooks: the hooks that it has, by name; other events are not taken.
        dropped: events that came while the queue was full.
        errors: hooks that raised.
        enabled: whether it still gets events.
    """

    def __init__(
        self,
        name: str,
        owner: str,
        hooks: Mapping[str, Callable[[Any], object]],
        close: Callable[[], object] | None = None,
    ) -> None:
        """``hooks`` and ``close`` are the observer's code; its thread alone runs it."""
        self.name = name
        self.owner = owner
        self.hooks = hooks
        self.dropped = 0
        self.errors = 0
        self.enabled = True
        self._close = close
        self._queue: queue.Queue[Event | None] = queue.Queue(QUEUE_EVENTS)
        self._thread = threading.Thread(target=self._run, name=f"observer {name}", daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        """Take an event, or count it as dropped. Never waits."""
        if not self.enabled or event.hook not in self.hooks:
            return
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            if self.dropped == 0:
                log.warning(
                    "observer %s of %s is too slow: events are dropped for it, and counted in "
                    "tokenspeed_observer_dropped_events_total",
                    *(self.name, self.owner),
                )
            self.dropped += 1

    def end(self, deadline: float) -> None:
        """After what is queued, no more events come; ``deadline`` is of the monotonic clock."""
        try:
            self._queue.put(None, timeout=max(deadline - time.monotonic(), 0.001))
        except queue.Full:
            log.warning("observer %s of %s does not take its events", self.name, self.owner)

    def join(self, deadline: float) -> None:
        """Wait for its end up to the deadline; then it is left behind."""
        self._thread.join(max(deadline - time.monotonic(), 0))
        if self._thread.is_alive():
            log.warning("observer %s of %s did not close in time", self.name, self.owner)

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            if self.enabled:
                self._call(event.hook, self.hooks[event.hook], event)
        if self._close is not None:
            self._call("close", self._close)

    def _call(self, what: str, code: Callable[..., object], *arguments: Event) -> None:
        """Run the observer's code; all that it raises ends here."""
        try:
            code(*arguments)
        except BaseException as error:  # SystemExit would end the thread without a word
            self.errors += 1
            if self.errors == 1:
                log.exception(
                    "observer %s of %s raised in %s; further errors are only counted",
                    *(self.name, self.owner, what),
                )
            if self.errors == MAX_ERRORS:
                self.enabled = False
                log.error(
                    "observer %s of %s raised %d times and is switched off; the last: %r; "
                    "report it to its authors",
                    *(self.name, self.owner, MAX_ERRORS, error),
                )
