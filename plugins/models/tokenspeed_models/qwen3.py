# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Qwen3 (dense): Llama's blocks, with each head of query and key normalised before the rotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenspeed_sdk.modeling import ConfigReader, Graph
from tokenspeed_sdk.modeling.layers import RMSNorm

from tokenspeed_models.llama import LlamaConfig, LlamaForCausalLM
from tokenspeed_models.qwen2 import refuse_windows

HEAD_DIM = 128
"""Of every published size, whatever hidden_size / num_attention_heads is."""


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Named as in the checkpoint. No MLP biases, and QKV biases only where the config asks."""

    architectures = ("Qwen3ForCausalLM",)

    @classmethod
    def read_config(cls, config: Mapping[str, Any]) -> LlamaConfig:
        refuse_windows(config)
        head_dim = ConfigReader(config).size("head_dim", default=HEAD_DIM)
        return super().read_config({**config, "head_dim": head_dim, "mlp_bias": False})

    def add_head_norms(self, graph: Graph, attn: str) -> None:
        c = self.config
        q_norm = RMSNorm(self.context, f"{attn}.q_norm", hidden=c.head_dim, eps=c.eps)
        k_norm = RMSNorm(self.context, f"{attn}.k_norm", hidden=c.head_dim, eps=c.eps)
        graph.add(q_norm, reads=("q",), writes=("q",))
        graph.add(k_norm, reads=("k",), writes=("k",))


EntryClass = Qwen3ForCausalLM
