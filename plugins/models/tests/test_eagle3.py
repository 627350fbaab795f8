# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Heads of EAGLE-3 by the kit, and what of their configs and checkpoints is refused.

What a head computes is compared with the formula in tests/engine.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenspeed_models.eagle3 import Eagle3, Eagle3Head
from tokenspeed_sdk.contracts.model import CacheGroup
from tokenspeed_sdk.modeling import WeightError, load_dummy
from tokenspeed_sdk.testing import TINY_CONFIG, draft_model_conformance
from tokenspeed_sdk.testing.drafter.played_target import PlayedTarget
from tokenspeed_sdk.testing.model.runner import plain_context

TARGET = dict(TINY_CONFIG, num_hidden_layers=8)
CONFIG = {
    "hidden_size": TARGET["hidden_size"],
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": TARGET["vocab_size"],
    "draft_vocab_size": 200,
}

test_eagle3 = draft_model_conformance(Eagle3, CONFIG, TARGET)
test_whole_vocabulary = draft_model_conformance(
    Eagle3, {**CONFIG, "draft_vocab_size": None, "head_dim": 8, "attention_bias": True}, TARGET
)


def build(tensors: tuple[str, ...] = (), **fields: Any) -> Eagle3Head:
    config = Eagle3().read_config({**CONFIG, **fields}, TARGET)
    return Eagle3().build(config, plain_context(), PlayedTarget(TARGET, config.taps), tensors)


@pytest.mark.parametrize(
    ("fields", "taps"),
    [
        ({}, (2, 4, 5)),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}, (2, 4, 7)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 5, 8]}}, (2, 5, 8)),
        ({"eagle_aux_hidden_state_layer_ids": [0, 4]}, (0, 4)),
    ],
    ids=["left_out", "written", "read", "two"],
)
def test_which_layers_are_read(fields: dict[str, Any], taps: tuple[int, ...]) -> None:
    backend = Eagle3()
    assert backend.taps(backend.read_config({**CONFIG, **fields}, TARGET)) == taps


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers must be 1 for this model; got 2"),
        (
            {"num_hidden_layers": 30, "architectures": ["LlamaForCausalLM"]},
            "it is no head of EAGLE-3, .* LlamaForCausalLM, with num_hidden_layers 30; take a head",
        ),
        (
            {"num_hidden_layers": 2, "architectures": ["LlamaForCausalLMEagle3"]},
            "num_hidden_layers must be 1 for this model; got 2",
        ),
        ({"vocab_size": 9}, "vocab_size must be 257 for this model; got 9"),
        ({"target_hidden_size": 9}, "target_hidden_size must be 64 for this model; got 9"),
        ({"hidden_act": "gelu"}, "the drafter's config.json: hidden_act must be one of silu"),
        ({"norm_before_fc": True}, "norm_before_fc is not supported"),
        ({"eagle_config": {"norm_output": True}}, "norm_output is not supported"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 9]}, r"has 8; got \[2, 9\]"),
        ({"eagle_aux_hidden_state_layer_ids": []}, r"must list layers .* has 8; got \[\]"),
        ({"eagle_aux_hidden_state_layer_ids": ["low"]}, r"has 8; got \['low'\]"),
        ({"hidden_size": 63, "head_dim": 8}, "hidden_size must be a multiple of 2; got 63"),
        ({"num_key_value_heads": 3}, "num_attention_heads must be a multiple of 3; got 4"),
    ],
)
def test_what_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Eagle3().read_config({**CONFIG, **fields}, TARGET)


@pytest.mark.parametrize(
    "name", ["LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "EAGLE3", "LlamaForCausalLM"]
)
def test_a_head_that_fits_is_taken_whatever_it_calls_itself(name: str) -> None:
    Eagle3().read_config({**CONFIG, "architectures": [name]}, TARGET)


def test_what_it_keeps_of_a_token() -> None:
    config = Eagle3().read_config(CONFIG, TARGET)
    assert Eagle3().cache_groups(config) == (
        CacheGroup("full", (0,), 2, 16),
        CacheGroup("full", (0,), 1, 32),
    )


def test_tensors_are_named_as_in_published_heads() -> None:
    layer = [
        *("input_layernorm", "hidden_norm", "post_attention_layernorm"),
        *(f"self_attn.{part}_proj" for part in "qkvo"),
        *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
    ]
    names = {f"midlayer.{part}.weight" for part in layer}
    names |= {"fc.weight", "norm.weight", "lm_head.weight", "d2t"}
    weights = build().weight_map()
    assert weights.slices.keys() == names
    assert weights.ignores("t2d")
    own = build(("embed_tokens.weight",)).weight_map()
    assert own.slices.keys() - names == {"embed_tokens.weight"}


def test_a_table_that_leads_out_of_the_vocabulary_is_refused() -> None:
    head = build()
    weights = head.weight_map()
    load_dummy(weights)
    weights.parameters["d2t"][7] = 251
    with pytest.raises(WeightError, match="makes token 258 of 7, and the target has 257"):
        head.prepare()


def test_its_own_embedding_is_read_where_it_has_one() -> None:
    head = build(("embed_tokens.weight",))
    load_dummy(head.weight_map())
    head.prepare()
    ids = torch.tensor([3, 9])
    assert torch.equal(head._embed(ids), head._table.weight[ids])


def test_another_width_needs_an_embedding_of_its_own() -> None:
    fields = {"hidden_size": 32, "num_attention_heads": 4}
    with pytest.raises(WeightError, match=r"lacks embed_tokens\.weight, and the target's"):
        build(**fields)
    build(("embed_tokens.weight",), **fields)
