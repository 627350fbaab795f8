# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Qwen3 (dense): Llama's blocks, with each head of query and key normalised before the rotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tokenspeed_sdk.modeling import ConfigReader, Graph
from tokenspeed_sdk.modeling.layers import (
    Attention,
    ColumnLinear,
    RMSNorm,
    Rope,
    RowLinear,
    SplitHeads,
    cache_place,
)

from tokenspeed_models.llama import LlamaConfig, LlamaForCausalLM

HEAD_DIM = 128
"""Of every published size, whatever hidden_size / num_attention_heads is."""


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Named as in the checkpoint. No MLP biases, and QKV biases only where the config asks."""

    architectures = ("Qwen3ForCausalLM",)

    @classmethod
    def read_config(cls, config: Mapping[str, Any]) -> LlamaConfig:
        read = ConfigReader(config)
        if read.flag("use_sliding_window", default=False):
            raise ValueError(
                "config.json: use_sliding_window true is not supported; "
                "use a checkpoint whose layers all attend to the whole context"
            )
        head_dim = read.size("head_dim", default=HEAD_DIM)
        return super().read_config({**config, "head_dim": head_dim, "mlp_bias": False})

    def add_attention(self, graph: Graph, i: int, table: torch.Tensor) -> None:
        c, context, attn = self.config, self.context, f"model.layers.{i}.self_attn"
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        shape = {"heads": c.heads, "kv_heads": c.kv_heads, "head_dim": c.head_dim}
        place = cache_place(self.cache_groups(c), i)
        fused = {"q_proj": q, "k_proj": kv, "v_proj": kv}
        bias = c.attention_bias

        project = ColumnLinear(context, f"{attn}.qkv_proj", k=c.hidden, n=fused, bias=bias)
        split = SplitHeads(f"{attn}.split_heads", **shape)
        q_norm = RMSNorm(context, f"{attn}.q_norm", hidden=c.head_dim, eps=c.eps)
        k_norm = RMSNorm(context, f"{attn}.k_norm", hidden=c.head_dim, eps=c.eps)
        rope = Rope(context, f"{attn}.rope", rope=c.rope, table=table, head_dim=c.head_dim)
        attend = Attention(context, f"{attn}.attend", **shape, cache=place)
        output = RowLinear(context, f"{attn}.o_proj", k=q, n=c.hidden, bias=bias)

        graph.add(project, reads=("hidden",), writes=("qkv",))
        graph.add(split, reads=("qkv",), writes=("q", "k", "v"))
        graph.add(q_norm, reads=("q",), writes=("q",))
        graph.add(k_norm, reads=("k",), writes=("k",))
        graph.add(rope, reads=("q", "k", "positions"), writes=("q", "k"))
        graph.add(attend, reads=("q", "k", "v", "rows"), writes=("attended",))
        graph.add(output, reads=("attended",), writes=("hidden",))


EntryClass = Qwen3ForCausalLM
