# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Decode steps as captured graphs: one per bucket of rows, replayed instead of launched.

A step of n decode rows runs in the smallest bucket b >= n. Rows [n, b) are dead: sentinel slot,
KV length 0, greedy. Their arrays are refreshed in every step, so nothing of an earlier, larger
batch is left in them.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from tokenspeed_sdk.contracts.platform import GRAPH_CAPTURE

from tokenspeed.engine.device_step import DeviceStep, StepShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from tokenspeed_sdk.contracts.platform import Device, Graph, Stream

    from tokenspeed.engine.buffers import Limits, StepBuffers


def bucket_sizes(sequences: int) -> list[int]:
    """1, 2, 4, then multiples of 8 up to 64, then of 16, so that padding stays small."""
    sizes = {1, 2, 4, *range(8, 65, 8), *range(80, sequences + 1, 16), sequences}
    return sorted(size for size in sizes if size <= sequences)


def forward_sizes(sequences: int) -> list[int]:
    """Of graphs without the sampling, which fewer steps need: powers of two."""
    powers = [1 << i for i in range(sequences.bit_length())]
    return sorted({*(size for size in powers if size <= sequences), sequences})


class DecodeGraphs:
    """The captured decode steps of one device; none where it captures no graphs."""

    def __init__(
        self,
        step: DeviceStep,
        device: Device,
        stream: Stream,
        limits: Limits,
        sizes: Sequence[int],
        forward_sizes: Sequence[int] = (),
    ) -> None:
        """Capture a graph for each of ``sizes``, given in rising order.

        Args:
            forward_sizes: likewise, of graphs without the sampling.
        """
        self._sentinel = limits.sentinel
        self._max_kv_len = limits.max_kv_len
        self._sizes: list[int] = []
        self._graphs: dict[int, Graph] = {}
        self._forward_sizes: list[int] = []
        self._forward: dict[int, tuple[Graph, _Forward]] = {}
        if GRAPH_CAPTURE not in device.capabilities.features:
            return
        self._sizes = list(sizes)
        for size in reversed(self._sizes):  # the largest first: the others fit in its memory
            work = partial(step.run, self._shape(size), None)
            self._graphs[size] = device.capture(work, stream)
        self._forward_sizes = list(forward_sizes)
        for size in reversed(self._forward_sizes):
            forward = _Forward(step, self._shape(size))
            self._forward[size] = device.capture(forward.run, stream), forward

    def find_forward(self, rows: int, decode_rows: int) -> int | None:
        """As ``find``, of the graphs without the sampling."""
        return _fitting(self._forward_sizes, rows, decode_rows)

    def find(self, rows: int, decode_rows: int) -> int | None:
        """The bucket that a step fits in, or None: it prefills, or is too large."""
        return _fitting(self._sizes, rows, decode_rows)

    def pad(self, buffers: StepBuffers, rows: int, bucket: int) -> None:
        """Make rows [rows, bucket) dead."""
        if rows == bucket:
            return
        host, dead = buffers.host, slice(rows, bucket)
        host["row_slot"][dead] = self._sentinel
        host["row_kv_len"][dead] = 0
        host["row_query_start"][rows : bucket + 1] = np.arange(rows, bucket + 1)
        host["positions"][dead] = 0
        host["emit_slot"][dead] = self._sentinel
        host["emit_position"][dead] = 0
        host["temperature"][dead] = 0.0

    def replay(self, bucket: int) -> None:
        """Launch the graph of a bucket."""
        self._graphs[bucket].replay()

    def replay_forward(self, bucket: int) -> torch.Tensor:
        """Launch the graph without the sampling; the hidden rows, which the next launch reuses."""
        graph, forward = self._forward[bucket]
        graph.replay()
        assert forward.hidden is not None
        return forward.hidden

    def _shape(self, size: int) -> StepShape:
        return StepShape(
            rows=size,
            decode_rows=size,
            tokens=size,
            emits=size,
            has_deltas=True,
            max_query_len=1,
            max_kv_len=self._max_kv_len,
        )


def _fitting(sizes: Sequence[int], rows: int, decode_rows: int) -> int | None:
    if rows != decode_rows or not sizes or rows > sizes[-1]:
        return None
    return sizes[bisect_left(sizes, rows)]


@dataclass
class _Forward:
    """What a graph without the sampling captures.

    Attributes:
        hidden: where its result lies, from the capture on.
    """

    step: DeviceStep
    shape: StepShape
    hidden: torch.Tensor | None = None

    def run(self) -> None:
        self.hidden = self.step.run_forward(self.shape, None)
