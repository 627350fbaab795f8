# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Each family against Transformers, through paged KV, however the tokens are cut into batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenspeed_sdk.testing.model_runner import ModelRunner

from .oracles import LLAMAS, QWEN3S, Oracle

LENGTH = 45
TOLERANCE = {"rtol": 0.0, "atol": 1e-4}


def tokens(seed: int, count: int = LENGTH) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 101, (count,), generator=generator).tolist()


def runner(oracle: Oracle, page_size: int, **options: Any) -> ModelRunner:
    return ModelRunner.from_folder(
        oracle.entry, oracle.folder, page_size=page_size, max_model_len=64, **options
    )


def feed(run: ModelRunner, slot: int, ids: list[int], sizes: list[int]) -> torch.Tensor:
    """Logits of all tokens, given in pieces of these sizes, the last repeated."""
    logits, done = [], 0
    while done < len(ids):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        logits.append(run.step({slot: ids[done : done + size]})[slot])
        done += size
    return torch.cat(logits)


@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize("name", [*LLAMAS, *QWEN3S])
def test_prefill(oracle_of: Callable[[str], Oracle], name: str, page_size: int) -> None:
    oracle, ids = oracle_of(name), tokens(1)
    found = runner(oracle, page_size).step({1: ids})[1]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, oracle.logits(ids), **TOLERANCE)


@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize("name", ["llama3-rope", "qwen3"])
@pytest.mark.parametrize("sizes", [[7], [16], [1], [20, 1, 1, 13, 1]], ids=str)
def test_chunks(
    oracle_of: Callable[[str], Oracle], sizes: list[int], name: str, page_size: int
) -> None:
    oracle, ids = oracle_of(name), tokens(2)
    found = feed(runner(oracle, page_size), 3, ids, list(sizes))
    torch.testing.assert_close(found, oracle.logits(ids), **TOLERANCE)


@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize("dead_rows", [0, 2])
def test_mixed_batches(oracle_of: Callable[[str], Oracle], page_size: int, dead_rows: int) -> None:
    """Three slots at once that turn from prefill to decode and back at different steps."""
    oracle = oracle_of("biases")
    run = runner(oracle, page_size, dead_rows=dead_rows, seed=page_size)
    ids = {slot: tokens(slot) for slot in (5, 1, 3)}
    pieces = {5: [6] + [1] * 39, 1: [1, 1, 20, 23], 3: [9, 9, 9, 9, 9]}
    found: dict[int, list[torch.Tensor]] = {slot: [] for slot in ids}
    done = dict.fromkeys(ids, 0)
    while any(pieces.values()):
        batch = {}
        for slot, sizes in pieces.items():
            if sizes:
                size = sizes.pop(0)
                batch[slot] = ids[slot][done[slot] : done[slot] + size]
                done[slot] += size
        for slot, logits in run.step(batch).items():
            found[slot].append(logits)
    for slot, parts in found.items():
        wanted = oracle.logits(ids[slot][: done[slot]])
        torch.testing.assert_close(torch.cat(parts), wanted, **TOLERANCE)


def test_a_slot_may_be_used_again(oracle_of: Callable[[str], Oracle]) -> None:
    oracle = oracle_of("gqa")
    run = runner(oracle, 4, slots=1)
    for seed in (1, 2, 3):
        ids = tokens(seed)
        torch.testing.assert_close(run.step({1: ids})[1], oracle.logits(ids), **TOLERANCE)
        run.release(1)


def test_bfloat16_is_as_near_as_transformers(oracle_of: Callable[[str], Oracle]) -> None:
    """RMS error against float32 at most 1.25 times that of Transformers in bfloat16."""
    import copy

    oracle, ids = oracle_of("gqa"), tokens(4)
    exact = oracle.logits(ids)
    theirs = (
        Oracle(oracle.entry, oracle.folder, copy.deepcopy(oracle.model).bfloat16())
        .logits(ids)
        .float()
    )
    ours = runner(oracle, 16, dtype="bfloat16").step({1: ids})[1]
    error = (ours - exact).square().mean().sqrt()
    assert error <= 1.25 * (theirs - exact).square().mean().sqrt()
