# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Juniper: a pre-norm decoder with scaled embeddings and scaled residual branches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tokenspeed_sdk.contracts.model import CacheGroup
from tokenspeed_sdk.modeling import CausalLM, ConfigReader, Graph, Layer, RopeConfig, read_rope
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
from tokenspeed_sdk.modeling.placement import Replicate


@dataclass(frozen=True)
class JuniperConfig:
    """What of config.json the model depends on; sizes in elements."""

    vocab: int
    hidden: int
    inter: int
    layers: int
    heads: int
    kv_heads: int
    eps: float
    embedding_multiplier: float
    residual_multiplier: float
    tied: bool
    rope: RopeConfig

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


class Scale(Layer):
    """``x [tokens, hidden] -> factor * x``: a layer that the sdk does not have."""

    def __init__(self, name: str, factor: float) -> None:
        super().__init__(name, (Replicate(),), (Replicate(),))
        self.factor = factor

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class JuniperForCausalLM(CausalLM[JuniperConfig]):
    """Weights are named as in the checkpoint: ``layers.<i>.attn`` and ``layers.<i>.mlp``."""

    architectures = ("JuniperForCausalLM",)

    @classmethod
    def read_config(cls, config: Mapping[str, Any]) -> JuniperConfig:
        read = ConfigReader(config)
        hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
        return JuniperConfig(
            vocab=read.size("vocab_size"),
            hidden=hidden,
            inter=read.size("intermediate_size"),
            layers=read.size("num_hidden_layers"),
            heads=heads,
            kv_heads=read.size("num_key_value_heads", default=heads),
            eps=read.number("rms_norm_eps", default=1e-5),
            embedding_multiplier=read.number("embedding_multiplier", default=8.0),
            residual_multiplier=read.number("residual_multiplier", default=0.5),
            tied=read.flag("tie_word_embeddings", default=False),
            rope=read_rope(config, rotary=hidden // heads),
        )

    @classmethod
    def cache_groups(cls, config: JuniperConfig) -> tuple[CacheGroup, ...]:
        layers = tuple(range(config.layers))
        return (CacheGroup("full", layers, config.kv_heads, config.head_dim),)

    def define(self, graph: Graph) -> Head:
        c, context = self.config, self.context
        embed = Embedding(context, "embed", vocab=c.vocab, hidden=c.hidden)
        norm = RMSNorm(context, "layers.0.attn_norm", hidden=c.hidden, eps=c.eps)
        table = rope_table(context, c.rope)
        graph.add(embed, reads=("token_ids",), writes=("residual",))
        scaled = Scale("embed.scale", c.embedding_multiplier)
        graph.add(scaled, reads=("residual",), writes=("residual",))
        graph.add(norm, reads=("residual",), writes=("hidden",))
        for i in range(c.layers):
            self.add_attention(graph, i, table)
            self.close_block(graph, f"layers.{i}.attn", f"layers.{i}.mlp_norm")
            self.add_mlp(graph, i)
            after = f"layers.{i + 1}.attn_norm" if i < c.layers - 1 else "norm"
            self.close_block(graph, f"layers.{i}.mlp", after)
        tied = embed if c.tied else None
        return Head(context, "head", vocab=c.vocab, hidden=c.hidden, tied=tied)

    def close_block(self, graph: Graph, block: str, norm_name: str) -> None:
        """The scaled output of a block joins the residual; the next one gets the sum normalised."""
        c = self.config
        scale = Scale(f"{block}.scale", c.residual_multiplier)
        norm = AddRMSNorm(self.context, norm_name, hidden=c.hidden, eps=c.eps)
        graph.add(scale, reads=("hidden",), writes=("hidden",))
        graph.add(norm, reads=("hidden", "residual"), writes=("hidden", "residual"))

    def add_attention(self, graph: Graph, i: int, table: torch.Tensor) -> None:
        c, context, attn = self.config, self.context, f"layers.{i}.attn"
        shape = {"heads": c.heads, "kv_heads": c.kv_heads, "head_dim": c.head_dim}
        kv = c.kv_heads * c.head_dim
        fused = {"q": c.hidden, "k": kv, "v": kv}

        project = ColumnLinear(context, f"{attn}.qkv", k=c.hidden, n=fused)
        split = SplitHeads(f"{attn}.split", **shape)
        rope = Rope(context, f"{attn}.rope", rope=c.rope, table=table, head_dim=c.head_dim)
        attend = Attention(
            context, f"{attn}.attend", **shape, cache=cache_place(self.cache_groups(c), i)
        )
        output = RowLinear(context, f"{attn}.out", k=c.hidden, n=c.hidden)

        graph.add(project, reads=("hidden",), writes=("qkv",))
        graph.add(split, reads=("qkv",), writes=("q", "k", "v"))
        graph.add(rope, reads=("q", "k", "positions"), writes=("q", "k"))
        graph.add(attend, reads=("q", "k", "v", "rows"), writes=("attended",))
        graph.add(output, reads=("attended",), writes=("hidden",))

    def add_mlp(self, graph: Graph, i: int) -> None:
        c, context, mlp = self.config, self.context, f"layers.{i}.mlp"
        fused = {"gate": c.inter, "up": c.inter}
        widen = ColumnLinear(context, f"{mlp}.gate_up", k=c.hidden, n=fused)
        activate = SiluAndMul(context, f"{mlp}.act", inter=c.inter)
        narrow = RowLinear(context, f"{mlp}.down", k=c.inter, n=c.hidden)

        graph.add(widen, reads=("hidden",), writes=("gate_up",))
        graph.add(activate, reads=("gate_up",), writes=("activated",))
        graph.add(narrow, reads=("activated",), writes=("hidden",))


EntryClass = JuniperForCausalLM
