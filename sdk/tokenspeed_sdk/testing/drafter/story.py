# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Requests that come, go on and end, and what a drafter guesses meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenspeed_sdk.contracts.drafter import DrafterLimits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenspeed_sdk.contracts.drafter import Drafter

LIMITS = DrafterLimits(
    max_requests=8, max_model_len=4096, most=5, vocabulary=500, pool_bytes=1 << 20
)
UNTOUCHED = -7
"""What stands in the array of guesses before a call."""

Guess = tuple[int, ...]


def ids(values: Iterable[int]) -> NDArray[np.int32]:
    return np.fromiter(values, np.int32)


def advance(drafter: Drafter, accepted: dict[int, list[int]], overwrite: bool = True) -> None:
    """Tell what was accepted of several requests; the arrays may be overwritten afterwards."""
    request = np.array([*accepted], np.uint64)
    start = ids(np.cumsum([0, *map(len, accepted.values())]))
    tokens = ids(token for each in accepted.values() for token in each)
    arrays: tuple[NDArray[Any], ...] = (request, start, tokens)
    before = [array.copy() for array in arrays]
    drafter.advance(request, start, tokens)
    for array, old in zip(arrays, before, strict=True):
        assert np.array_equal(array, old), "advance writes into what it is told"
        if overwrite:
            array[:] = 0


def draft(
    drafter: Drafter, most: dict[int, int], limits: DrafterLimits = LIMITS
) -> dict[int, Guess]:
    """Ask for several requests, and check the form of the answer."""
    request = np.array([*most], np.uint64)
    wanted = ids(most.values())
    tokens = np.full((len(most), limits.most), UNTOUCHED, np.int32)
    counts = drafter.draft(request, wanted, tokens)
    assert isinstance(counts, np.ndarray), f"draft answers {type(counts).__name__}, not an array"
    assert counts.dtype == np.int32, f"counts are {counts.dtype}, not int32"
    assert counts.shape == (len(most),), f"counts have shape {counts.shape}, not [{len(most)}]"
    assert wanted.tolist() == [*most.values()], "draft writes into most"
    assert request.tolist() == [*most], "draft writes into request"
    found = {}
    for row, (name, limit) in enumerate(most.items()):
        count = int(counts[row])
        assert 0 <= count <= limit, f"{count} guesses where at most {limit} were asked for"
        found[name] = tuple(tokens[row, :count].tolist())
        for token in found[name]:
            assert 0 <= token < limits.vocabulary, f"guesses {token}, which is no token"
    return found


def tell(
    drafter: Drafter,
    seed: int,
    counts: Callable[[int], bool] = lambda namespace: True,
    overwrite: bool = True,
) -> list[dict[int, Guess]]:
    """A hundred steps of requests in two namespaces, 0 and 1; all guesses on the way.

    Args:
        counts: the namespaces that the drafter hears of; the others' requests are kept from it.
        overwrite: arrays after the call that has them, as an engine does.
    """
    random = np.random.default_rng(seed)
    alive: dict[int, int] = {}
    guesses = []
    for step in range(100):
        if len(alive) < LIMITS.max_requests // 2:
            namespace = int(random.integers(2))
            prompt = ids(random.integers(0, 6, int(random.integers(1, 80))))
            alive[1000 + step] = namespace
            if counts(namespace):
                drafter.begin(1000 + step, prompt, namespace=namespace)
                if overwrite:
                    prompt[:] = 0
        most = {name: int(random.integers(LIMITS.most + 1)) for name in alive}
        told = {name: random.integers(0, 6, random.integers(4)).tolist() for name in alive}
        heard = [name for name, namespace in alive.items() if counts(namespace)]
        guesses.append(draft(drafter, {name: most[name] for name in heard}))
        advance(drafter, {name: told[name] for name in heard}, overwrite)
        if random.random() < 0.2:
            name = int(random.choice([*alive]))
            if counts(alive.pop(name)):
                drafter.end(name)
    return guesses
