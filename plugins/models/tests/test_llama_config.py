# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What Llama reads of a config.json, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from tokenspeed_models.llama import LlamaForCausalLM
from tokenspeed_sdk.contracts.model import CacheGroup

CONFIG: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}


def test_defaults() -> None:
    config = LlamaForCausalLM.read_config(CONFIG)
    assert config.head_dim == 16
    assert config.kv_heads == 4
    assert config.eps == 1e-6
    assert config.rope.theta == 10000.0
    assert (config.tied, config.attention_bias, config.mlp_bias) == (False, False, False)


def test_explicit() -> None:
    config = LlamaForCausalLM.read_config(
        CONFIG | {"head_dim": 32, "num_key_value_heads": 2, "tie_word_embeddings": True}
    )
    assert (config.head_dim, config.kv_heads, config.tied) == (32, 2, True)
    assert LlamaForCausalLM.cache_groups(config) == (CacheGroup("full", (0, 1, 2), 2, 32),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing; state a positive integer"),
        ({"hidden_act": "gelu"}, "hidden_act must be one of silu; got 'gelu'"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 must be a multiple of .* 3"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_type 'linear' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not supported: use a"),
    ],
)
def test_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LlamaForCausalLM.read_config(CONFIG | change)
