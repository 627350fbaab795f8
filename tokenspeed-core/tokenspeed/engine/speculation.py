# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Lossless speculation: guesses at what requests say next, verified in one step.

Leviathan et al., 2023, arXiv:2211.17192, with the test that this engine's draws allow: the token at
a position follows from logits, seed and position alone, so a step draws behind every guess, and a
guess was right if it is what was drawn before it. What comes out is what would have come out
anyway, sampled or not.

A guess follows the last token, so a step with guesses is planned when the step before it has ended;
the loop waits for that only while there is something to guess.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.messages import Guessed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed_sdk.contracts.drafter import Drafter

    from tokenspeed._scheduler import Plan, Scheduler, Updates
    from tokenspeed.engine.grammar import Grammars
    from tokenspeed.messages import Submit

log = logging.getLogger(__name__)

SMOOTHING = 0.2
"""Weight of the last verified row in a request's share of right guesses."""

REACH = 2
"""A row is given so many times the guesses that are right in a row on average: a guess too many
costs a small part of the step that one too few costs."""

HOPED = 0.7
"""The share that a new request is taken to have."""

WORTH = 0.3
"""A share below which a guess costs more than it gains; the request then guesses one token."""

REST = 32
"""Tokens for which a request that is not worth guessing for, at one token, is left alone."""


@dataclass
class Guesses:
    """What is known of one request's guesses.

    Attributes:
        prompt, namespace: of the request, until its first token; then the drafter has them.
        share: of those that were right, lately.
        given: how many the next step verifies.
        rest: tokens to go until it is guessed for again.
        drafted, accepted: all so far.
    """

    prompt: bytes = b""
    namespace: int = 0
    share: float = HOPED
    given: int = 0
    rest: int = 0
    drafted: int = 0
    accepted: int = 0

    def wanted(self, most: int) -> int:
        """REACH times those that stand in front of a wrong one on average, 1 / (1 - share); and
        that one."""
        if self.rest:
            return 0
        return min(most, 1 + round(REACH / max(1 - self.share, 1e-3)))

    def settle(self, tokens: int) -> None:
        """A step returned so many tokens, the last of which is no guess; or the request is over."""
        self.rest = max(0, self.rest - tokens)
        given, self.given = self.given, 0
        if not given or not tokens:
            return
        right = min(tokens - 1, given)
        self.drafted += given
        self.accepted += right
        self.share += SMOOTHING * (right / given - self.share)
        if self.share < WORTH:
            self.rest, self.share = REST, WORTH


class Speculation:
    """All requests that may be guessed for.

    Attributes:
        waits: whether the next step is planned behind the one in flight, for there are guesses.
        drafted, accepted: guesses that were verified, and those that were right.
    """

    def __init__(
        self,
        drafter: Drafter | None,
        most: int,
        vocab_size: int,
        *,
        known: bool = True,
        penalties: bool = False,
    ) -> None:
        """Args:
        most: guesses of a row.
        known: whether guesses are known when a step is planned. Else no request with a grammar is
            guessed for: its masks are made then, one behind each guess.
        penalties: whether steps count guesses. Else no request with penalties is guessed for:
            there, each token changes how likely the next are.
        """
        self._known = known
        self._penalties = penalties
        self._drafter = drafter
        self._vocab_size = vocab_size
        self._most = most
        self._requests: dict[int, Guesses] = {}
        self.waits = False
        self.drafted = 0
        self.accepted = 0
        self._found: list[tuple[int, int, np.ndarray]] = []
        self._verified: list[Guessed] = []

    def begin(self, submit: Submit) -> None:
        """The scheduler took a request."""
        if self._drafter is None:
            return
        if submit.sampling.penalizes and not self._penalties:
            return
        if submit.grammar and not self._known:
            return
        self._requests[submit.request] = Guesses(submit.tokens, submit.namespace)

    def advance(self, updates: Updates, grammars: Grammars) -> None:
        """Follow what was told of all requests, and look whether there is something to guess.

        ``grammars``: of requests; they followed the updates.
        """
        if self._drafter is None or not self._requests or not len(updates):
            return
        try:
            self._advance(self._drafter, updates)
            self._found = self._guess(self._drafter, grammars)
            self.waits = any(count for _, count, _ in self._found)
        except Exception:
            self._give_up()

    def _advance(self, drafter: Drafter, updates: Updates) -> None:
        starts = updates.token_start.tolist()
        for i, request in enumerate(updates.request.tolist()):
            guesses, count = self._requests.get(request), starts[i + 1] - starts[i]
            if guesses is None:
                continue
            if guesses.prompt and count:  # before, there is nothing to guess, and it may queue long
                prompt = np.frombuffer(guesses.prompt, np.int32)
                drafter.begin(request, prompt, namespace=guesses.namespace)
                guesses.prompt = b""
            self._settle(request, guesses, count)
        drafter.advance(updates.request, updates.token_start, updates.tokens)
        for request, _ in updates.ended():
            over = self._requests.pop(request, None)
            if over is not None and not over.prompt:
                drafter.end(request)

    def _settle(self, request: int, guesses: Guesses, tokens: int) -> None:
        drafted, accepted = guesses.drafted, guesses.accepted
        guesses.settle(tokens)
        drafted, accepted = guesses.drafted - drafted, guesses.accepted - accepted
        if drafted:
            self._verified.append(Guessed(request, drafted, accepted))
            self.drafted += drafted
            self.accepted += accepted

    def take_verified(self) -> list[Guessed]:
        """By request, what was verified since the last call."""
        verified, self._verified = self._verified, []
        return verified

    def propose(self, scheduler: Scheduler) -> None:
        """Give the next plan its guesses; nothing is in flight, so they follow the last tokens."""
        if not self.waits:
            return
        self.waits = False
        for request, count, tokens in self._found:
            if count and scheduler.set_drafts(request, tokens[:count]):
                self.waits = True

    def _give_up(self) -> None:
        """A drafter that raises guesses no more; nobody's answer needs it."""
        kind = type(self._drafter)
        log.exception(
            "the drafter %s.%s failed and is left out until the next start; leave --drafter out, "
            "or tell its author", kind.__module__, kind.__qualname__,
        )  # fmt: skip
        self._drafter, self.waits = None, False

    def planned(self, plan: Plan, host: Mapping[str, np.ndarray]) -> None:
        """A step was planned into ``host``: note how many guesses it had room for."""
        if not self.waits:
            return
        rows = plan.num_decode_rows
        counts = np.diff(host["row_query_start"][: rows + 1]) - 1
        for request, count in zip(
            host["row_request"][:rows].tolist(), counts.tolist(), strict=True
        ):
            if count:
                self._requests[request].given = count

    def _guess(self, drafter: Drafter, grammars: Grammars) -> list[tuple[int, int, np.ndarray]]:
        """(request, how many, guesses), as far as its grammar lets them follow."""
        wanted = {r: g.wanted(self._most) for r, g in self._requests.items() if not g.prompt}
        asked = [request for request, count in wanted.items() if count]
        if not asked:
            return []
        tokens = np.zeros((len(asked), self._most), np.int32)
        most = np.array([wanted[request] for request in asked], np.int32)
        found = np.clip(drafter.draft(np.array(asked, np.uint64), most, tokens), 0, most)
        # A stranger's guess may be no token, and the model would look it up.
        inside = (tokens >= 0) & (tokens < self._vocab_size)
        found = np.minimum(found, np.logical_and.accumulate(inside, 1).sum(1))
        return [
            (request, grammars.count_allowed(request, guesses[:count]), guesses)
            for request, count, guesses in zip(asked, found.tolist(), tokens, strict=True)
        ]
