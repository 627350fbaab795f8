# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What weights of eight bits cost: perplexity of a text, real weights, the CPU's own kernels.

    ts bench weights FOLDER --quantization int8 --text tests/data/constitution.txt

measures the same on more tokens.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenspeed.bench.engine import launch_plan
from tokenspeed.bench.perplexity import perplexity
from tokenspeed.config import EngineConfig
from tokenspeed.front.model_folder import ModelFolder
from tokenspeed.plugins.load.activate import load_platform

pytestmark = pytest.mark.weights

TEXT = Path(__file__).parent.parent / "data" / "constitution.txt"
TOKENS = 520  # more than two chunks
MOST = 1.02


@pytest.fixture(scope="module")
def found(demo_folder: Path) -> dict[str | None, float]:
    """Quantization to perplexity."""
    with launch_plan(EngineConfig(model=str(demo_folder), threads=2)) as plan:
        platform = load_platform(plan.plugins)
        platform.prepare(2)
        device = platform.open()
        ids = token_ids(demo_folder)
        return {each: perplexity(plan, device, ids, quantization=each) for each in (None, "int8")}


def token_ids(folder: Path) -> list[int]:
    ids: list[int] = ModelFolder(str(folder)).tokenizer.encode(TEXT.read_text("utf-8")).ids
    return ids[:TOKENS]


@torch.inference_mode()
def test_it_is_that_of_transformers(demo_folder: Path, found: dict[str | None, float]) -> None:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(demo_folder, dtype=torch.float32)
    ids = torch.tensor([token_ids(demo_folder)])
    assert found[None] == pytest.approx(math.exp(model(ids, labels=ids).loss.item()), rel=1e-4)


def test_integers_cost_two_percent_at_most(found: dict[str | None, float]) -> None:
    assert found["int8"] != found[None]
    assert found["int8"] <= MOST * found[None]
