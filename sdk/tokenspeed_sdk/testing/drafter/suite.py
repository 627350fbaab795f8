# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The conformance suite of contract ``drafter``: one line in a test file of the author.

from acme_drafter import Acme
from tokenspeed_sdk.testing import drafter_conformance

test_acme = drafter_conformance(Acme)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import pytest

from tokenspeed_sdk.testing.drafter.story import LIMITS, advance, draft, ids, tell

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.drafter import Drafter, DrafterBackend

SLACK = 24 << 20
"""Bytes that a process may gain beside what the pool may have."""

Open: TypeAlias = Callable[[], "Drafter"]
Check: TypeAlias = Callable[[Open], None]
"""Gets what opens a new drafter. AssertionError says what is wrong."""


def check_guesses(new: Open) -> None:
    """Of a text that repeats itself it guesses something, and never more than it was asked for."""
    drafter = new()
    drafter.begin(1, ids([*range(20)] * 6), namespace=0)
    guesses = 0
    for step in range(20):
        guesses += len(draft(drafter, {1: LIMITS.most})[1])
        assert draft(drafter, {1: 0})[1] == ()
        advance(drafter, {1: [step]})
    assert guesses, "it guesses nothing of a text that repeats itself"
    assert draft(drafter, {}) == {}
    advance(drafter, {})


def check_deterministic(new: Open) -> None:
    """Two that are told the same guess the same, and asking alone changes nothing."""
    for seed in range(3):
        told = tell(new(), seed)
        assert told == tell(new(), seed), "two drafters that were told the same differ"
    drafter = new()
    drafter.begin(1, ids([*range(9)] * 4), namespace=0)
    asked = [draft(drafter, {1: LIMITS.most}) for _ in range(3)]
    assert asked[0] == asked[1] == asked[2], "asked again, it guesses something else"


def check_namespaces(new: Open) -> None:
    """What is told in one namespace shows in no guess of another."""
    for seed in range(3):
        alone = tell(new(), seed, counts=lambda namespace: namespace == 1)
        beside = tell(new(), seed)
        for short, long in zip(alone, beside, strict=True):
            for name, guess in short.items():
                assert long[name] == guess, "a guess depends on another namespace's requests"


def check_arrays(new: Open) -> None:
    """They are the caller's own, who writes something else into them after the call."""
    for seed in range(3):
        kept = tell(new(), seed, overwrite=False)
        assert kept == tell(new(), seed), "it keeps an array, which the caller overwrites"


def check_unknown_requests(new: Open) -> None:
    """They get no guess, and hurt nobody beside them."""
    drafter, other = new(), new()
    for each in (drafter, other):
        each.begin(1, ids([*range(9)] * 4), namespace=0)
    drafter.end(77)
    advance(drafter, {77: [1, 2], 1: [0, 1, 2], 2**64 - 1: [3]})
    advance(other, {1: [0, 1, 2]})
    guesses = draft(drafter, {77: LIMITS.most, 1: LIMITS.most, 2**64 - 1: LIMITS.most})
    assert guesses[77] == guesses[2**64 - 1] == (), "it guesses for a request that it does not know"
    assert guesses[1] == draft(other, {1: LIMITS.most})[1], "unknown requests change a guess"
    drafter.end(1)
    assert draft(drafter, {1: LIMITS.most})[1] == (), "it guesses for a request that has ended"


def check_begins_anew(new: Open) -> None:
    """A request that is there already forgets what it was."""
    drafter, other = new(), new()
    drafter.begin(1, ids([*range(100, 109)] * 4), namespace=0)
    for each in (drafter, other):
        each.begin(1, ids([*range(9)] * 4), namespace=0)
        advance(each, {1: [0, 1, 2]})
    asked = [draft(each, {1: LIMITS.most}) for each in (drafter, other)]
    assert asked[0] == asked[1], "a request that began anew remembers its first text"


def check_limits(new: Open) -> None:
    """All requests at once, each up to its last token, with ids and namespaces of any size."""
    drafter = new()
    names = [2**64 - 1 - i for i in range(LIMITS.max_requests)]
    prompt = ids(token % LIMITS.vocabulary for token in range(LIMITS.max_model_len - 20))
    for name in names:
        drafter.begin(name, prompt, namespace=name)
    for step in range(20):
        draft(drafter, dict.fromkeys(names, LIMITS.most))
        advance(drafter, {name: [(step * 7) % LIMITS.vocabulary] for name in names})
    draft(drafter, dict.fromkeys(names, LIMITS.most))
    for name in names:
        drafter.end(name)


def check_memory(new: Open) -> None:
    """What requests held is released when they end; what is kept has its bound."""
    drafter = new()
    prompt = ids(token % LIMITS.vocabulary for token in range(LIMITS.max_model_len // 2))
    answer = [*reversed(prompt.tolist())]
    drafter.begin(1, prompt, namespace=0)
    drafter.end(1)
    before = _resident()
    for name in range(4000):
        drafter.begin(name, prompt, namespace=name % 5)
        if name % 10 == 0:
            advance(drafter, {name: answer})
        drafter.end(name)
    grown = _resident() - before
    assert grown <= LIMITS.pool_bytes + SLACK, (
        f"4000 requests have come and gone, and {grown >> 20} MiB stayed"
    )


CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        check.__name__.removeprefix("check_"): check
        for check in (
            check_guesses,
            check_deterministic,
            check_namespaces,
            check_arrays,
            check_unknown_requests,
            check_begins_anew,
            check_limits,
            check_memory,
        )
    }
)
"""All that a drafter must pass, by the name that pytest shows."""


def drafter_conformance(factory: Callable[[], DrafterBackend]) -> Callable[..., None]:
    """A parametrised test of a drafter.

    Assign it to a name that starts with ``test_``. Each check is a test of its own:
    ``test_acme[namespaces]``.

    Args:
        factory: what the entry point in ``tokenspeed.drafter`` names.
    """

    @pytest.mark.parametrize("check", list(CHECKS))
    def test(check: str) -> None:
        CHECKS[check](opener(factory))

    return test


def opener(factory: Callable[[], DrafterBackend]) -> Open:
    """Opens drafters of a backend, which must have a name."""
    backend = factory()
    assert isinstance(backend.name, str), "a drafter has a name"
    assert backend.name, "a drafter has a name"
    return lambda: backend.open(LIMITS)


def _resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.exists() else 0
