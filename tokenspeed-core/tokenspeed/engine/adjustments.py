# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What tenants ask of their logits: resident on the device by slot, brought there when they come.

A tenant that asks for nothing finds its slot empty, and nothing is copied for it. Counts of tokens
are a dense table [slots, vocabulary]: 4 bytes for each token of each slot, so 40 MB for 64 requests
and 150,000 tokens, and the rows that are kept for log-probabilities take as much. So a step reads
and writes what it needs without a search, in a captured graph too, and one copy brings all that a
tenant comes with, however long its prompt.

    record of a slot: | wanted | 3 penalties | ids ... | values ... | untils ... |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from tokenspeed.engine.buffers import LOGPROBS
from tokenspeed.messages import MAX_BIASES

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenspeed_sdk.contracts.platform import Device

    from tokenspeed.engine.buffers import Limits
    from tokenspeed.messages import Sampling

PENALTIES, IDS = 1, 4
VALUES, UNTILS = IDS + MAX_BIASES, IDS + 2 * MAX_BIASES
RECORD = IDS + 3 * MAX_BIASES
"""Words of 4 bytes."""

History: TypeAlias = "Callable[[int], tuple[NDArray[np.int32], int]]"
"""Of a request: its tokens so far, and how many of them are the prompt."""


class Adjustments:
    """The tables on the device; a slot of zeros asks for nothing.

    Attributes:
        penalties: float32 [slots, 3].
        counts: int32 [slots, vocabulary].
        kept: float32 [emits, vocabulary]; logits of rows whose log-probabilities are wanted.
        settings: arguments of ``adjust_logits@1`` by slot.
        logprobs: int32 [emits, 2 * LOGPROBS], what was found of tokens that were drawn; ``found``
            are ids and values in it.
    """

    def __init__(self, device: Device, limits: Limits, vocab_size: int) -> None:
        slots = limits.sequences + 2
        self._records = device.allocate((slots, RECORD), "int32")
        self.counts = device.allocate((slots, vocab_size), "int32")
        self._twos = torch.full_like(self.counts[0, :1], 2).expand(limits.emits)
        self.kept = device.allocate((limits.emits, vocab_size), "float32")
        self.logprobs = device.allocate((limits.emits, 2 * LOGPROBS), "int32")
        values = self.logprobs[:, LOGPROBS:].view(torch.float32)
        self.found = (self.logprobs[:, :LOGPROBS], values)
        self.penalties = self._records[:, PENALTIES:IDS].view(torch.float32)
        self.settings = (
            self._records[:, :PENALTIES],
            self.penalties,
            self.counts,
            self._records[:, IDS:VALUES],
            self._records[:, VALUES:UNTILS].view(torch.float32),
            self._records[:, UNTILS:],
        )

    def count(self, slot: torch.Tensor, token: torch.Tensor, which: torch.Tensor) -> None:
        """Count those of the tokens that were generated; several may be of one slot.

        Others count in slot 0, which is nobody's. Counts of slots without penalties are never read.

        Args:
            slot, token: [E] int64.
            which: [E] bool.
        """
        place = torch.add(token, slot, alpha=self.counts.shape[1])
        at = torch.where(which, place, 0)
        self.counts.view(-1).scatter_add_(0, at, self._twos[: len(at)])

    def load(self, slot: int, record: torch.Tensor, counts: torch.Tensor | None) -> None:
        """Queue the copies of a tenant: int32 [RECORD], and [vocabulary] if it has penalties."""
        self._records[slot].copy_(record, non_blocking=True)
        if counts is not None:
            self.counts[slot].copy_(counts, non_blocking=True)


@dataclass(frozen=True)
class _Staged:
    """Host memory for one tenant: int32 [RECORD] and int32 [vocabulary]."""

    record: torch.Tensor
    counts: torch.Tensor


class TenantLoader:
    """Fills in host memory for tenants that come, in as many places as steps are in flight."""

    def __init__(self, device: Device, tables: Adjustments, places: int) -> None:
        taken: set[int] = set()
        self._places = [_Place(device, tables, taken) for _ in range(places)]

    def place(self, index: int) -> _Place:
        """The place of a step; the copies of its last user have ended."""
        self._places[index].reset()
        return self._places[index]


class _Place:
    """Host memory of one step; grows to the most tenants that ask for something in one."""

    def __init__(self, device: Device, tables: Adjustments, taken: set[int]) -> None:
        """``taken``: slots whose record is not empty, shared by all places."""
        self._device = device
        self._tables = tables
        self._taken = taken
        self._staged: list[_Staged] = []
        self._used = 0

    def reset(self) -> None:
        """Begin a step."""
        self._used = 0

    def stage(
        self, slot: int, sampling: Sampling, history: Callable[[], tuple[NDArray[np.int32], int]]
    ) -> Callable[[], None] | None:
        """What has to run on the stream before the first step of a tenant; None for nothing."""
        asks = sampling.adjusts
        if not asks and slot not in self._taken:
            return None
        (self._taken.add if asks else self._taken.discard)(slot)
        host = self._next()
        write_record(host.record.numpy(), sampling)
        counts = None
        if sampling.penalizes:
            counts = host.counts
            count_tokens(counts.numpy(), *history())
        return partial(self._tables.load, slot, host.record, counts)

    def _next(self) -> _Staged:
        if self._used == len(self._staged):
            vocab_size = self._tables.counts.shape[1]
            self._staged.append(
                _Staged(
                    self._device.host_buffer((RECORD,), "int32"),
                    self._device.host_buffer((vocab_size,), "int32"),
                )
            )
        self._used += 1
        return self._staged[self._used - 1]


def write_record(record: NDArray[np.int32], sampling: Sampling) -> None:
    """Fill in int32 [RECORD]."""
    record.fill(0)
    record[0] = sampling.logprobs + 1
    floats = record.view(np.float32)
    if sampling.penalizes:
        floats[PENALTIES:IDS] = sampling.penalties
    for i, bias in enumerate(sampling.biases):
        record[IDS + i] = bias.token
        floats[VALUES + i] = bias.value
        record[UNTILS + i] = bias.until


def count_tokens(counts: NDArray[np.int32], tokens: NDArray[np.int32], prompt: int) -> None:
    """Fill in int32 [vocabulary]: twice how often each was generated, plus 1 if in the prompt."""
    counts[:] = np.bincount(tokens[prompt:], minlength=len(counts))
    counts *= 2
    counts[tokens[:prompt]] |= 1


def no_history(request: int) -> tuple[NDArray[np.int32], int]:
    """For those who run steps of requests without penalties."""
    raise LookupError(f"request {request} has penalties, and nobody says which tokens it has")
