# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The head's logits, and what it hands on, against the formula in plain torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import eagle
import pytest
import torch
from tokenspeed_models.eagle3 import Eagle3, Eagle3Head
from tokenspeed_sdk.modeling import ForwardBatch, load_weights
from tokenspeed_sdk.testing.model.runner import PagedCache, plain_context

TEXTS = [[5, 3, 88, 41, 7], list(range(20, 43)), [96] * 9]


@dataclass
class Embedding:
    """What the head reads of its target."""

    table: torch.Tensor

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.table[token_ids]


def batch(cache: PagedCache, slot: int, tokens: Sequence[int]) -> ForwardBatch:
    """The next tokens of a slot, one row."""
    start = cache.lengths.get(slot, 0)
    cache.extend(slot, len(tokens))
    count, end = len(tokens), start + len(tokens)
    return ForwardBatch(
        token_ids=torch.tensor(tokens),
        positions=torch.arange(start, end, dtype=torch.int32),
        token_slot=torch.full((count,), slot, dtype=torch.int32),
        row_slot=torch.tensor([slot], dtype=torch.int32),
        query_start=torch.tensor([0, count], dtype=torch.int32),
        kv_len=torch.tensor([end], dtype=torch.int32),
        num_decode_rows=int(count == 1),
        max_query_len=count,
        max_kv_len=end,
        caches=cache.views,
    )


def loaded(folder: Path, target: Path, table: torch.Tensor) -> tuple[Eagle3Head, PagedCache]:
    backend = Eagle3()
    read = [json.loads((each / "config.json").read_text()) for each in (folder, target)]
    config = backend.read_config(*read)
    head = backend.build(config, plain_context(), Embedding(table), ())  # type: ignore[arg-type]
    load_weights(head.weight_map(), folder)
    head.prepare()
    options: dict[str, Any] = {"slots": 4, "pages_per_slot": 16, "page_size": 4, "seed": 0}
    groups = backend.cache_groups(config)
    return head, PagedCache(groups, dtype=torch.float32, device="cpu", **options)


@torch.inference_mode()
@pytest.mark.parametrize("seed", range(3))
def test_logits_are_those_of_the_formula(tiny_llama: Path, tmp_path: Path, seed: int) -> None:
    formula = eagle.random_head(tiny_llama, seed)
    folder = eagle.save_head(formula, tmp_path)
    head, cache = loaded(folder, tiny_llama, formula.embedding)
    for slot, text in enumerate(TEXTS, 1):
        states = eagle.states(tiny_llama, torch.tensor(text[:-1]))
        taps = tuple(states.split(formula.hidden, -1))
        head.observe(batch(cache, slot, text[:-1]), taps)
        tokens, before = torch.tensor(text), formula.before(states)
        features = before[-1:].clone()
        for _ in range(4):
            wanted = formula(tokens, before)[-1:]
            logits, features = head.step(batch(cache, slot, tokens[-1:].tolist()), features)
            torch.testing.assert_close(logits, formula.logits(wanted), atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(features, wanted, atol=1e-4, rtol=1e-4)
            tokens = torch.cat((tokens, formula.ids[logits.argmax(-1)]))
            before = torch.cat((before, wanted))
