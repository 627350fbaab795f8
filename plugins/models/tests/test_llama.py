# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Llama against Transformers, and what only Llama's file can get wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenspeed_models.llama import EntryClass
from tokenspeed_sdk.contracts.model import CacheGroup
from tokenspeed_sdk.modeling import Graph, Mesh, load_weights
from tokenspeed_sdk.modeling.causal_lm import INPUTS, OUTPUT
from tokenspeed_sdk.modeling.compiler import CollectiveLayer, compile_graph
from tokenspeed_sdk.testing import TINY_CONFIG, model_conformance, save_tiny_checkpoint
from tokenspeed_sdk.testing.model.runner import plain_context
from transformers import LlamaForCausalLM

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

test_model = model_conformance(
    EntryClass,
    LlamaForCausalLM,
    {
        "biases": {"attention_bias": True, "mlp_bias": True},
        "llama3": {"rope_parameters": LLAMA3_ROPE},
        "wide": {"head_dim": 32, "num_key_value_heads": 4},
    },
)


def test_absent_fields_have_their_published_defaults() -> None:
    required = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    config = EntryClass.read_config(
        {name: TINY_CONFIG[name] for name in (*required, "num_attention_heads")}
    )
    assert (config.head_dim, config.kv_heads, config.eps) == (16, 4, 1e-6)
    assert (config.rope.theta, config.rope.scaling) == (10000.0, None)
    assert not any((config.qkv_bias, config.output_bias, config.mlp_bias, config.tied))
    assert EntryClass.cache_groups(config) == (CacheGroup("full", (0, 1), 4, 16),)


def test_the_older_spelling_of_rope() -> None:
    scaling = {"type": "llama3", **LLAMA3_ROPE}
    del scaling["rope_type"], scaling["rope_theta"]
    new = EntryClass.read_config(dict(TINY_CONFIG, rope_parameters=LLAMA3_ROPE))
    assert (
        EntryClass.read_config(dict(TINY_CONFIG, rope_theta=10000.0, rope_scaling=scaling)) == new
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act must be one of silu; got 'gelu'"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 must be a multiple of .* 3"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_type 'linear' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: quant_method is missing"),
    ],
)
def test_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EntryClass.read_config({**TINY_CONFIG, **change})


def build() -> EntryClass:
    return EntryClass.build(EntryClass.read_config(TINY_CONFIG), plain_context())


def test_rotary_buffers_of_old_checkpoints_are_ignored(tmp_path: Path) -> None:
    save_tiny_checkpoint(LlamaForCausalLM, tmp_path)
    name, file = "model.layers.0.self_attn.rotary_emb.inv_freq", tmp_path / "model.safetensors"
    save_file({**load_file(file), name: torch.ones(8)}, file)
    assert load_weights(build().weight_map(), tmp_path).ignored == (name,)


def test_two_collectives_per_layer_on_two_ranks() -> None:
    graph = Graph(INPUTS, OUTPUT, steps=list(build().program.steps))
    program = compile_graph(graph, Mesh(size=2), lambda _: lambda value: value)
    inserted = [step.layer for step in program.steps if isinstance(step.layer, CollectiveLayer)]
    assert [str(layer.collective) for layer in inserted] == ["all_reduce"] * 4
