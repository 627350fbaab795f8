# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Page copies and the host tier on the GPU: side streams, pinned memory, in front of graphs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conversations import Conversations
from copies import check_copies
from harness import all_at_once, engine, greedy, submit
from moves import HOST_PAGES, PAGES, HookedDevice, drain, start, tiers, unreliable

pytestmark = pytest.mark.gpu


def conversations() -> Conversations:
    return Conversations(seed=31, number=6, turns=5, first=30, more=11, answer=6, most=2)


@pytest.mark.parametrize("order", ["runs", "scattered"])
def test_pages_come_back_byte_for_byte(gpu: Any, order: str) -> None:
    rng = np.random.default_rng(1)
    pages, host = np.arange(1, 19), np.arange(3, 21)
    if order == "scattered":
        pages, host = rng.permutation(pages), rng.permutation(host)
    back = rng.permutation(np.arange(1, PAGES + 1))[:18]
    slab, pool, mover = tiers(gpu)
    assert all(pool.rows(page, 1).is_pinned() for page in range(HOST_PAGES + 1))
    before = slab.rows.cpu()
    with closing(mover):
        numbers = np.repeat(np.array([7, 4, 1 << 63], np.uint64), 6)
        start(mover, stores=(numbers, pages, host))
        assert all(ended.ok for ended in drain(mover, 3))
        slab.rows.zero_()
        torch.cuda.synchronize()
        start(mover, loads=(numbers, host, back))
        assert all(ended.ok for ended in drain(mover, 3))
    after = slab.rows.cpu()
    assert after[back].equal(before[pages])
    assert not after[np.setdiff1d(np.arange(PAGES + 1), back)].any()


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_a_page_is_copied_and_then_written(
    gpu: Any, kernels: Any, small_llama: Path, graphs: bool
) -> None:
    with engine(small_llama, gpu, kernels=kernels, graphs=graphs) as built:
        check_copies(built.executor)


@pytest.mark.parametrize("failing", [0.0, 0.3])
def test_turns_come_back_from_the_host(
    gpu: Any, kernels: Any, small_llama: Path, failing: float
) -> None:
    """A device pool of 44 pages and a host tier answer as a pool that holds everything."""
    streams = HookedDevice(gpu, unreliable(32, failing=failing, longest=0.0))
    answers = []
    for options in ({"pages": 400}, {"pages": 44, "host_pages": 400, "mover_device": streams}):
        with engine(small_llama, gpu, kernels=kernels, **options) as built:
            told = built.run(conversations().script).answers
            counters, ledger = built.scheduler.counters(), built.scheduler.ledger()
        answers.append({request: answer.tokens for request, answer in told.items()})
    print(
        f"{counters.stored_pages} pages stored, {counters.loaded_pages} loaded, "
        f"{counters.failed_transfers} transfers failed, {counters.host_cached_tokens} tokens hit"
    )
    assert answers[0] == answers[1]
    assert counters.host_cached_tokens > 0
    assert (counters.failed_transfers > 0) == (failing > 0)
    assert ledger.balanced, ledger.detail
    assert (ledger.in_transfer, ledger.host_in_transfer) == (0, 0)


def test_a_hit_ends_inside_a_page(gpu: Any, kernels: Any, small_llama: Path) -> None:
    stem = [(7 * i + 3) % 97 for i in range(40)]
    asked = [stem] + [[*stem[:cut], *[90 - cut] * 9] for cut in range(21, 32)]
    with engine(small_llama, gpu, kernels=kernels) as built:
        first = built.run(all_at_once([submit(0, stem, 5)])).answers
        rest = built.run(all_at_once([submit(i, p, 5) for i, p in enumerate(asked) if i])).answers
        copies = built.scheduler.counters().page_copies
    for i, prompt in enumerate(asked):
        assert (first | rest)[i].tokens == greedy(small_llama, prompt, 5), i
    assert copies >= 8
