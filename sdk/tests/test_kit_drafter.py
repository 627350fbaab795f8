# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The kit finds faults of drafters, and lets a sound one pass."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tokenspeed_sdk.contracts.drafter import DrafterLimits
from tokenspeed_sdk.testing.drafter.story import LIMITS
from tokenspeed_sdk.testing.drafter.suite import CHECKS, opener

pytestmark = pytest.mark.rule("R19")


class Follower:
    """Guesses that the last token is followed by what followed it the last time: sound."""

    name = "follower"

    def open(self, limits: DrafterLimits) -> Follower:
        assert limits == LIMITS
        drafter = type(self)()
        drafter.texts = {}
        return drafter

    texts: dict[int, list[int]]

    def begin(self, request: int, prompt: Any, *, namespace: int) -> None:
        self.texts[request] = prompt.tolist()

    def advance(self, request: Any, token_start: Any, tokens: Any) -> None:
        for i, name in enumerate(request.tolist()):
            if name in self.texts:
                self.texts[name] += tokens[token_start[i] : token_start[i + 1]].tolist()

    def draft(self, request: Any, most: Any, tokens: Any) -> Any:
        counts = np.zeros(len(request), np.int32)
        for i, name in enumerate(request.tolist()):
            guess = self.guess(self.texts.get(name, []), int(most[i]))
            tokens[i, : len(guess)] = guess
            counts[i] = len(guess)
        return counts

    def guess(self, text: list[int], most: int) -> list[int]:
        for place in range(len(text) - 1, 0, -1):
            if text[place - 1] == text[-1]:
                return text[place : place + most]
        return []

    def end(self, request: int) -> None:
        self.texts.pop(request, None)


@pytest.mark.parametrize("check", CHECKS)
def test_a_sound_drafter_passes(check: str) -> None:
    CHECKS[check](opener(Follower))


def never(self: Follower, text: list[int], most: int) -> list[int]:
    return []


def too_many(self: Follower, text: list[int], most: int) -> list[int]:
    return [1] * min(most + 1, LIMITS.most)


def no_tokens(self: Follower, text: list[int], most: int) -> list[int]:
    return [LIMITS.vocabulary] * most


def of_long_counts(self: Follower, request: Any, most: Any, tokens: Any) -> Any:
    return Follower.draft(self, request, most, tokens).astype(np.int64)


ORDER = itertools.count()


def by_chance(self: Follower, text: list[int], most: int) -> list[int]:
    return [next(ORDER) % 7] * most


def asks_itself(self: Follower, text: list[int], most: int) -> list[int]:
    """Takes its guess for what came."""
    guess = Follower.guess(self, text, most)
    text += guess
    return guess


class Gossip(Follower):
    """Guesses of all texts, whosever they are."""

    def guess(self, text: list[int], most: int) -> list[int]:
        return Follower.guess(self, [t for each in self.texts.values() for t in each], most)


class Keeper(Follower):
    """Knows ended requests still."""

    def end(self, request: int) -> None:
        pass


class Borrower(Follower):
    """Reads the caller's prompt later."""

    prompt: Any

    def begin(self, request: int, prompt: Any, *, namespace: int) -> None:
        super().begin(request, prompt, namespace=namespace)
        self.prompt = prompt

    def guess(self, text: list[int], most: int) -> list[int]:
        return super().guess(self.prompt.tolist() + text, most)


HELD = 1 << 18


class Hoarder(Follower):
    """Releases nothing, and takes pages that were nobody's: an allocator may have some to reuse."""

    def open(self, limits: DrafterLimits) -> Any:
        drafter: Any = super().open(limits)
        drafter.hoard = []
        return drafter

    def end(self, request: int) -> None:
        self.texts.pop(request, None)
        if request % 10 == 0:
            held = mmap.mmap(-1, HELD)
            held.write(b"x" * HELD)
            self.hoard.append(held)


class Sticky(Follower):
    """A request that begins anew goes on."""

    def begin(self, request: int, prompt: Any, *, namespace: int) -> None:
        self.texts[request] = self.texts.get(request, prompt.tolist())


class Small(Follower):
    """Has room for half of the requests."""

    def begin(self, request: int, prompt: Any, *, namespace: int) -> None:
        assert len(self.texts) < LIMITS.max_requests // 2, "no room"
        super().begin(request, prompt, namespace=namespace)


class Strict(Follower):
    """Does not pass over what it does not know."""

    def end(self, request: int) -> None:
        del self.texts[request]


def with_guess(guess: Callable[..., list[int]]) -> type[Follower]:
    return type("Odd", (Follower,), {"guess": guess})


FAULTS = [
    ("guesses", with_guess(never), "guesses nothing"),
    ("guesses", with_guess(too_many), "1 guesses where at most 0"),
    ("guesses", with_guess(no_tokens), "which is no token"),
    ("guesses", type("Odd", (Follower,), {"draft": of_long_counts}), "not int32"),
    ("deterministic", with_guess(by_chance), "told the same differ"),
    ("deterministic", with_guess(asks_itself), "asked again"),
    ("namespaces", Gossip, "another namespace"),
    ("unknown_requests", Keeper, "for a request that has ended"),
    ("begins_anew", Sticky, "remembers its first text"),
    ("arrays", Borrower, "keeps an array"),
    ("limits", Small, "no room"),
    ("memory", Hoarder, "MiB stayed"),
]


@pytest.mark.parametrize(("check", "drafter", "message"), FAULTS)
def test_faults_are_found(check: str, drafter: type[Follower], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        CHECKS[check](opener(drafter))


def test_an_unknown_request_must_be_passed_over() -> None:
    with pytest.raises(KeyError):
        CHECKS["unknown_requests"](opener(Strict))
