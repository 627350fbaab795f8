# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Qwen2 and Qwen2.5 (dense): Llama's blocks, with biases on query, key and value alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenspeed_sdk.modeling import ConfigReader

from tokenspeed_models.llama import LlamaConfig, LlamaForCausalLM

FULL = "full_attention"

MAX_WINDOW_LAYERS = 28
"""What an absent ``max_window_layers`` means: the layers from this one on may have a window."""


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Named as in the checkpoint. The biases are part of the family: no field states them."""

    architectures = ("Qwen2ForCausalLM",)

    @classmethod
    def read_config(cls, config: Mapping[str, Any]) -> LlamaConfig:
        refuse_windows(config)
        plain = super().read_config({**config, "attention_bias": False, "mlp_bias": False})
        return replace(plain, qkv_bias=True)


def refuse_windows(config: Mapping[str, Any]) -> None:
    """ValueError when a layer of a Qwen config attends to a sliding window.

    ``layer_types`` decides where it stands; configs from before it say the same with
    ``use_sliding_window`` and ``max_window_layers``. ``sliding_window`` alone switches nothing on.
    """
    read = ConfigReader(config)
    layers = read.size("num_hidden_layers")
    types = config.get("layer_types")
    if types is not None:
        if types != [FULL] * layers:
            raise ValueError(
                f"config.json: layer_types must say {FULL!r} for each of {layers} layers, sliding "
                f"windows are not supported; got {types!r}"
            )
        return
    first = config.get("max_window_layers", MAX_WINDOW_LAYERS)
    windows = not isinstance(first, int) or first < layers
    if read.flag("use_sliding_window", default=False) and windows:
        raise ValueError(
            f"config.json: use_sliding_window true with max_window_layers {first!r} of {layers} "
            "layers is not supported; use a checkpoint whose layers all attend to the whole context"
        )


EntryClass = Qwen2ForCausalLM
