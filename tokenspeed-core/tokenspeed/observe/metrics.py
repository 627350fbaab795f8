# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Prometheus metrics of one server. Names are an interface: dashboards query them.

``Metrics`` counts events and nothing else, so a log of events gives the same numbers again.
``MetricsPage`` adds the few that are no events: they are read when the page is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from tokenspeed_sdk.contracts.observer import OUTCOMES, StepKind

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.observer import (
        Event,
        LoadReported,
        RequestFinished,
        RequestReceived,
        SequenceStarted,
        ServerReady,
        StepFinished,
        TokensGenerated,
    )

    from tokenspeed.front.engine_client import EngineClient
    from tokenspeed.observe.observers import Observers

_WAITS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
_REQUESTS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_STEPS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_PAGE_STATES = ("free", "cached", "active")


class Metrics:
    """Has a method for every hook of the ``observer`` contract, as an observer would."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seen: dict[Counter, float] = {}
        self._make_requests()
        self._make_tokens()
        self._make_engine()
        self._make_tiers()
        self._make_info()

    def observe(self, event: Event) -> None:
        """Count one event."""
        getattr(self, event.hook)(event)

    def server_ready(self, event: ServerReady) -> None:
        self._build.labels(
            event.version, event.model, event.architecture, event.platform, event.dtype
        ).set(1)
        for choice in event.kernels:
            self._kernels.labels(
                choice.op, choice.kernel, choice.owner, choice.role, choice.dtype
            ).set(choice.sites)
        self._pages["free"].set(event.total_pages)

    def request_received(self, event: RequestReceived) -> None:
        self._received.inc()
        self._in_progress.inc()

    def sequence_started(self, event: SequenceStarted) -> None:
        self._queue.observe(event.queue_seconds)
        self._prompt_tokens.inc(event.prompt_tokens)
        self._cached_tokens.inc(event.cached_tokens)

    def tokens_generated(self, event: TokensGenerated) -> None:
        self._output_tokens.inc(event.count)
        if event.seconds_since_previous is None:
            self._first_token.observe(event.seconds_since_received)
            return
        for _ in range(event.count):
            self._gap.observe(event.seconds_since_previous / event.count)

    def request_finished(self, event: RequestFinished) -> None:
        self._finished[event.outcome].inc()
        self._in_progress.dec()
        self._seconds.observe(event.seconds)

    def step_finished(self, event: StepFinished) -> None:
        self._steps[event.kind].observe(event.seconds)
        self._prefilled.inc(event.prefill_tokens)
        self._decoded.inc(event.decode_rows)

    def load_reported(self, event: LoadReported) -> None:
        self._running.set(event.running)
        self._waiting.set(event.waiting)
        self._waiting_tokens.set(event.waiting_tokens)
        self._pages["free"].set(event.free_pages)
        self._pages["cached"].set(event.cached_pages)
        self._pages["active"].set(event.active_pages)
        self._reach(self._retractions, event.retractions)
        self._reach(self._loop, event.loop_seconds)
        self._tiers_reported(event)

    def _tiers_reported(self, event: LoadReported) -> None:
        self._loading.set(event.loading)
        self._transfers.set(event.transfers)
        self._host_pages["free"].set(event.host_free_pages)
        self._host_pages["used"].set(event.host_used_pages)
        self._reach(self._device_hits, event.device_hit_tokens)
        self._reach(self._host_hits, event.host_hit_tokens)
        self._reach(self._stored, event.stored_pages)
        self._reach(self._loaded, event.loaded_pages)
        self._reach(self._failed_transfers, event.failed_transfers)
        self._reach(self._retractions_to_host, event.retractions_to_host)
        self._reach(self._returned, event.sessions_returned)
        self._reach(self._drafted, event.drafted_tokens)
        self._reach(self._accepted, event.accepted_tokens)

    def _reach(self, counter: Counter, total: float) -> None:
        """Count up to a sum that the event carries; one of a message without a load is 0."""
        seen = self._seen.get(counter, 0)
        if total > seen:
            counter.inc(total - seen)
            self._seen[counter] = total

    def _make_requests(self) -> None:
        self._received = self._counter("requests_received", "Requests that came.")
        finished = self._counter("requests_finished", "Requests that ended, by how.", "outcome")
        self._finished = {outcome: finished.labels(outcome) for outcome in OUTCOMES}
        self._in_progress = self._gauge(
            "requests_in_progress", "Requests that came and have not ended."
        )
        self._queue = self._histogram(
            "queue_seconds", "From the receipt of a request to a sequence's first step.", _WAITS
        )
        self._first_token = self._histogram(
            "time_to_first_token_seconds",
            "From the receipt of a request to a sequence's first token.",
            _WAITS,
        )
        self._gap = self._histogram(
            "inter_token_seconds", "From a token of a sequence to its next.", _GAPS
        )
        self._seconds = self._histogram(
            "request_seconds", "From the receipt of a request to its end.", _REQUESTS
        )

    def _make_tokens(self) -> None:
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of started sequences.")
        self._cached_tokens = self._counter(
            "prefix_hit_tokens", "Prompt tokens that came from the prefix cache."
        )
        self._output_tokens = self._counter("output_tokens", "Tokens that were generated.")
        self._retractions = self._counter(
            "retractions", "Sequences that gave up their pages to others and started again."
        )

    def _make_engine(self) -> None:
        self._running = self._gauge(
            "running_sequences", "Sequences that hold a place in the batch."
        )
        self._waiting = self._gauge("waiting_sequences", "Sequences that wait for a place.")
        self._waiting_tokens = self._gauge(
            "waiting_prompt_tokens", "Prompt tokens of sequences that wait."
        )
        pages = self._gauge(
            "kv_pages",
            "KV pages: free, held by the prefix cache alone, or in use; they sum up to all.",
            "state",
        )
        self._pages = {state: pages.labels(state) for state in _PAGE_STATES}
        steps = self._histogram(
            "step_seconds", "What a step took, by what it computed.", _STEPS, "kind"
        )
        self._steps = {kind: steps.labels(kind) for kind in get_args(StepKind)}
        tokens = self._counter("step_tokens", "Tokens that steps computed.", "phase")
        self._prefilled, self._decoded = tokens.labels("prefill"), tokens.labels("decode")
        self._loop = self._counter(
            "loop_seconds", "What the engine's thread worked, without its waits for the device."
        )

    def _make_tiers(self) -> None:
        hits = self._counter(
            "tier_hit_tokens", "Prompt tokens that need not be computed, by who had them.", "tier"
        )
        self._device_hits, self._host_hits = hits.labels("device"), hits.labels("host")
        pages = self._gauge(
            "host_pages", "Pages of the host tier: free, or in use; they sum up to all.", "state"
        )
        self._host_pages = {state: pages.labels(state) for state in ("free", "used")}
        self._loading = self._gauge(
            "loading_sequences", "Running sequences whose KV is on its way from the host tier."
        )
        self._transfers = self._gauge(
            "tier_transfers", "Transfers between device and host tier that are under way."
        )
        moved = self._counter(
            "tier_transferred_pages",
            "Pages that were copied to the host tier (store) or from it (load).",
            "direction",
        )
        self._stored, self._loaded = moved.labels("store"), moved.labels("load")
        self._failed_transfers = self._counter(
            "tier_failed_transfers", "Transfers that failed; what they carried is computed again."
        )
        self._retractions_to_host = self._counter(
            "retractions_to_host", "Retractions whose KV the host tier kept."
        )
        self._returned = self._counter(
            "sessions_returned", "Prompts that went on where a finished answer had ended."
        )
        self._drafted = self._counter("drafted_tokens", "Guesses at tokens that were verified.")
        self._accepted = self._counter("accepted_tokens", "Guesses that were right.")

    def _make_info(self) -> None:
        self._build = self._gauge(
            "build_info",
            "1; the labels say what serves.",
            *("version", "model", "architecture", "platform", "dtype"),
        )
        self._kernels = self._gauge(
            "kernel_call_sites",
            "Call sites of the model that a kernel was chosen for.",
            *("op", "kernel", "owner", "role", "dtype"),
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"tokenspeed_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"tokenspeed_{name}", text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(
            f"tokenspeed_{name}", text, labels, registry=self.registry, buckets=buckets
        )


class MetricsPage:
    """All that /metrics says: the counted events, the engine's silence, the observers' losses."""

    def __init__(self, metrics: Metrics, client: EngineClient, observers: Observers) -> None:
        self._metrics = metrics
        self._client = client
        self._observers = observers
        self._registry = CollectorRegistry()
        self._registry.register(metrics.registry)
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """For prometheus_client."""
        yield GaugeMetricFamily(
            "tokenspeed_engine_silent_seconds",
            "Since the engine's last message, while it has work.",
            value=self._client.silent_s,
        )
        dropped = CounterMetricFamily(
            "tokenspeed_observer_dropped_events",
            "Events that an observer was too slow for.",
            labels=["observer"],
        )
        errors = CounterMetricFamily(
            "tokenspeed_observer_errors", "Hooks that raised.", labels=["observer"]
        )
        enabled = GaugeMetricFamily(
            "tokenspeed_observer_enabled",
            "0 once an observer raised too often and was switched off.",
            labels=["observer"],
        )
        for observer in self._observers:
            dropped.add_metric([observer.name], observer.dropped)
            errors.add_metric([observer.name], observer.errors)
            enabled.add_metric([observer.name], observer.enabled)
        yield from (dropped, errors, enabled)

    def text(self) -> bytes:
        """In the exposition format."""
        return generate_latest(self._registry)
