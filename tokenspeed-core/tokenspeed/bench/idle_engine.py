# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""An engine whose device computes nothing and takes its time: what is left is the host's work.

The time matters: a loop that has waited for milliseconds finds its caches cold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from tokenspeed_sdk.contracts.model import CacheGroup
from tokenspeed_sdk.contracts.platform import GRAPH_CAPTURE, Capabilities, MemoryReport, Stream
from tokenspeed_sdk.modeling import BuildContext
from tokenspeed_sdk.ops import ReferenceResolver

from tokenspeed._scheduler import CacheGroupConfig, Config, Scheduler, max_copies
from tokenspeed.cache.slab import Slab
from tokenspeed.engine.buffers import Limits, StepArrays
from tokenspeed.engine.device_step import DeviceStep, StepShape
from tokenspeed.engine.executor import Executor
from tokenspeed.engine.loop import EngineLoop
from tokenspeed.engine.prompt_logprobs import PromptWish

if TYPE_CHECKING:
    from tokenspeed.engine.mailbox import Mailbox

PAGE_SIZE = 16


class IdleEvent:
    """Over at a time."""

    def __init__(self, over_ns: int) -> None:
        self.over_ns = over_ns

    def done(self) -> bool:
        return time.perf_counter_ns() >= self.over_ns

    def wait(self) -> None:
        """Spin, as a wait for a GPU does."""
        while time.perf_counter_ns() < self.over_ns:
            pass


class IdleStream:
    """Calls work at once; what lies before an event seems to take ``step_ns``."""

    def __init__(self, step_ns: int) -> None:
        self._step_ns = step_ns
        self._over_ns = 0

    def run(self, work: Callable[[], None]) -> None:
        work()

    def record(self) -> IdleEvent:
        self._over_ns = max(self._over_ns, time.perf_counter_ns()) + self._step_ns
        return IdleEvent(self._over_ns)

    def close(self) -> None:
        pass


class IdleGraph:
    """Captured nothing."""

    def replay(self) -> None:
        pass


class IdleDevice:
    """Keeps its tensors in the host's memory and captures graphs without running them."""

    capabilities = Capabilities("cpu", "none", ("float32",), frozenset({GRAPH_CAPTURE}), 1)
    torch_device = "cpu"

    def __init__(self, step_ns: int) -> None:
        self._step_ns = step_ns

    def memory(self) -> MemoryReport:
        return MemoryReport(total=0, free=0)

    def allocate(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        return torch.zeros(shape, dtype=getattr(torch, dtype))

    host_buffer = allocate

    def stream(self) -> IdleStream:
        return IdleStream(self._step_ns)

    def capture(self, work: Callable[[], None], stream: Stream) -> IdleGraph:
        return IdleGraph()


class IdleStep(DeviceStep):
    """Copies in and out as every step does, and runs no model: each token is 0."""

    def run(
        self, shape: StepShape, host: StepArrays | None, wishes: Sequence[PromptWish] = ()
    ) -> None:
        pass


def build_idle_engine(
    mailbox: Mailbox, *, rows: int, tokens: int, max_model_len: int, step_ns: int
) -> tuple[Executor, EngineLoop]:
    """An engine for ``rows`` requests at once, whose steps hold up to ``tokens`` tokens."""
    device = IdleDevice(step_ns)
    group = CacheGroup("full", layers=(0,), kv_heads=1, head_dim=1)
    pages = rows * -(-max_model_len // PAGE_SIZE)
    planning = Config(
        groups=[CacheGroupConfig("full", PAGE_SIZE)],
        num_pages=pages,
        max_seqs=rows,
        max_model_len=max_model_len,
        max_step_tokens=tokens,
    )
    limits = Limits(
        sequences=rows,
        tokens=tokens,
        groups=1,
        max_kv_len=max_model_len,
        page_size=PAGE_SIZE,
        copies=max_copies(planning),
    )
    context = BuildContext(
        kernels=ReferenceResolver(),
        device=device.capabilities,
        torch_device=device.torch_device,
        dtype="float32",
        max_model_len=max_model_len,
        page_size=PAGE_SIZE,
    )
    slab = Slab(device, (group,), PAGE_SIZE, pages, "float32")
    step = IdleStep(None, device, context, [slab.layers(group)], limits, 1)  # type: ignore[arg-type]
    executor = Executor(step, device, limits, slab)
    return executor, EngineLoop(Scheduler(planning), executor, mailbox)
