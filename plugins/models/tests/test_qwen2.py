# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Qwen2 against Transformers, and which windows it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from tokenspeed_models import qwen2, qwen3
from tokenspeed_sdk.testing import TINY_CONFIG, model_conformance
from transformers import Qwen2ForCausalLM

test_model = model_conformance(qwen2.EntryClass, Qwen2ForCausalLM)

SLIDING = "sliding_attention"


@pytest.mark.parametrize("family", [qwen2, qwen3], ids=lambda family: family.__name__)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"use_sliding_window": True, "max_window_layers": 1}, "max_window_layers 1 of 2 layers"),
        ({"use_sliding_window": True, "max_window_layers": 0}, "max_window_layers 0 of 2 layers"),
        ({"use_sliding_window": True, "max_window_layers": None}, "max_window_layers None of 2"),
        ({"layer_types": ["full_attention", SLIDING]}, f"layer_types must say .*{SLIDING}"),
        ({"layer_types": ["full_attention"]}, "for each of 2 layers"),
    ],
)
def test_a_window_in_use_is_refused(family: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        family.EntryClass.read_config({**TINY_CONFIG, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 1},
        {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2},
        {"sliding_window": 8, "use_sliding_window": True},
        {"use_sliding_window": True, "max_window_layers": 1, "layer_types": ["full_attention"] * 2},
    ],
)
def test_a_window_that_no_layer_uses_is_not(fields: dict[str, Any]) -> None:
    """As Transformers reads the same fields."""
    config = Qwen2ForCausalLM.config_class(**{**TINY_CONFIG, **fields})
    assert config.layer_types == ["full_attention"] * 2
    entry = qwen2.EntryClass
    assert entry.read_config({**TINY_CONFIG, **fields}) == entry.read_config(TINY_CONFIG)
