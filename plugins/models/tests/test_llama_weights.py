# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Llama accounts for every tensor of its checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenspeed_models.llama import EntryClass
from tokenspeed_sdk.modeling import WeightError
from tokenspeed_sdk.testing.model_runner import ModelRunner

from .oracles import Oracle

SINGLE = "model.safetensors"
IDS = list(range(10))


def load(folder: Path) -> torch.Tensor:
    run: Any = ModelRunner.from_folder(EntryClass, folder, page_size=4, max_model_len=16)
    logits: torch.Tensor = run.step({1: IDS})[1]
    return logits


@pytest.fixture
def change(tmp_path: Path) -> Callable[..., Path]:
    """A copy of a checkpoint without some tensors and with some others."""

    def make(oracle: Oracle, *removed: str, **added: torch.Tensor) -> Path:
        shutil.copy(oracle.folder / "config.json", tmp_path)
        tensors = load_file(oracle.folder / SINGLE)
        for name in removed:
            del tensors[name]
        save_file(tensors | added, tmp_path / SINGLE)
        return tmp_path

    return make


def test_sharded(oracle_of: Callable[[str], Oracle], tmp_path: Path) -> None:
    oracle = oracle_of("gqa")
    oracle.model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert torch.equal(load(tmp_path), load(oracle.folder))


def test_missing(oracle_of: Callable[[str], Oracle], change: Callable[..., Path]) -> None:
    folder = change(oracle_of("gqa"), "model.layers.1.self_attn.k_proj.weight", "lm_head.weight")
    part = r"model\.layers\.1\.self_attn\.k_proj\.weight \(part of .*qkv_proj\.weight\)"
    with pytest.raises(WeightError, match=rf"lacks {part}, lm_head\.weight;"):
        load(folder)


def test_bias_that_the_config_does_not_state(
    oracle_of: Callable[[str], Oracle], change: Callable[..., Path]
) -> None:
    name = "model.layers.0.self_attn.q_proj.bias"
    folder = change(oracle_of("gqa"), **{name: torch.ones(32)})
    with pytest.raises(WeightError, match=rf"the model has no use for {name}"):
        load(folder)


def test_rotary_buffers_of_old_checkpoints_are_ignored(
    oracle_of: Callable[[str], Oracle], change: Callable[..., Path]
) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    folder = change(oracle_of("gqa"), **{name: torch.ones(4)})
    assert torch.equal(load(folder), load(oracle_of("gqa").folder))


def test_misshapen(oracle_of: Callable[[str], Oracle], change: Callable[..., Path]) -> None:
    folder = change(oracle_of("gqa"), **{"model.norm.weight": torch.ones(31)})
    with pytest.raises(WeightError, match=r"model\.norm\.weight is \[31\] .* \[32\] in the model"):
        load(folder)


def test_tied(oracle_of: Callable[[str], Oracle], change: Callable[..., Path]) -> None:
    oracle = oracle_of("tied")
    assert "lm_head.weight" not in load_file(oracle.folder / SINGLE)
    with pytest.raises(WeightError, match=r"lm_head\.weight and .*embed_tokens\.weight are tied"):
        load(change(oracle, **{"lm_head.weight": torch.ones(101, 32)}))
