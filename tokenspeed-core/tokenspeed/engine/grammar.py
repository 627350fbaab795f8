# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Grammars of requests in the engine: loaded beside the loop, followed token by token.

The mask of step t depends on the token of step t-1, while step t is launched before that token is
known. So a step with masked rows is launched in two parts: its forward pass when it is planned, its
sampling once step t-1 is committed and the masks are filled; the device is busy meanwhile. What a
sequence has produced is what the scheduler says of it, so retraction, abort and late tokens need no
thought here: the state survives them.

Where guesses are verified, a row has a mask behind each of them: its matcher goes ahead as if they
had come, and back.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from tokenspeed_sdk.contracts.grammar import GrammarError

from tokenspeed.config import MOST_DRAFTS
from tokenspeed.plugins.load.plugin_code import as_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed_sdk.contracts.grammar import Grammar, GrammarLibrary, Matcher

    from tokenspeed._scheduler import Plan, Updates
    from tokenspeed.engine.buffers import StepBuffers
    from tokenspeed.messages import NewGrammar, Submit, Thinking

log = logging.getLogger(__name__)

NO_TOKEN = "its grammar lets no token follow what the model has written"


@dataclass
class Loading:
    """A grammar on its way.

    Attributes:
        made: what came of it: the grammar, or why there is none; None while it loads.
    """

    made: Grammar | str | None = None


class GrammarLoader:
    """Loads grammars on a thread of its own: opening a backend takes seconds, a grammar
    milliseconds. The thread starts with the first grammar."""

    def __init__(self, library: Callable[[str], GrammarLibrary]) -> None:
        """``library``: opens a backend by name. GrammarError."""
        self._library = library
        self._asked: queue.SimpleQueue[tuple[NewGrammar, Loading]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def load(self, new: NewGrammar) -> Loading:
        """Begin to load it."""
        loading = Loading()
        self._asked.put((new, loading))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="grammars", daemon=True)
            self._thread.start()
        return loading

    def _run(self) -> None:
        while True:
            new, loading = self._asked.get()
            try:
                loading.made = self._library(new.backend).load(new.data)
            except BaseException as raised:
                error = as_failure(raised, f"grammar backend {new.backend}")
                log.warning("a grammar of %s cannot be loaded", new.backend, exc_info=error)
                loading.made = f"{type(error).__name__}: {error}"


