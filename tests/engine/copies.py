# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""One decode step that copies a page and then writes into the copy, on any device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from tokenspeed._scheduler import RowFlag
from tokenspeed.engine.executor import Executor

SOURCE, TARGET = 3, 4


def check_copies(executor: Executor) -> None:
    """The row's only page is a copy of another; its second token is written there."""
    executor._slab.rows.view(torch.float32).uniform_()
    before = _kv(executor)
    executor.wait(executor.dispatch(_plan(executor), {}))
    after = _kv(executor)
    others = [page for page in range(1, before.shape[1]) if page != TARGET]
    assert after[:, others].equal(before[:, others])
    copied, source = after[:, TARGET], before[:, SOURCE]
    assert copied[:, :, 0].equal(source[:, :, 0]), "the page was copied"
    assert bool((copied[:, :, 1] != source[:, :, 1]).all()), "and then the forward wrote into it"
    assert copied[:, :, 2:].equal(source[:, :, 2:])


def _kv(executor: Executor) -> torch.Tensor:
    """Keys and values of all layers, [2 layers, pages + 1, kv_heads, page_size, head_dim]."""
    (cache,) = executor._step._caches
    return torch.stack([*cache.keys, *cache.values]).cpu()


def _plan(executor: Executor) -> Any:
    host = executor.next_buffers().host
    host["row_slot"][0] = host["token_slot"][0] = host["emit_slot"][0] = 1
    host["row_flags"][0] = int(RowFlag.EMITS | RowFlag.DECODE)
    host["row_query_start"][:2] = (0, 1)
    host["row_kv_len"][0] = host["emit_position"][0] = 2
    host["positions"][0] = 1
    host["delta_count"][0] = 1
    host["delta_slot"][0, 0], host["delta_epoch"][0, 0] = 1, 1
    host["delta_index"][0, 0], host["delta_page"][0, 0] = 0, TARGET
    host["copy_source"][0], host["copy_target"][0] = SOURCE, TARGET
    return SimpleNamespace(
        step=0,
        num_rows=1,
        num_decode_rows=1,
        num_tokens=1,
        num_emits=1,
        num_new_tenants=0,
        max_query_len=1,
        max_kv_len=2,
        num_deltas=[1],
        num_copies=1,
    )
