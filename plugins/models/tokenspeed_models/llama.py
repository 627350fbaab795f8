# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Llama: pre-norm decoder with grouped query heads, rotary positions and a SwiGLU MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tokenspeed_sdk.contracts.model import CacheGroup
from tokenspeed_sdk.modeling import (
    CausalLM,
    ConfigReader,
    Graph,
    RopeConfig,
    read_quantization,
    read_rope,
)
from tokenspeed_sdk.modeling.layers import (
    AddRMSNorm,
    Attention,
    ColumnLinear,
    Embedding,
    Head,
    RMSNorm,
    Rope,
    RowLinear,
    SiluAndMul,
    SplitHeads,
    cache_place,
    rope_table,
)


@dataclass(frozen=True)
class LlamaConfig:
    """What of config.json the model depends on; sizes in elements."""

    vocab: int
    hidden: int
    inter: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    tied: bool
    rope: RopeConfig


class LlamaForCausalLM(CausalLM[LlamaConfig]):
    """Named as in the checkpoint; ``residual`` is the stream that every block adds to."""

    architectures = ("LlamaForCausalLM",)
    ignored_weights = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)

    @classmethod
    def read_config(cls, config: Mapping[str, Any]) -> LlamaConfig:
        read = ConfigReader(config)
        read.choice("hidden_act", ("silu",), default="silu")
        read_quantization(config)  # refuses what the layers cannot hold
        bias = read.flag("attention_bias", default=False)
        hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
        kv_heads = read.size("num_key_value_heads", default=heads)
        head_dim = read.size("head_dim", default=hidden // heads)
        if heads % kv_heads:
            raise ValueError(
                f"config.json: num_attention_heads {heads} must be a multiple of "
                f"num_key_value_heads {kv_heads}"
            )
        return LlamaConfig(
            vocab=read.size("vocab_size"),
            hidden=hidden,
            inter=read.size("intermediate_size"),
            layers=read.size("num_hidden_layers"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            eps=read.number("rms_norm_eps", default=1e-6),
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=read.flag("mlp_bias", default=False),
            tied=read.flag("tie_word_embeddings", default=False),
            rope=read_rope(config, rotary=head_dim),
        )

    @classmethod
    def cache_groups(cls, config: LlamaConfig) -> tuple[CacheGroup, ...]:
        layers = tuple(range(config.layers))
        return (CacheGroup("full", layers, config.kv_heads, config.head_dim),)

    def define(self, graph: Graph) -> Head:
        c, context = self.config, self.context
        embed = Embedding(context, "model.embed_tokens", vocab=c.vocab, hidden=c.hidden)
        norm = RMSNorm(context, "model.layers.0.input_layernorm", hidden=c.hidden, eps=c.eps)
        table = rope_table(context, c.rope)
        graph.add(embed, reads=("token_ids",), writes=("residual",))
        graph.add(norm, reads=("residual",), writes=("hidden",))
        for i in range(c.layers):
            last = i == c.layers - 1
            self.add_attention(graph, i, table)
            self.tap(graph, i, "residual")
            self.add_norm(graph, f"model.layers.{i}.post_attention_layernorm")
            self.add_mlp(graph, i)
            self.add_norm(graph, "model.norm" if last else f"model.layers.{i + 1}.input_layernorm")
        self.tap(graph, c.layers, "residual")
        tied = embed if c.tied else None
        return Head(context, "lm_head", vocab=c.vocab, hidden=c.hidden, tied=tied)

    def add_norm(self, graph: Graph, name: str) -> None:
        """Close a block: its output joins the residual; the next block gets the sum normalised."""
        norm = AddRMSNorm(self.context, name, hidden=self.config.hidden, eps=self.config.eps)
        graph.add(norm, reads=("hidden", "residual"), writes=("hidden", "residual"))

    def add_attention(self, graph: Graph, i: int, table: torch.Tensor) -> None:
        c, context, attn = self.config, self.context, f"model.layers.{i}.self_attn"
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        shape = {"heads": c.heads, "kv_heads": c.kv_heads, "head_dim": c.head_dim}
        place = cache_place(self.cache_groups(c), i)
        fused = {"q_proj": q, "k_proj": kv, "v_proj": kv}

        project = ColumnLinear(context, f"{attn}.qkv_proj", k=c.hidden, n=fused, bias=c.qkv_bias)
        split = SplitHeads(f"{attn}.split_heads", **shape)
        rope = Rope(context, f"{attn}.rope", rope=c.rope, table=table, head_dim=c.head_dim)
        attend = Attention(context, f"{attn}.attend", **shape, cache=place)
        output = RowLinear(context, f"{attn}.o_proj", k=q, n=c.hidden, bias=c.output_bias)

        graph.add(project, reads=("hidden",), writes=("qkv",))
        graph.add(split, reads=("qkv",), writes=("q", "k", "v"))
        self.add_head_norms(graph, attn)
        graph.add(rope, reads=("q", "k", "positions"), writes=("q", "k"))
        graph.add(attend, reads=("q", "k", "v", "rows"), writes=("attended",))
        graph.add(output, reads=("attended",), writes=("hidden",))

    def add_head_norms(self, graph: Graph, attn: str) -> None:
        """For families that normalise the heads of query and key; Llama does not."""

    def add_mlp(self, graph: Graph, i: int) -> None:
        c, context, mlp = self.config, self.context, f"model.layers.{i}.mlp"
        fused = {"gate_proj": c.inter, "up_proj": c.inter}
        bias = c.mlp_bias

        widen = ColumnLinear(context, f"{mlp}.gate_up_proj", k=c.hidden, n=fused, bias=bias)
        activate = SiluAndMul(context, f"{mlp}.act", inter=c.inter)
        narrow = RowLinear(context, f"{mlp}.down_proj", k=c.inter, n=c.hidden, bias=bias)

        graph.add(widen, reads=("hidden",), writes=("gate_up",))
        graph.add(activate, reads=("gate_up",), writes=("activated",))
        graph.add(narrow, reads=("activated",), writes=("hidden",))


EntryClass = LlamaForCausalLM
