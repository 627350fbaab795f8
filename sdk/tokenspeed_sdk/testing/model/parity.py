# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Checks of a model's numbers: Transformers' logits, however tokens are cut into batches.

All are teacher-forced: both read the same tokens, and every position is compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from tokenspeed_sdk.testing.model.oracle import Oracle
from tokenspeed_sdk.testing.model.runner import ModelRunner

ATOL = 1e-4
"""Of float32 logits; nothing is excused."""

BFLOAT16_RATIO = 1.25
"""RMS error in bfloat16 against float32: ours to that of Transformers."""

LENGTH = 45
PAGE_SIZES = (4, 16)


def check_prefill(oracle: Oracle, scratch: Path) -> None:
    """A whole sequence in one batch, over pages in several random orders."""
    ids = oracle.tokens(1, LENGTH)
    wanted = oracle.logits(ids)
    for page_size in PAGE_SIZES:
        for seed in (0, 1):
            found = oracle.runner(page_size, seed=seed).step({1: ids})[1]
            _compare(found, wanted, f"one prefill, pages of {page_size} in random order {seed}")


def check_chunks(oracle: Oracle, scratch: Path) -> None:
    """The same logits when the prompt comes in pieces: cache and positions carry over."""
    ids = oracle.tokens(2, LENGTH)
    wanted = oracle.logits(ids)
    for page_size, sizes in ((4, [7]), (4, [20, 1, 1, 13, 1]), (16, [16]), (16, [5, 17, 1])):
        pieces = _pieces(LENGTH, sizes)
        found = _feed(oracle.runner(page_size), 3, ids, pieces)
        _compare(found, wanted, f"pieces of {pieces} tokens, pages of {page_size}")


def check_decode(oracle: Oracle, scratch: Path) -> None:
    """Token by token, as an answer is generated."""
    ids = oracle.tokens(3, LENGTH)
    found = _feed(oracle.runner(4), 2, ids, [1] * LENGTH)
    _compare(found, oracle.logits(ids), "token by token, pages of 4")


def check_batches(oracle: Oracle, scratch: Path) -> None:
    """Three sequences in one batch that turn from prefill to decode and back at different steps.

    The batches also carry dead rows, which an engine pads captured graphs with.
    """
    pieces = {5: [6] + [1] * 39, 1: [1, 1, 20, 23], 3: [9] * 5}
    ids = {slot: oracle.tokens(slot, LENGTH) for slot in pieces}
    for slot, found in _feed_together(oracle.runner(4, dead_rows=2), ids, pieces).items():
        _compare(found, oracle.logits(ids[slot]), f"slot {slot} of three in one batch")


def check_reused_slot(oracle: Oracle, scratch: Path) -> None:
    """A slot and its pages go to another sequence: nothing of the last one is seen."""
    run = oracle.runner(4, slots=1)
    for seed in (1, 2, 3):
        ids = oracle.tokens(seed, LENGTH)
        _compare(run.step({1: ids})[1], oracle.logits(ids), f"sequence {seed} in the same slot")
        run.release(1)


def check_bfloat16(oracle: Oracle, scratch: Path) -> None:
    """In bfloat16 it is about as near to float32 as Transformers is, over several sequences."""
    texts = [oracle.tokens(seed, LENGTH) for seed in (1, 2, 3)]
    exact = torch.cat([oracle.logits(ids) for ids in texts])
    theirs = oracle.kind.from_pretrained(oracle.folder, dtype=torch.bfloat16).eval()
    wanted = torch.cat([oracle.logits(ids, theirs) for ids in texts])
    run = oracle.runner(dtype="bfloat16")
    found = torch.cat([run.step({slot: ids})[slot] for slot, ids in enumerate(texts, 1)])
    error, allowed = _rms(found - exact), BFLOAT16_RATIO * _rms(wanted - exact)
    assert error <= allowed, (
        f"in bfloat16 the RMS error of the logits is {error:.3g}; {BFLOAT16_RATIO} times that of "
        f"Transformers is {allowed:.3g}: look for a value that should be computed in float32"
    )


def _compare(found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    """AssertionError says where the first wrong position is, which tells much about the cause."""
    assert found.dtype == torch.float32, f"logits must be float32; they are {found.dtype}"
    assert found.shape == wanted.shape, (
        f"{what}: logits are {list(found.shape)}, those of Transformers {list(wanted.shape)}"
    )
    error = (found - wanted).abs().amax(dim=1)
    wrong = ~(error <= ATOL)  # so that NaN is wrong
    if not wrong.any():
        return
    first = int(wrong.nonzero()[0])
    raise AssertionError(
        f"{what}: logits differ from Transformers at {int(wrong.sum())} of {len(wrong)} positions; "
        f"first at position {first}, by {float(error[first]):.3g} (allowed {ATOL}). {_hint(first)}"
    )


def _hint(first: int) -> str:
    if first == 0:
        return (
            "Position 0 attends to itself alone and is not rotated: look at weights, norms, MLP, "
            "residual and head"
        )
    return (
        f"Positions below {first} agree, so weights and MLP are right: look at rotary positions, "
        "the scale and heads of attention, and the cache"
    )


def _rms(error: torch.Tensor) -> float:
    return float(error.square().mean().sqrt())


def _pieces(length: int, sizes: Sequence[int]) -> list[int]:
    """Sizes that add up to ``length``: those given, the last repeated, the end cut."""
    pieces: list[int] = []
    while sum(pieces) < length:
        wanted = sizes[min(len(pieces), len(sizes) - 1)]
        pieces.append(min(wanted, length - sum(pieces)))
    return pieces


def _feed(run: ModelRunner, slot: int, ids: list[int], pieces: Sequence[int]) -> torch.Tensor:
    return _feed_together(run, {slot: ids}, {slot: pieces})[slot]


def _feed_together(
    run: ModelRunner, ids: Mapping[int, list[int]], pieces: Mapping[int, Sequence[int]]
) -> dict[int, torch.Tensor]:
    """Slot -> logits of all its tokens; step i gives each slot its i-th piece, while it has one."""
    found: dict[int, list[torch.Tensor]] = {slot: [] for slot in ids}
    done = dict.fromkeys(ids, 0)
    for step in range(max(map(len, pieces.values()))):
        batch = {}
        for slot, sizes in pieces.items():
            if step < len(sizes):
                batch[slot] = ids[slot][done[slot] : done[slot] + sizes[step]]
                done[slot] += sizes[step]
        for slot, logits in run.step(batch).items():
            found[slot].append(logits)
    return {slot: torch.cat(parts) for slot, parts in found.items()}
