# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The engine's load as the gateway's routing reads it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from smg_grpc_proto import tokenspeed_scheduler_pb2 as pb
from smg_grpc_proto.generated import common_pb2 as common

from tokenspeed.version import engine_version

if TYPE_CHECKING:
    from tokenspeed.messages import EngineReady, Load

_WINDOW_S = 1.0


class Throughput:
    """Generated tokens per second, between two looks at least ``_WINDOW_S`` apart."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._seen_at = time.monotonic()
        self._seen_tokens = 0

    def rate(self, output_tokens: int) -> float:
        """With the tokens that were generated so far."""
        now = time.monotonic()
        if now - self._seen_at >= _WINDOW_S:
            self._rate = (output_tokens - self._seen_tokens) / (now - self._seen_at)
            self._seen_at, self._seen_tokens = now, output_tokens
        return self._rate


def loads_response(load: Load, ready: EngineReady, include: set[str], throughput: float) -> Any:
    """``include``: sections besides the core; ``throughput``: tokens per second."""
    scheduler = _scheduler_load(load, ready, throughput)
    if include & {"memory", "all"}:
        scheduler.memory.weight_gb = ready.weight_bytes / 1e9
        scheduler.memory.kv_cache_gb = ready.kv_bytes / 1e9
        scheduler.memory.token_capacity = ready.total_pages * ready.page_size
    if include & {"queues", "all"}:
        scheduler.queues.waiting = load.waiting
    aggregate = pb.AggregateMetrics(
        total_running_reqs=scheduler.num_running_reqs,
        total_waiting_reqs=scheduler.num_waiting_reqs,
        total_reqs=scheduler.num_total_reqs,
        avg_token_usage=scheduler.token_usage,
        avg_throughput=throughput,
        avg_utilization=scheduler.utilization,
    )
    return pb.GetLoadsResponse(
        timestamp=datetime.now(UTC).isoformat(),
        version=engine_version(),
        dp_rank_count=1,
        loads=[scheduler],
        aggregate=aggregate,
    )


def _scheduler_load(load: Load, ready: EngineReady, throughput: float) -> Any:
    total = load.total_pages or ready.total_pages
    free = load.free_pages if load.total_pages else total  # nothing ran yet
    return pb.SchedulerLoad(
        num_running_reqs=load.running,
        num_waiting_reqs=load.waiting,
        num_total_reqs=load.running + load.waiting,
        num_waiting_uncached_tokens=load.waiting_tokens,
        num_used_tokens=(total - free) * ready.page_size,
        max_total_num_tokens=total * ready.page_size,
        max_running_requests=ready.max_num_seqs,
        token_usage=(total - free) / total,
        active_token_usage=(total - free - load.cached_pages) / total,
        gen_throughput=throughput,
        cache_hit_rate=load.cached_tokens / max(load.prompt_tokens, 1),
        utilization=load.running / ready.max_num_seqs,
    )


def engine_load(load: Load, ready: EngineReady, throughput: float, sample: int) -> Any:
    """The same numbers as a record of the KV event stream; ``sample`` grows with each."""
    scheduler = _scheduler_load(load, ready, throughput)
    return common.EngineLoad(
        running_requests=scheduler.num_running_reqs,
        waiting_requests=scheduler.num_waiting_reqs,
        waiting_uncached_tokens=scheduler.num_waiting_uncached_tokens,
        token_usage=scheduler.token_usage,
        active_token_usage=scheduler.active_token_usage,
        gen_throughput=throughput,
        max_running_requests=scheduler.max_running_requests,
        cache_hit_rate=scheduler.cache_hit_rate,
        num_used_tokens=scheduler.num_used_tokens,
        max_total_num_tokens=scheduler.max_total_num_tokens,
        sample=sample,
    )
