# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The first steps of an engine, before it says that it is ready: every kernel runs once.

A kernel that raises, or returns what its op does not, then ends the start and not the first
request. All rows belong to the sentinel slot and all tokens lie in the null page, so nothing that
a request will read is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.engine.buffers import Limits, StepBuffers, StepLayout
from tokenspeed.engine.device_step import DeviceStep, StepShape

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.platform import Device


def dry_steps(step: DeviceStep, device: Device, limits: Limits, sizes: Sequence[int]) -> None:
    """Run a decode and a prefill step of each size that fits, and wait for them; where rows may
    have guesses, also a step of decode rows with some.

    Args:
        sizes: rows of the steps of decode rows, tokens of the prefill step.

    Raises what a kernel raised.
    """
    buffers = StepBuffers(device, StepLayout(limits), limits)
    done: set[StepShape] = set()
    with closing(device.stream()) as stream:
        for size in sizes:
            for fill in (_decode, _prefill, *([_verify] if limits.row_tokens > 1 else [])):
                shape = fill(buffers, limits, size)
                if shape in done:  # there is room for no more
                    continue
                done.add(shape)
                stream.run(partial(step.upload, buffers))
                stream.run(partial(step.run, shape, buffers.arrays))
                if limits.mask_words:
                    stream.run(partial(_run_masked, step, shape, buffers))
                stream.run(partial(step.download, buffers))
                stream.record().wait()


def _run_masked(step: DeviceStep, shape: StepShape, buffers: StepBuffers) -> None:
    """The same in two parts, with a mask for every row that lets all tokens through."""
    buffers.mask[: shape.emits] = -1
    buffers.mask_row[: shape.emits] = np.arange(shape.emits)
    hidden = step.run_forward(shape, buffers.arrays)
    step.run_sampling(shape, hidden, buffers, shape.emits)


def _decode(buffers: StepBuffers, limits: Limits, rows: int) -> StepShape:
    """Rows with one token each, at most as many as there are sequences."""
    rows = min(rows, limits.sequences, limits.tokens)
    _fill(buffers, limits, starts=np.arange(rows + 1), kv_len=1)
    return _shape(buffers, rows=rows, decode_rows=rows)


def _verify(buffers: StepBuffers, limits: Limits, rows: int) -> StepShape:
    """Rows with two guesses: one that follows a token, and one that follows a guess. More would be
    slower and call no other kernel: kernels are chosen by numbers of rows, and three tokens a row
    lie in every bucket of those but that of one.
    """
    each = min(3, limits.row_tokens, limits.max_kv_len)
    rows = max(1, min(rows, limits.sequences, limits.tokens // each))
    _fill(buffers, limits, starts=each * np.arange(rows + 1), kv_len=each)
    emits = each * rows
    buffers.host["emit_token"][:emits] = np.arange(emits)
    buffers.host["emit_slot"][:emits] = limits.sentinel
    shape = _shape(buffers, rows=rows, decode_rows=rows)
    return replace(shape, emits=emits, verifies=True, drafted=buffers.order_drafts(rows))


def _prefill(buffers: StepBuffers, limits: Limits, tokens: int) -> StepShape:
    """One row of two tokens at least: a prompt of one would need no gathering of rows."""
    tokens = min(max(tokens, 2), limits.tokens, limits.max_kv_len)
    _fill(buffers, limits, starts=np.array([0, tokens]), kv_len=tokens)
    return _shape(buffers, rows=1, decode_rows=0)


def _fill(buffers: StepBuffers, limits: Limits, starts: np.ndarray, kv_len: int) -> None:
    host, rows, tokens = buffers.host, len(starts) - 1, int(starts[-1])
    host["row_query_start"][: rows + 1] = starts
    host["row_slot"][:rows] = limits.sentinel
    host["row_kv_len"][:rows] = kv_len
    host["token_slot"][:tokens] = limits.sentinel
    host["positions"][:tokens] = np.concatenate([np.arange(n) for n in np.diff(starts)])
    host["emit_token"][:rows] = starts[1:] - 1
    host["emit_slot"][:rows] = limits.sentinel
    host["emit_position"][:rows] = kv_len


def _shape(buffers: StepBuffers, rows: int, decode_rows: int) -> StepShape:
    host = buffers.host
    tokens = int(host["row_query_start"][rows])
    return StepShape(
        rows=rows,
        decode_rows=decode_rows,
        tokens=tokens,
        emits=rows,
        has_deltas=True,  # none: their count is 0
        max_query_len=tokens // rows,
        max_kv_len=int(host["row_kv_len"][0]),
    )
