# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Juniper as its authors publish it: a Transformers class in plain torch, nothing fused."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput


class JuniperConfig(PreTrainedConfig):
    """What config.json holds."""

    model_type = "juniper"

    vocab_size: int = 257
    hidden_size: int = 64
    intermediate_size: int = 96
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = 256
    rms_norm_eps: float = 1e-5
    embedding_multiplier: float = 8.0
    residual_multiplier: float = 0.5
    rope_parameters: dict[str, Any] | None = None
    tie_word_embeddings: bool = False


class Attention(nn.Module):
    """Causal, with grouped query heads and rotary positions."""

    def __init__(self, config: JuniperConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.theta = (config.rope_parameters or {}).get("rope_theta", 10000.0)
        hidden = config.hidden_size
        kv = hidden // self.heads * self.kv_heads
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.k = nn.Linear(hidden, kv, bias=False)
        self.v = nn.Linear(hidden, kv, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (
            part(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2) for part in (self.k, self.v)
        )
        q, k = rotate(q, self.theta), rotate(k, self.theta)
        out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: JuniperConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Both branches are scaled before they join the residual."""

    def __init__(self, config: JuniperConfig) -> None:
        super().__init__()
        self.scale = config.residual_multiplier
        self.attn_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attn = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.scale * self.attn(self.attn_norm(x))
        return x + self.scale * self.mlp(self.mlp_norm(x))


class JuniperForCausalLM(PreTrainedModel):
    """[1, tokens] -> logits [1, tokens, vocabulary]."""

    config_class = JuniperConfig
    _tied_weights_keys = {"head.weight": "embed.weight"}  # noqa: RUF012 - Transformers reads it so

    def __init__(self, config: JuniperConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: torch.Tensor) -> CausalLMOutput:
        x = self.embed(input_ids) * self.config.embedding_multiplier
        for layer in self.layers:
            x = layer(x)
        return CausalLMOutput(logits=self.head(self.norm(x)))


def rotate(x: torch.Tensor, theta: float) -> torch.Tensor:
    """[..., tokens, head_dim]: pairs (i, i + half) turned by position * theta^(-i / half)."""
    half = x.shape[-1] // 2
    turns = torch.arange(x.shape[-2])[:, None] * theta ** (-torch.arange(half) / half)
    cos, sin = turns.cos().to(x.dtype), turns.sin().to(x.dtype)
    left, right = x.split(half, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
