# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Contract ``drafter``: guesses what requests say next, for the model to verify.

An entry point in ``tokenspeed.drafter`` is a zero-argument callable that returns a DrafterBackend.
Its module must be light: what is heavy is imported by ``open``.

    drafter = backend.open(limits)                # once in an engine
    drafter.begin(7, prompt, namespace=0)
    count = drafter.draft(request, most, tokens)  # every step, for the rows that decode
    drafter.advance(request, token_start, tokens) # what the model said to it, and more
    drafter.end(7)

A guess costs time and never changes an answer: the model verifies every one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class DrafterLimits:
    """What the engine will ask for at most.

    Attributes:
        max_requests: alive at once.
        max_model_len: tokens of one request, prompt and answer.
        most: tokens of one guess: the K of ``draft``.
        vocabulary: token ids are below it.
        pool_bytes: host memory for what may outlive requests; 0: nothing may.
    """

    max_requests: int
    max_model_len: int
    most: int
    vocabulary: int
    pool_bytes: int


class Drafter(Protocol):
    """Guesses what requests say next. Lives in the engine's loop: every call is short, none blocks.

    Used by one thread. Arrays are the caller's own: nothing of them is kept after a call.
    """

    def begin(self, request: int, prompt: NDArray[np.int32], *, namespace: int) -> None:
        """A request [0, 2^64) comes, with its prompt [tokens]. One that is there begins anew.

        Nothing that was learnt in one namespace [0, 2^64) may show in a guess of another: a
        namespace may be a tenant.
        """

    def advance(
        self, request: NDArray[np.uint64], token_start: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> None:
        """Tokens that were accepted: of request i those from token_start[i] to token_start[i + 1].

        Unknown requests are passed over.
        """

    def draft(
        self, request: NDArray[np.uint64], most: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Guesses for each request, at most most[i], into the first entries of row i of tokens.

        Deterministic in what was told: ranks that are told the same guess the same. What stands in
        the rest of a row is of no account.

        Args:
            request: [n]. Unknown ones get no guess.
            most: [n], 0 to K.
            tokens: [n, K], written in place.

        Returns:
            How many guesses each row has, int32 [n].
        """

    def end(self, request: int) -> None:
        """The request is over, however it ended; its memory is released. Unknown: nothing."""


class DrafterBackend(Protocol):
    """One way to guess. An engine uses one."""

    @property
    def name(self) -> str:
        """As in the manifest."""

    def open(self, limits: DrafterLimits) -> Drafter:
        """Import what it needs and take its memory."""
