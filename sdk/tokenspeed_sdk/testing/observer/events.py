# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a server could tell its observers: a well-ordered stream with all that fields may hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count, product

from tokenspeed_sdk.contracts.observer import (
    OUTCOMES,
    Event,
    KernelChoice,
    LoadReported,
    Outcome,
    RequestFinished,
    RequestReceived,
    SequenceStarted,
    ServerReady,
    StepFinished,
    TokensGenerated,
)

PROMPT, CACHED, PAGES = 40, 32, 100

_ENDED: tuple[Outcome, ...] = ("abort", "cancelled", "expired", "failed", "shutdown")

UNSTARTED: tuple[Outcome, ...] = (*_ENDED, "invalid", "rejected")
"""Outcomes that a request can have before any of its sequences starts."""

STARTED: tuple[Outcome, ...] = ("stop", "length", *_ENDED)
"""Outcomes that a request can have after that."""

ERRORS = ("too long", 'line 1\nline 2 with "quotes", 100 %s {braces} and \u00e9\u4e2d', "x" * 5000)
"""What a client was told."""

IDS = ("chatcmpl-1", "", "chatcmpl-1", "name with blanks\n\u4e2d" * 20)
"""What gateways call a request: also nothing, and a name that is taken."""

READY = ServerReady(
    time=1_700_000_000.0,
    version="1.0.0",
    model="acme/model",
    architecture="AcmeForCausalLM",
    platform="cpu",
    dtype="float32",
    max_model_len=4096,
    max_num_seqs=8,
    page_size=16,
    total_pages=PAGES,
    weight_bytes=1 << 40,
    kv_bytes=1 << 30,
    kernels=(
        KernelChoice("linear@1", "acme", "acme-kernels 1.2.0", "float32", "main", 14),
        KernelChoice("acme::mix@1", "acme", "acme-kernels 1.2.0", "float32", "main", 1),
    ),
)


def make_events(*, token_ids: bool) -> tuple[Event, ...]:
    """All events of one server: every outcome, started or not, with one and with three sequences.

    Args:
        token_ids: whether ``tokens_generated`` holds them, as it does for those who need them.
    """
    clock = _Clock()
    events: list[Event] = [READY if token_ids else replace(READY, kernels=())]
    numbers = count(1)
    for outcome in UNSTARTED:
        events += _refused(clock, next(numbers), outcome)
    for sequences, outcome in product((1, 3), STARTED):
        events += _served(clock, next(numbers), outcome, sequences, token_ids)
    events.append(_load(clock, running=0))
    return tuple(events)


@dataclass
class _Clock:
    """Wall-clock time, set back once in a while as it may be."""

    ticks: Iterator[int] = field(default_factory=count)

    def __call__(self) -> float:
        tick = next(self.ticks)
        return READY.time + 0.25 * tick - (60.0 if tick % 17 == 0 else 0.0)


def _received(clock: _Clock, number: int, sequences: int) -> RequestReceived:
    name = IDS[number % len(IDS)]
    return RequestReceived(clock(), number, name, PROMPT * (number % 3), sequences)


def _error(number: int, outcome: Outcome) -> str | None:
    """A text for outcomes that are errors."""
    return ERRORS[number % len(ERRORS)] if OUTCOMES.index(outcome) >= 4 else None


def _refused(clock: _Clock, number: int, outcome: Outcome) -> Iterator[Event]:
    """A request that ends before any of its sequences starts."""
    received = _received(clock, number, 1 + number % 2)
    yield received
    yield RequestFinished(
        clock(),
        number,
        received.request_id,
        outcome,
        seconds=0.0,
        prompt_tokens=received.prompt_tokens,
        cached_tokens=0,
        output_tokens=0,
        error=_error(number, outcome),
    )


def _served(
    clock: _Clock, number: int, outcome: Outcome, sequences: int, token_ids: bool
) -> Iterator[Event]:
    """A request whose sequences advance together, step by step; the last one gets one token."""
    received = _received(clock, number, sequences)
    cached = min(CACHED, received.prompt_tokens)
    yield received
    for index in range(sequences):
        yield SequenceStarted(clock(), number, index, 0.5, received.prompt_tokens, cached)
    output = 0
    for step in range(3):
        yield StepFinished(clock(), 0.01, PROMPT * (step < 2), sequences * (step > 0))
        yield _load(clock, sequences)
        for index in range(sequences if step == 0 else sequences - 1):
            ids = tuple(range(step + 1)) if token_ids else None
            since = None if step == 0 else 0.01
            yield TokensGenerated(clock(), number, index, step + 1, 0.6, since, ids)
            output += step + 1
    yield RequestFinished(
        clock(),
        number,
        received.request_id,
        outcome,
        seconds=0.75,
        prompt_tokens=received.prompt_tokens,
        cached_tokens=cached * sequences,
        output_tokens=output,
        error=_error(number, outcome),
        drafted_tokens=output,
        accepted_tokens=output // 2,
        started_prompt_tokens=received.prompt_tokens * sequences,
    )


def _load(clock: _Clock, running: int) -> LoadReported:
    """Pages that sum up to all, as of a server that has some requests waiting while it is busy."""
    active = 3 * running
    return LoadReported(
        clock(),
        running=running,
        waiting=running // 2,
        waiting_tokens=PROMPT * (running // 2),
        free_pages=PAGES - active - 10,
        cached_pages=10,
        active_pages=active,
        retractions=running,
        loop_seconds=0.001,
    )
