# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Makes the events of a server, from what the front sees and from what the engine tells it.

    events = EventStream("smollm2")
    events.add(metrics.observe)
    record = events.request("abc", prompt_tokens=12, sequences=1)
    ...
    record.finished("stop")

Times that two processes took can be compared: they are of the machine's monotonic clock.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tokenspeed_sdk.contracts.observer import (
    Event,
    LoadReported,
    Outcome,
    RequestFinished,
    RequestReceived,
    SequenceStarted,
    ServerReady,
    StepFinished,
    TokensGenerated,
)

from tokenspeed.version import engine_version

if TYPE_CHECKING:
    from tokenspeed.messages import EngineReady, Guessed, Load, Started, StepReport

Sink = Callable[[Event], None]


class EventStream:
    """Hands every event to every sink, in the order in which they happen.

    Sinks are called in the event loop: they must neither wait nor raise.
    """

    def __init__(self, model: str, *, token_ids: bool = False) -> None:
        """``token_ids``: whether ``TokensGenerated`` carries the ids."""
        self.token_ids = token_ids
        self._model = model
        self._sinks: list[Sink] = []
        self._numbers = itertools.count(1)

    def add(self, sink: Sink) -> None:
        """From now on, tell it too."""
        self._sinks.append(sink)

    def publish(self, event: Event) -> None:
        """Tell all sinks."""
        for sink in self._sinks:
            sink(event)

    def request(self, request_id: str, prompt_tokens: int, sequences: int) -> RequestRecord:
        """A request came; what becomes of it goes into the record."""
        record = RequestRecord(self, next(self._numbers), request_id, prompt_tokens)
        self.publish(
            RequestReceived(time.time(), record.number, request_id, prompt_tokens, sequences)
        )
        return record

    def ready(self, ready: EngineReady) -> None:
        """The engine can serve."""
        self.publish(
            ServerReady(
                time=time.time(),
                version=engine_version(),
                model=self._model,
                architecture=ready.architecture,
                platform=ready.platform,
                dtype=ready.dtype,
                max_model_len=ready.max_model_len,
                max_num_seqs=ready.max_num_seqs,
                page_size=ready.page_size,
                total_pages=ready.total_pages,
                weight_bytes=ready.weight_bytes,
                kv_bytes=ready.kv_bytes,
                kernels=tuple(ready.kernels),
            )
        )

    def steps(self, steps: Sequence[StepReport]) -> None:
        """Steps that the engine reports with one message."""
        for step in steps:
            seconds = step.duration_us / 1e6
            self.publish(StepFinished(time.time(), seconds, step.prefill_tokens, step.decode_rows))

    def load(self, load: Load) -> None:
        """The engine's load after all else in its message."""
        self.publish(
            LoadReported(
                time=time.time(),
                running=load.running,
                waiting=load.waiting,
                waiting_tokens=load.waiting_tokens,
                free_pages=load.free_pages,
                cached_pages=load.cached_pages,
                active_pages=load.total_pages - load.free_pages - load.cached_pages,
                retractions=load.retractions,
                loop_seconds=load.host_us / 1e6,
                loading=load.loading,
                transfers=load.transfers,
                host_free_pages=load.host_free_pages,
                host_used_pages=load.host_total_pages - load.host_free_pages,
                device_hit_tokens=load.cached_tokens - load.host_cached_tokens,
                host_hit_tokens=load.host_cached_tokens,
                stored_pages=load.stored_pages,
                loaded_pages=load.loaded_pages,
                failed_transfers=load.failed_transfers,
                retractions_to_host=load.retractions_to_host,
                sessions_returned=load.sessions_returned,
                drafted_tokens=load.drafted_tokens,
                accepted_tokens=load.accepted_tokens,
            )
        )


class RequestRecord:
    """One request, from its receipt to its outcome.

    Attributes:
        number: counts the requests of the server.
        request_id: as its client or the gateway chose it.
    """

    def __init__(
        self, events: EventStream, number: int, request_id: str, prompt_tokens: int
    ) -> None:
        self.number = number
        self._events = events
        self.request_id = request_id
        self._prompt_tokens = prompt_tokens
        self._received = time.monotonic()
        self._started_prompt_tokens = 0
        self._cached_tokens = 0
        self._output_tokens = 0
        self._drafted_tokens = 0
        self._accepted_tokens = 0
        self._last_tokens: dict[int, float] = {}

    def started(self, index: int, started: Started) -> None:
        """A sequence is part of a step for the first time."""
        self._started_prompt_tokens += self._prompt_tokens
        self._cached_tokens += started.cached_tokens
        self._events.publish(
            SequenceStarted(
                time=time.time(),
                request=self.number,
                index=index,
                queue_seconds=started.at_us / 1e6 - self._received,
                prompt_tokens=self._prompt_tokens,
                cached_tokens=started.cached_tokens,
            )
        )

    def generated(self, index: int, tokens: Sequence[int]) -> None:
        """New tokens of a sequence, at least one."""
        now = time.monotonic()
        previous = self._last_tokens.get(index)
        self._last_tokens[index] = now
        self._output_tokens += len(tokens)
        self._events.publish(
            TokensGenerated(
                time=time.time(),
                request=self.number,
                index=index,
                count=len(tokens),
                seconds_since_received=now - self._received,
                seconds_since_previous=None if previous is None else now - previous,
                token_ids=tuple(tokens) if self._events.token_ids else None,
            )
        )

    def guessed(self, guessed: Guessed) -> None:
        """Guesses at tokens of a sequence were verified."""
        self._drafted_tokens += guessed.drafted
        self._accepted_tokens += guessed.accepted

    def finished(self, outcome: Outcome, error: str | None = None) -> None:
        """It ended; nothing may come after this."""
        self._events.publish(
            RequestFinished(
                time=time.time(),
                request=self.number,
                request_id=self.request_id,
                outcome=outcome,
                seconds=time.monotonic() - self._received,
                prompt_tokens=self._prompt_tokens,
                cached_tokens=self._cached_tokens,
                output_tokens=self._output_tokens,
                error=error,
                drafted_tokens=self._drafted_tokens,
                accepted_tokens=self._accepted_tokens,
                started_prompt_tokens=self._started_prompt_tokens,
            )
        )
