# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Decode steps as captured graphs: one per bucket of tokens, replayed instead of launched.

A step of n tokens runs in the smallest bucket b >= n. Tokens [n, b) are dead: sentinel slot, no KV
of their own, greedy. Their arrays are refreshed in every step, so nothing of an earlier, larger
batch is left in them.

Where a step verifies guesses, each token is a row of its own: a row of five guesses and five rows
without one take the same graph, and no row is padded to the guesses of another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from tokenspeed_sdk.contracts.platform import GRAPH_CAPTURE

from tokenspeed.engine.device_step import DeviceStep, StepShape

if TYPE_CHECKING:
    import torch
    from tokenspeed_sdk.contracts.platform import Device, Graph, Stream

    from tokenspeed.engine.buffers import Limits, StepBuffers

MOST_VERIFIED = 512
"""Tokens of the largest step with guesses that is captured; a larger one computes for so long that
its launches are hidden."""


class StepKind(NamedTuple):
    """What a captured step does.

    Attributes:
        verifies: rows have guesses; else each has one token.
        samples: else it ends with the forward pass, since rows are to be masked.
    """

    verifies: bool = False
    samples: bool = True


Sizes: TypeAlias = Mapping[StepKind, Sequence[int]]
"""Tokens of the graphs of each kind, in rising order."""


def graph_sizes(limits: Limits) -> Sizes:
    """Of all graphs that an engine may need."""
    sizes: dict[StepKind, list[int]] = {StepKind(): decode_sizes(limits.sequences)}
    if limits.row_tokens > 1:
        most = min(limits.emits, limits.tokens, MOST_VERIFIED)
        sizes[StepKind(verifies=True)] = verify_sizes(most)
    if limits.mask_words:  # fewer steps are masked
        sizes |= {
            StepKind(kind.verifies, samples=False): power_sizes(each[-1])
            for kind, each in sizes.items()
        }
    return sizes


def decode_sizes(most: int) -> list[int]:
    """1, 2, 4, then multiples of 8 up to 64, then of 16, so that padding stays small."""
    return _up_to(most, {1, 2, 4, *range(8, 65, 8), *range(80, most, 16)})


def verify_sizes(most: int) -> list[int]:
    """Two for each power of two: at most a third is padding."""
    powers = range(1, most.bit_length())
    return _up_to(most, {1 << i for i in powers} | {3 << i for i in powers})


def power_sizes(most: int) -> list[int]:
    """Powers of two."""
    return _up_to(most, {1 << i for i in range(most.bit_length())})


def _up_to(most: int, sizes: set[int]) -> list[int]:
    return sorted({most, *(size for size in sizes if size < most)})


class DecodeGraphs:
    """The captured decode steps of one device; none where it captures no graphs."""

    def __init__(
        self, step: DeviceStep, device: Device, stream: Stream, limits: Limits, sizes: Sizes
    ) -> None:
        """Capture them all."""
        self._sentinel = limits.sentinel
        self._sizes: Sizes = {}
        self._captured: dict[tuple[StepKind, int], _Captured] = {}
        if GRAPH_CAPTURE not in device.capabilities.features:
            return
        self._sizes = sizes
        stream.run(step.clear)
        each = [(size, kind) for kind, of_kind in sizes.items() for size in of_kind]
        for size, kind in sorted(each, reverse=True):  # the others fit in the largest one's memory
            work = _Work(step, _shape(kind, size, limits, drafts=step.drafts), kind.samples)
            self._captured[kind, size] = _Captured(device.capture(work.run, stream), work)

    def find(self, kind: StepKind, tokens: int) -> int | None:
        """The bucket that a step of decode rows fits in; None: it is too large."""
        sizes = self._sizes.get(kind, ())
        if not sizes or tokens > sizes[-1]:
            return None
        return sizes[bisect_left(sizes, tokens)]

    def pad(self, kind: StepKind, buffers: StepBuffers, tokens: int, bucket: int) -> None:
        """Make tokens [tokens, bucket) dead."""
        if tokens == bucket:
            return
        host, dead = buffers.host, slice(tokens, bucket)
        host["positions"][dead] = 0
        host["emit_slot"][dead] = self._sentinel
        host["emit_position"][dead] = 0
        host["temperature"][dead] = 0.0
        host["wanted"][dead] = 0
        if kind.verifies:
            host["token_slot"][dead] = self._sentinel
            host["token_ids"][dead] = 0
            host["emit_token"][dead] = np.arange(tokens, bucket)
        else:
            host["row_slot"][dead] = self._sentinel
            host["row_kv_len"][dead] = 0
            host["row_query_start"][tokens : bucket + 1] = np.arange(tokens, bucket + 1)

    def replay(self, kind: StepKind, bucket: int) -> torch.Tensor | None:
        """Launch a graph. Of one without the sampling, the hidden rows, which the next launch
        reuses."""
        captured = self._captured[kind, bucket]
        captured.graph.replay()
        return captured.work.hidden


def most_drafts(tokens: int, limits: Limits) -> tuple[int, ...]:
    """Guesses that the rows of a step may have, those with the most first: where row r has n, so
    have r others, and each of them has a token more than guesses."""
    rows = range(1, min(limits.sequences, tokens // 2) + 1)
    return tuple(min(limits.row_tokens, tokens // row) - 1 for row in rows)


def _shape(kind: StepKind, size: int, limits: Limits, *, drafts: bool) -> StepShape:
    return StepShape(
        rows=size,
        decode_rows=size,
        tokens=size,
        emits=size,
        has_deltas=True,
        max_query_len=1,
        max_kv_len=limits.max_kv_len,
        verifies=kind.verifies,
        drafted=most_drafts(size, limits) if drafts and kind.verifies else (),
        flat=kind.verifies,
    )


@dataclass(frozen=True)
class _Captured:
    graph: Graph
    work: _Work


@dataclass
class _Work:
    """What a graph captures.

    Attributes:
        hidden: where the result of a forward pass lies, from the capture on.
    """

    step: DeviceStep
    shape: StepShape
    samples: bool
    hidden: torch.Tensor | None = None

    def run(self) -> None:
        if self.samples:
            self.step.run(self.shape, None)
        else:
            self.hidden = self.step.run_forward(self.shape, None)
