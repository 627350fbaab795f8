# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a family shows to drafters, against what Transformers' layers read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenspeed_models.llama import LlamaForCausalLM
from tokenspeed_models.qwen2 import Qwen2ForCausalLM
from tokenspeed_models.qwen3 import Qwen3ForCausalLM
from tokenspeed_sdk.contracts.model import ModelEntry, TappedModel
from tokenspeed_sdk.testing import TINY_CONFIG, save_tiny_checkpoint
from tokenspeed_sdk.testing.model.runner import ModelRunner

FAMILIES = [
    (LlamaForCausalLM, transformers.LlamaForCausalLM),
    (Qwen2ForCausalLM, transformers.Qwen2ForCausalLM),
    (Qwen3ForCausalLM, transformers.Qwen3ForCausalLM),
]
LAYERS, TOKENS = 3, list(range(40, 57))


def tapped(entry: ModelEntry, folder: Path, taps: tuple[int, ...]) -> ModelRunner:
    return ModelRunner.from_folder(entry, folder, page_size=4, max_model_len=32, taps=taps)


@pytest.mark.parametrize(("entry", "kind"), FAMILIES)
@torch.inference_mode()
def test_taps_are_what_the_layers_read(entry: ModelEntry, kind: type[Any], tmp_path: Path) -> None:
    theirs = save_tiny_checkpoint(kind, tmp_path, dict(TINY_CONFIG, num_hidden_layers=LAYERS))
    read: list[torch.Tensor] = []
    for module in (*theirs.model.layers, theirs.model.norm):
        module.register_forward_pre_hook(lambda _, args: read.append(args[0][0].clone()))
    theirs(torch.tensor([TOKENS]))
    taps = (3, 0, 1, 2, 1)
    runner = tapped(entry, tmp_path, taps)
    model = runner.model
    assert isinstance(model, TappedModel)
    batch = runner._batch([runner._take(1, TOKENS)], 0)
    hidden, found = model.forward_tapped(batch)
    assert torch.equal(hidden, model.forward(batch))
    assert len(found) == len(taps)
    for tap, ours in zip(taps, found, strict=True):
        torch.testing.assert_close(ours, read[tap], atol=1e-4, rtol=0)
    assert torch.equal(model.embed(batch.token_ids), read[0])


def test_a_layer_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(dict(TINY_CONFIG)))
    with pytest.raises(ValueError, match="reads what the layers 7 of the model read"):
        tapped(LlamaForCausalLM, tmp_path, (1, 7))
