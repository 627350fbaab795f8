# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Finds stop strings in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text on, but holds back the longest suffix that could begin a stop string.

    Each stop string is an automaton over characters, so the result cannot depend on how the text
    was cut. The match that is complete first wins; of several at once, the longest.

    Attributes:
        matched: the stop string that was found; then nothing more may be pushed.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched: str | None = None
        self._automata = [_Automaton(stop) for stop in stops]
        self._held = ""

    def push(self, text: str) -> str:
        """The text that can be passed on: all before the match, or all that begins no stop."""
        pending = self._held + text
        for position, character in enumerate(text, start=len(self._held) + 1):
            complete = [a.stop for a in self._automata if a.advance(character)]
            if complete:
                self.matched = max(complete, key=len)
                self._held = ""
                return pending[: position - len(self.matched)]
        passed = len(pending) - max((a.state for a in self._automata), default=0)
        self._held = pending[passed:]
        return pending[:passed]

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """Knuth, Morris, Pratt: ``state`` is how much of the stop string the text now ends with."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.state = 0
        self._border = [0] * len(stop)
        for i in range(1, len(stop)):
            self._border[i] = self._next(self._border[i - 1], stop[i])

    def advance(self, character: str) -> bool:
        """Whether the text now ends with the whole stop string."""
        self.state = self._next(self.state, character)
        return self.state == len(self.stop)

    def _next(self, state: int, character: str) -> int:
        while state and self.stop[state] != character:
            state = self._border[state - 1]
        return state + (self.stop[state] == character)
