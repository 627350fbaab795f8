# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Step buffers: what one step tells the device, packed so that one copy carries it.

The executor owns a ring of them. The scheduler writes rows, tokens and page-table deltas straight
into the host side; the executor adds what it knows (sampling parameters) and copies once. What a
step of decode rows reads comes first, so that its copy can end there.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import torch

from tokenspeed._scheduler import PlanBuffers, RowFlag
from tokenspeed.messages import MAX_TOP_LOGPROBS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed_sdk.contracts.platform import Device

    from tokenspeed._scheduler import Plan

ALIGNMENT = 64
_EMITS = int(RowFlag.EMITS)  # numpy is slow with enums

LOGPROBS = 1 + MAX_TOP_LOGPROBS
"""Entries of a slot: the token that was drawn, and the likeliest."""

NEWCOMERS = 8
"""Prompts of the greatest length that may begin in one step. Turns of long conversations compute
few tokens, so that many fit in a step; each entry is 16 bytes of every upload."""


@dataclass(frozen=True)
class Limits:
    """Capacities that fix every shape: S sequences, T tokens, G groups, D deltas, M pages.

    Attributes:
        page_size: tokens per page, of the group with the smallest.
        copies, transfer_pages: the scheduler's ``max_copies`` and ``max_transfer_pages``; 0 where
            no scheduler plans.
        mask_words: words of 32 bits that a mask of all tokens has; 0: no row is masked.
        row_tokens: most tokens that a row may return: one, and its drafts.
    """

    sequences: int
    tokens: int
    groups: int
    max_kv_len: int
    page_size: int
    copies: int = 0
    transfer_pages: int = 0
    mask_words: int = 0
    row_tokens: int = 1

    @property
    def emits(self) -> int:
        """Most tokens that are sampled in a step."""
        return self.sequences * self.row_tokens

    @property
    def max_pages(self) -> int:
        return -(-self.max_kv_len // self.page_size)

    @property
    def deltas(self) -> int:
        """New table entries of a step: a page for every row, and whole tables of newcomers."""
        return NEWCOMERS * self.max_pages + self.sequences

    @property
    def sentinel(self) -> int:
        """The slot of padded rows."""
        return self.sequences + 1


@dataclass(frozen=True)
class StepArrays:
    """Every array of a step; entries past a step's counts are stale. E tokens may be sampled."""

    row_request: torch.Tensor  # int64[S]
    row_slot: torch.Tensor  # int32[S]
    row_epoch: torch.Tensor  # int32[S]
    row_flags: torch.Tensor  # uint8[S]
    row_query_start: torch.Tensor  # int32[S + 1]
    row_kv_len: torch.Tensor  # int32[S]
    delta_count: torch.Tensor  # int32[G]
    delta_slot: torch.Tensor  # int32[G, D]
    delta_epoch: torch.Tensor  # int32[G, D]
    delta_index: torch.Tensor  # int32[G, D]
    delta_page: torch.Tensor  # int32[G, D]
    emit_token: torch.Tensor  # int64[E], index of the token that another is sampled behind
    emit_slot: torch.Tensor  # int64[E]
    emit_position: torch.Tensor  # int64[E], position of the token that is sampled
    temperature: torch.Tensor  # float32[E], this and the following by sampled token
    top_k: torch.Tensor  # int32[E]
    top_p: torch.Tensor  # float32[E]
    min_p: torch.Tensor  # float32[E]
    seed: torch.Tensor  # int64[E]
    wanted: torch.Tensor  # int32[E], 1 + how many of the likeliest tokens are told, or 0
    positions: torch.Tensor  # int32[T]
    token_slot: torch.Tensor  # int32[T], not uploaded for decode rows: there it is row_slot
    token_ids: torch.Tensor  # int32[T], neither: a decode row's is the last token of its slot
    draft_count: torch.Tensor  # int32[S], of rows that a model guesses for, the most first; 0: none
    draft_token: torch.Tensor  # int64[S], index of the token that such a row begins with
    draft_slot: torch.Tensor  # int32[S], its slot
    draft_position: torch.Tensor  # int32[S], the position of that token


def _shapes(limits: Limits) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    rows, tokens, emits = (limits.sequences,), (limits.tokens,), (limits.emits,)
    deltas = (limits.groups, limits.deltas)
    i32, i64, f32 = torch.int32, torch.int64, torch.float32
    return {
        "row_request": (rows, i64),
        "row_slot": (rows, i32),
        "row_epoch": (rows, i32),
        "row_flags": (rows, torch.uint8),
        "row_query_start": ((limits.sequences + 1,), i32),
        "row_kv_len": (rows, i32),
        "delta_count": ((limits.groups,), i32),
        "delta_slot": (deltas, i32),
        "delta_epoch": (deltas, i32),
        "delta_index": (deltas, i32),
        "delta_page": (deltas, i32),
        "emit_token": (emits, i64),
        "emit_slot": (emits, i64),
        "emit_position": (emits, i64),
        "temperature": (emits, f32),
        "top_k": (emits, i32),
        "top_p": (emits, f32),
        "min_p": (emits, f32),
        "seed": (emits, i64),
        "wanted": (emits, i32),
        "positions": (tokens, i32),
        "token_slot": (tokens, i32),
        "token_ids": (tokens, i32),
        "draft_count": (rows, i32),
        "draft_token": (rows, i64),
        "draft_slot": (rows, i32),
        "draft_position": (rows, i32),
    }


class StepLayout:
    """Where each array lies in the packed buffer; the same on host and device.

    Attributes:
        bytes: of all of it.
        decode_bytes: how far a step of decode rows reads.
    """

    def __init__(self, limits: Limits) -> None:
        self._shapes = _shapes(limits)
        self._offsets: dict[str, int] = {}
        offset = 0
        for name, (shape, dtype) in self._shapes.items():
            self._offsets[name] = offset
            size = int(np.prod(shape)) * dtype.itemsize
            offset += -(-size // ALIGNMENT) * ALIGNMENT
        self.bytes = offset
        positions = min(limits.sequences, limits.tokens) * torch.int32.itemsize
        self.decode_bytes = self._offsets["positions"] + positions

    def carve(self, packed: torch.Tensor) -> StepArrays:
        """Views of a packed uint8 buffer."""
        views = {}
        for name, (shape, dtype) in self._shapes.items():
            size = int(np.prod(shape)) * dtype.itemsize
            start = self._offsets[name]
            views[name] = packed[start : start + size].view(dtype).view(shape)
        return StepArrays(**views)


UNSIGNED = {"row_request": np.uint64, "row_epoch": np.uint32, "delta_epoch": np.uint32}
"""Arrays that the scheduler writes as unsigned; torch has the signed view of the same bytes."""

SCHEDULER_WRITES = (
    *("row_request", "row_slot", "row_epoch", "row_flags", "row_query_start", "row_kv_len"),
    *("token_ids", "positions", "token_slot", "emit_token", "emit_slot", "emit_position"),
    *("delta_count", "delta_slot", "delta_epoch", "delta_index", "delta_page"),
)


def _host_only(limits: Limits) -> dict[str, np.ndarray]:
    """Pages to move: the host launches the copies, so the device need not know."""
    copies = {f"copy_{end}": np.zeros(limits.copies, np.int32) for end in ("source", "target")}
    transfers = {
        f"{kind}_{what}": np.zeros(limits.transfer_pages, dtype)
        for kind in ("store", "load")
        for what, dtype in (("transfer", np.uint64), ("source", np.int32), ("target", np.int32))
    }
    return copies | transfers


class StepBuffers:
    """One slot of the ring: host arrays for one step, and where its results land.

    Attributes:
        packed, decode_part: all that is uploaded, and as far as a step of decode rows reads.
        arrays, host: its arrays, for torch and for numpy.
        scheduler: what ``Scheduler.plan`` fills and ``Scheduler.commit_sampled`` reads.
        sampled: int64 [E]; as the step left it, in the order of ``emit_token``.
        logprobs: int32 [E, 2 * LOGPROBS], ids and the bits of float32, in that order too; only
            where some are wanted.
        page_tables: likewise the resident tables, where they are to be verified.
        sampling_of: whose sampling parameters the arrays hold.
        mask, mask_row: int32 [E, mask_words] and [E]: of each mask, the place of its token among
            those that are sampled. Uploaded after all the rest.
    """

    def __init__(
        self, device: Device, layout: StepLayout, limits: Limits, *, page_tables: bool = False
    ) -> None:
        """``page_tables``: whether the step brings the resident tables back, to be verified."""
        slots = limits.sequences + 2
        self.packed = device.host_buffer((layout.bytes,), "uint8")
        self.decode_part = self.packed[: layout.decode_bytes]
        arrays = layout.carve(self.packed)
        self.arrays = arrays
        self.host: dict[str, np.ndarray] = {
            field.name: getattr(arrays, field.name).numpy() for field in fields(arrays)
        }
        for name, unsigned in UNSIGNED.items():
            self.host[name] = self.host[name].view(unsigned)
        moves = _host_only(limits)
        self.host |= moves
        written = {name: self.host[name] for name in SCHEDULER_WRITES}
        self.sampled = device.host_buffer((limits.emits,), "int64")
        self.scheduler = PlanBuffers(**written, **moves, sampled=self.sampled.numpy())
        self.logprobs = device.host_buffer((limits.emits, 2 * LOGPROBS), "int32")
        count = limits.groups if page_tables else 0
        tables = (slots, limits.max_pages)
        self.page_tables = [device.host_buffer(tables, "int32") for _ in range(count)]
        self.sampling_of: object = None
        self.mask_arrays = masks_on(device.host_buffer, limits)
        self.mask, self.mask_row = (array.numpy() for array in self.mask_arrays)
        self._sentinel = limits.sentinel

    def drafts(self, plan: Plan) -> int:
        """Tokens of a plan that are guesses."""
        return int(self.host["row_query_start"][plan.num_decode_rows]) - plan.num_decode_rows

    def order_drafts(self, decode_rows: int) -> tuple[int, ...]:
        """Write which rows a model guesses for, those with the most guesses first; how many each
        has. The rest of the arrays are dead rows, of the sentinel."""
        host = self.host
        start = host["row_query_start"][: decode_rows + 1]
        counts = np.diff(start) - 1
        rows = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        for name, of_rows, dead in (
            ("draft_count", counts[rows], 0),
            ("draft_token", start[rows], 0),
            ("draft_slot", host["row_slot"][rows], self._sentinel),
            ("draft_position", host["positions"][start[rows]], 0),
        ):
            host[name][: len(rows)] = of_rows
            host[name][len(rows) :] = dead
        return tuple(counts[rows].tolist())

    def guesses(self, plan: Plan, row: int) -> list[int]:
        """Tokens of one row that are guesses."""
        if row >= plan.num_decode_rows:
            return []
        begin, end = self.host["row_query_start"][row : row + 2].tolist()
        guesses: list[int] = self.host["token_ids"][begin + 1 : end].tolist()
        return guesses

    def emitting(self, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
        """The rows of a plan that emit, and where the first of what each samples stands."""
        host, decode = self.host, plan.num_decode_rows
        rows = np.flatnonzero(host["row_flags"][: plan.num_rows] & _EMITS)
        prompts = len(rows) - decode  # one token each, behind those of all decode rows
        start = host["row_query_start"]
        behind = np.arange(start[decode], start[decode] + prompts)
        return rows, np.concatenate((start[:decode], behind))

    def copies(self, plan: Plan) -> list[tuple[int, int]]:
        """The pages that the step copies: (source, target)."""
        ends = (
            self.host[name][: plan.num_copies].tolist() for name in ("copy_source", "copy_target")
        )
        return list(zip(*ends, strict=True))


def masks_on(
    allocate: Callable[[tuple[int, ...], str], torch.Tensor], limits: Limits
) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks and rows of a step, in memory that ``allocate`` gives."""
    masks = limits.emits if limits.mask_words else 0
    return allocate((masks, limits.mask_words), "int32"), allocate((masks,), "int32")


class DeviceInputs:
    """The device side of whichever step runs: steps follow each other on one stream, so one is
    enough, and its addresses never change."""

    def __init__(self, device: Device, layout: StepLayout, limits: Limits) -> None:
        self._packed = device.allocate((layout.bytes,), "uint8")
        self._decode_part = self._packed[: layout.decode_bytes]
        self.arrays = layout.carve(self._packed)
        self.masks = masks_on(device.allocate, limits)

    def clear(self) -> None:
        """Queue that all arrays are zero, as of no rows."""
        self._packed.zero_()

    def upload_masks(self, buffers: StepBuffers, count: int) -> None:
        """Queue the copy of a step's first masks and their rows."""
        for array, host in zip(self.masks, buffers.mask_arrays, strict=True):
            array[:count].copy_(host[:count], non_blocking=True)

    def upload(self, buffers: StepBuffers, *, decode: bool) -> None:
        """Queue the one copy of a step; ``decode``: no more than decode rows read."""
        if decode:
            self._decode_part.copy_(buffers.decode_part, non_blocking=True)
        else:
            self._packed.copy_(buffers.packed, non_blocking=True)
