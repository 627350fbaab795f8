# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Prometheus metrics of one server. Names are an interface: dashboards query them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from tokenspeed.front.engine_client import EngineClient

Outcome = Literal[
    "stop", "length", "abort", "cancelled", "invalid", "rejected", "expired", "failed"
]

_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_GAUGES = {
    "running": "Sequences that hold a place in the batch.",
    "waiting": "Sequences that wait for a place.",
    "waiting_tokens": "Prompt tokens of waiting sequences that must be computed.",
    "free_pages": "KV pages that nobody owns.",
    "cached_pages": "KV pages that only the prefix cache owns.",
    "total_pages": "KV pages.",
}
_COUNTERS = {
    "steps": "Steps that the engine planned.",
    "retractions": "Sequences that gave up their pages to others and started again.",
    "prompt_tokens": "Prompt tokens of admitted sequences.",
    "cached_tokens": "Prompt tokens that came from the prefix cache.",
    "output_tokens": "Tokens that were generated.",
}


class Metrics:
    """The engine's own numbers are read at scrape time; the front adds what it alone sees."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._requests = Counter(
            "tokenspeed_requests",
            "Requests that ended, by how.",
            ["outcome"],
            registry=self._registry,
        )
        self._ttft = Histogram(
            "tokenspeed_time_to_first_token_seconds",
            "From the engine's receipt of a sequence to its first token.",
            buckets=_TTFT_BUCKETS,
            registry=self._registry,
        )

    def request_ended(self, outcome: Outcome) -> None:
        """Count a request."""
        self._requests.labels(outcome).inc()

    def first_token(self, age_us: int) -> None:
        """Count a sequence's time to first token."""
        self._ttft.observe(age_us / 1e6)

    def collect(self) -> Iterator[Metric]:
        """For prometheus_client."""
        load = self._client.load
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"tokenspeed_{name}", text, value=getattr(load, name))
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"tokenspeed_{name}", text, value=getattr(load, name))
        yield GaugeMetricFamily(
            "tokenspeed_alive", "Sequences that have not ended.", value=self._client.alive
        )
        yield GaugeMetricFamily(
            "tokenspeed_engine_silent_seconds",
            "Seconds since the engine's last message while it has work.",
            value=self._client.silent_s,
        )

    def text(self) -> bytes:
        """In the exposition format."""
        return generate_latest(self._registry)
