# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The live metrics against the log of a recording observer, and against what the clients saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest
from tokenspeed.observe.metrics import Metrics
from tokenspeed_sdk.contracts.observer import (
    HOOKS,
    Event,
    LoadReported,
    RequestFinished,
    RequestReceived,
    SequenceStarted,
    ServerReady,
    StepFinished,
    TokensGenerated,
)

from .conftest import Run, value

E = TypeVar("E", bound=Event)
NOT_EVENTS = {
    "tokenspeed_engine_silent_seconds",
    "tokenspeed_observer_dropped_events",
    "tokenspeed_observer_errors",
    "tokenspeed_observer_enabled",
}
"""Families that are read when the page is, because no event tells them."""


def of(run: Run, kind: type[E]) -> list[E]:
    return [event for event in run.events if isinstance(event, kind)]


def samples(families: Iterable[Any]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_the_log_gives_every_number_again(run: Run) -> None:
    """Every counter, gauge, and bucket, count and sum of a histogram, to the last bit."""
    fresh = Metrics()
    for event in run.events:
        fresh.observe(event)
    live = {name: family for name, family in run.late.items() if name not in NOT_EVENTS}
    assert run.late.keys() - live.keys() == NOT_EVENTS
    assert samples(live.values()) == samples(fresh.registry.collect())


def test_the_load_was_mixed(run: Run) -> None:
    """Else the other tests prove little."""
    assert {event.hook for event in run.events} == set(HOOKS)
    outcomes = Counter(event.outcome for event in of(run, RequestFinished))
    assert outcomes["length"] == len(run.seen["first"] + run.seen["alone"] + run.seen["together"])
    assert outcomes["invalid"] == len(run.seen["refused"]) > 0
    assert outcomes["cancelled"] + outcomes["abort"] == len(run.seen["left"]) > 0
    assert value(run.late, "tokenspeed_retractions_total") > 0
    assert value(run.late, "tokenspeed_prefix_hit_tokens_total") > 0
    assert {event.kind for event in of(run, StepFinished)} == {"prefill", "decode", "mixed"}
    assert all(seen.status == 400 for seen in run.seen["refused"])


def test_counters_are_what_the_clients_counted(run: Run) -> None:
    answered = run.seen["first"] + run.seen["alone"] + run.seen["together"]
    ended = [event for event in of(run, RequestFinished) if event.outcome == "length"]
    for field in ("output_tokens", "prompt_tokens", "cached_tokens"):
        told = Counter(getattr(event, field) for event in ended)
        assert told == Counter(getattr(seen, field) for seen in answered), field
    counted = sum(event.count for event in of(run, TokensGenerated))
    of_leavers = sum(e.output_tokens for e in of(run, RequestFinished) if e.outcome != "length")
    assert counted == sum(seen.output_tokens for seen in answered) + of_leavers
    assert value(run.late, "tokenspeed_output_tokens_total") == counted
    assert value(run.late, "tokenspeed_requests_received_total") == sum(map(len, run.seen.values()))
    started = of(run, SequenceStarted)
    for metric, field in (("prompt", "prompt_tokens"), ("prefix_hit", "cached_tokens")):
        total = sum(getattr(event, field) for event in started)
        assert value(run.late, f"tokenspeed_{metric}_tokens_total") == total > 0


def test_durations_lie_within_what_the_clients_measured(run: Run) -> None:
    """The clients of the first requests came one by one, so the n-th event is the n-th client's."""
    alone = run.seen["first"] + run.seen["alone"]
    firsts = [e for e in of(run, TokensGenerated) if e.seconds_since_previous is None]
    for seen, queued, first, end in zip(
        alone, of(run, SequenceStarted), firsts, of(run, RequestFinished), strict=False
    ):
        assert first.request == queued.request == end.request
        assert 0 <= queued.queue_seconds <= first.seconds_since_received <= seen.first_s
        assert first.seconds_since_received <= end.seconds <= seen.total_s
        assert seen.first_s - first.seconds_since_received < 2, "more than the gateway explains"
    busy = sum(event.seconds for event in of(run, StepFinished))
    span = run.events[-1].time - of(run, ServerReady)[0].time
    assert 0 < busy <= span * 1.01, "steps do not overlap"
    assert value(run.late, "tokenspeed_loop_seconds_total") <= span


def test_histograms_recomputed(run: Run) -> None:
    """Count, sum and every bucket, in plain Python over the log."""
    tokens = of(run, TokensGenerated)
    observed = {
        "queue_seconds": [e.queue_seconds for e in of(run, SequenceStarted)],
        "time_to_first_token_seconds": [
            e.seconds_since_received for e in tokens if e.seconds_since_previous is None
        ],
        "inter_token_seconds": [
            gap / e.count
            for e in tokens
            if (gap := e.seconds_since_previous) is not None
            for _ in range(e.count)
        ],
        "request_seconds": [e.seconds for e in of(run, RequestFinished)],
    }
    for name, values in observed.items():
        check_histogram(run, f"tokenspeed_{name}", values)
    for kind in ("prefill", "decode", "mixed"):
        steps = [event.seconds for event in of(run, StepFinished) if event.kind == kind]
        check_histogram(run, "tokenspeed_step_seconds", steps, kind=kind)


def check_histogram(run: Run, name: str, values: list[float], **labels: str) -> None:
    assert value(run.late, f"{name}_count", **labels) == len(values) > 0
    assert value(run.late, f"{name}_sum", **labels) == pytest.approx(sum(values))
    buckets = [s for s in run.late[name].samples if s.name == f"{name}_bucket"]
    buckets = [sample for sample in buckets if labels.items() <= sample.labels.items()]
    assert len(buckets) > 5
    for sample in buckets:
        assert sample.value == sum(v <= float(sample.labels["le"]) for v in values), sample


def test_each_request_is_told_in_order(run: Run) -> None:
    """Received, started, tokens, finished; the sums agree; the ids are there for who needs them."""
    for received in of(run, RequestReceived):
        story = [e for e in run.events if getattr(e, "request", 0) == received.request]
        assert story[0] is received
        end = story[-1]
        assert isinstance(end, RequestFinished)
        assert end.request_id == received.request_id
        hooks = [event.hook for event in story[1:-1]]
        assert hooks == sorted(hooks), "sequence_started, then tokens_generated"
        assert hooks.count("sequence_started") <= received.sequences
        tokens = [event for event in story if isinstance(event, TokensGenerated)]
        assert sum(event.count for event in tokens) == end.output_tokens
        assert all(len(event.token_ids or ()) == event.count for event in tokens)


def test_pages_sum_up_and_come_back(run: Run) -> None:
    [ready] = of(run, ServerReady)
    assert run.events[0] is ready
    assert ready.total_pages == 24
    for load in of(run, LoadReported):
        assert load.free_pages + load.cached_pages + load.active_pages == ready.total_pages
        assert min(load.free_pages, load.cached_pages, load.active_pages) >= 0
    assert value(run.late, "tokenspeed_kv_pages") == ready.total_pages
    assert value(run.late, "tokenspeed_kv_pages", state="active") == 0


def test_kernels_are_labels(run: Run) -> None:
    [ready] = of(run, ServerReady)
    assert "linear@1" in {choice.op for choice in ready.kernels}
    for choice in ready.kernels:
        labels = {"op": choice.op, "kernel": choice.kernel, "owner": choice.owner}
        more = {"role": choice.role, "dtype": choice.dtype}
        assert value(run.late, "tokenspeed_kernel_call_sites", **labels, **more) == choice.sites > 0


def test_the_observer_lost_nothing(run: Run) -> None:
    assert value(run.late, "tokenspeed_observer_enabled", observer="acme-journal") == 1
    for name in ("dropped_events", "errors"):
        assert value(run.late, f"tokenspeed_observer_{name}_total", observer="acme-journal") == 0
