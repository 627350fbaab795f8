# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Qwen3 against Transformers; its head size has a default of its own."""

from __future__ import annotations

from tokenspeed_models.qwen3 import EntryClass
from tokenspeed_sdk.testing import TINY_CONFIG, model_conformance
from transformers import Qwen3ForCausalLM

test_model = model_conformance(
    EntryClass,
    Qwen3ForCausalLM,
    {"biases": {"attention_bias": True, "head_dim": 32}},
    base={**TINY_CONFIG, "head_dim": 16},
)


def test_an_absent_head_dim_is_that_of_the_family() -> None:
    theirs = Qwen3ForCausalLM.config_class(**TINY_CONFIG)
    assert EntryClass.read_config(TINY_CONFIG).head_dim == theirs.head_dim