class AfterThinking:
    """A matcher whose grammar begins when the model has thought, if it begins to.

    While it thinks everything may come but the end of the answer.
    """

    def __init__(self, matcher: Matcher, thinking: Thinking) -> None:
        self._matcher = matcher
        self._thinking = thinking
        self._thinks = thinking.begun
        self._may_begin = not thinking.begun
        self._before: deque[tuple[bool, bool, bool]] = deque(maxlen=MOST_DRAFTS)

    def fill(self, mask: np.ndarray) -> None:
        if self._thinks:
            mask[:] = -1
            for token in self._thinking.end_ids:
                mask[token // 32] &= ~_bit(token)
            return
        self._matcher.fill(mask)
        if self._may_begin:
            mask[self._thinking.begin // 32] |= _bit(self._thinking.begin)

    def accept(self, token: int) -> bool:
        before, begins = (self._thinks, self._may_begin), token == self._thinking.begin
        is_of_answer = not (self._thinks or (self._may_begin and begins))
        if self._thinks:
            if token in self._thinking.end_ids:
                return False
            self._thinks = token != self._thinking.end
        elif not is_of_answer:
            self._thinks = True
        elif not self._matcher.accept(token):
            return False
        self._may_begin = False
        self._before.append((*before, is_of_answer))
        return True

    def rollback(self, tokens: int) -> None:
        """At most MOST_DRAFTS."""
        for _ in range(tokens):
            self._thinks, self._may_begin, was_of_answer = self._before.pop()
            self._matcher.rollback(int(was_of_answer))


def _bit(token: int) -> np.int32:
    """Of a token in its word of a mask."""
    return np.uint32(1 << token % 32).view(np.int32)


@dataclass
class Sequence:
    """A request that is held to a grammar.

    Attributes:
        failure: why it can go on no more; its next mask lets nothing through.
    """

    matcher: Matcher | AfterThinking
    failure: str | None = None

    def accept(self, tokens: list[int]) -> None:
        """Follow what was generated."""
        for token in tokens:
            if self.failure is not None:
                return
            try:
                if not self.matcher.accept(token):
                    self.failure = f"its grammar does not let token {token} follow"
            except BaseException as raised:
                self.failure = _fault(raised)

    def fill(self, masks: np.ndarray, guesses: list[int]) -> None:
        """Which tokens may come next, and which behind each of the guesses.

        None may after a failure, so that the row fails, and none behind a guess that may not come.

        Args:
            masks: [1 + guesses, words].
        """
        masks[:] = 0
        if self.failure is not None:
            return
        try:
            self.matcher.fill(masks[0])
        except BaseException as raised:
            self.failure = _fault(raised)
            masks[0] = 0
        else:
            self._go_ahead(guesses, masks[1:])

    def count_allowed(self, guesses: list[int]) -> int:
        """How many of them may follow, one after the other."""
        return 0 if self.failure is not None else self._go_ahead(guesses)

    def _go_ahead(self, guesses: list[int], masks: np.ndarray | None = None) -> int:
        """Take guesses as if they had come, as far as they may, fill the masks behind, and go back.

        A fault on the way is none yet: the guesses may be wrong. If not, it is met again.
        """
        taken = 0
        try:
            while taken < len(guesses) and self.matcher.accept(guesses[taken]):
                taken += 1
                if masks is not None:
                    self.matcher.fill(masks[taken - 1])
        except BaseException as raised:
            log.debug("behind %d guesses: %s", taken, _fault(raised))
            if masks is not None:
                masks[max(taken - 1, 0) :] = 0
        try:
            self.matcher.rollback(taken)
        except BaseException as raised:
            self.failure = _fault(raised)
        return taken


def _fault(raised: BaseException) -> str:
    """Why a request ends whose matcher raised; of a stranger's code, anything but an interrupt."""
    if isinstance(raised, GrammarError):
        return f"its grammar fails: {raised}"
    error = as_failure(raised, "a grammar backend")
    return f"its grammar fails: {type(error).__name__}: {error}"


class _NoMatcher:
    """Of a request whose grammar made none."""

    def accept(self, token: int) -> bool:
        return False

    def fill(self, mask: np.ndarray) -> None:
        mask[:] = 0

    def rollback(self, tokens: int) -> None:
        pass


@dataclass(frozen=True)
class MaskedRow:
    """A row of a step that draws tokens by a grammar.

    Attributes:
        place: of the first of them among all that the step draws.
        guesses: that the step verifies; a token is drawn behind each.
    """

    place: int
    sequence: Sequence
    guesses: list[int]


MaskedRows: TypeAlias = list[MaskedRow]
"""Of a step."""


class Grammars:
    """All grammars that the front has sent, and the sequences that follow them."""

    def __init__(self, loader: GrammarLoader) -> None:
        self._loader = loader
        self._held: dict[int, Loading] = {}
        self._waiting: list[tuple[Submit, Loading]] = []
        self._sequences: dict[int, Sequence] = {}

    @property
    def waits(self) -> bool:
        """Whether a submit waits for its grammar."""
        return bool(self._waiting)

    def hold(self, new: NewGrammar) -> None:
        """The front sent a grammar: submits may name it from now on."""
        self._held[new.number] = self._loader.load(new)

    def drop(self, number: int) -> None:
        """The front names it no more. Who has it keeps it."""
        self._held.pop(number, None)

    def wait_for(self, submit: Submit) -> None:
        """Put a submit aside until its grammar is loaded: ``take_ready`` gives it back."""
        loading = self._held.get(submit.grammar) or Loading("the engine does not have it")
        self._waiting.append((submit, loading))

    def forget_waiting(self, request: int) -> None:
        """A request was aborted; nothing happens if it does not wait."""
        if self._waiting:
            self._waiting = [each for each in self._waiting if each[0].request != request]

    def take_ready(self) -> list[tuple[Submit, Grammar | str]]:
        """Submits whose grammar is loaded, or with the reason why it cannot be."""
        if not self._waiting:
            return []
        ready: list[tuple[Submit, Grammar | str]] = []
        waiting = []
        for submit, loading in self._waiting:
            made = loading.made  # read once: another thread writes it
            if made is None:
                waiting.append((submit, loading))
            else:
                ready.append((submit, made))
        self._waiting = waiting
        return ready

    def begin(self, submit: Submit, grammar: Grammar) -> None:
        """The scheduler took a submit."""
        try:
            matcher: Matcher = grammar.matcher()
        except BaseException as raised:
            self._sequences[submit.request] = Sequence(_NoMatcher(), _fault(raised))
            return
        thinking = submit.thinking
        held = matcher if thinking is None else AfterThinking(matcher, thinking)
        self._sequences[submit.request] = Sequence(held)

    def advance(self, updates: Updates) -> None:
        """Follow the tokens of all sequences that have a grammar."""
        if not self._sequences or not len(updates):
            return
        starts, tokens = updates.token_start.tolist(), updates.tokens
        for i, request in enumerate(updates.request.tolist()):
            if sequence := self._sequences.get(request):
                sequence.accept(tokens[starts[i] : starts[i + 1]].tolist())

    def end(self, updates: Updates) -> list[tuple[int, str]]:
        """Forget sequences that are over; why their grammar failed them, if it was that."""
        if not self._sequences:
            return []
        over = [(r, self._sequences.pop(r)) for r, _ in updates.ended() if r in self._sequences]
        return [(request, sequence.failure or NO_TOKEN) for request, sequence in over]

    def masked(self, plan: Plan, buffers: StepBuffers) -> MaskedRows:
        """The rows of a step that need a mask."""
        if not self._sequences or not plan.num_emits:
            return []
        rows, places = buffers.emitting(plan)
        requests = buffers.host["row_request"][rows].tolist()
        masked = []
        for row, place, request in zip(rows.tolist(), places.tolist(), requests, strict=True):
            if sequence := self._sequences.get(request):
                masked.append(MaskedRow(place, sequence, buffers.guesses(plan, row)))
        return masked

    def count_allowed(self, request: int, guesses: np.ndarray) -> int:
        """How many of the guesses at what a request says next its grammar lets follow."""
        sequence = self._sequences.get(request)
        return len(guesses) if sequence is None else sequence.count_allowed(guesses.tolist())


def fill_masks(rows: MaskedRows, buffers: StepBuffers) -> int:
    """Write the masks of a step's rows, once all tokens before it are known; how many there are."""
    end = 0
    for row in rows:
        first, end = end, end + 1 + len(row.guesses)
        buffers.mask_row[first:end] = range(row.place, row.place + end - first)
        row.sequence.fill(buffers.mask[first:end], row.guesses)
    return end
