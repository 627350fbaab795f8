# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""EAGLE-3 in plain torch, without caches: what the head must compute, and heads to test it with.

Li et al., 2025, arXiv:2503.01840. Whole texts are computed anew for every guess.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

HEADS, KV_HEADS = 4, 2
"""A head is as wide as its target, and its layer of the target's shape."""
VOCAB, DRAFT_VOCAB = 97, 90
TAPS = (0, 1, 1)
"""Of a target with two layers; the second is read twice."""
EPS = 1e-6


def config(hidden: int) -> dict[str, Any]:
    """config.json of a head for a target of this width."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": 1,
        "rms_norm_eps": EPS,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(TAPS)},
    }


class Norm(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * self.weight


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Layer(nn.Module):
    """The decoder layer, over pairs of a token's embedding and a feature."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.head_dim, inter = hidden // HEADS, 2 * hidden
        self.input_layernorm, self.hidden_norm = Norm(hidden), Norm(hidden)
        self.post_attention_layernorm = Norm(hidden)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": _linear(2 * hidden, hidden),
                "k_proj": _linear(2 * hidden, KV_HEADS * self.head_dim),
                "v_proj": _linear(2 * hidden, KV_HEADS * self.head_dim),
                "o_proj": _linear(hidden, hidden),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": _linear(hidden, inter),
                "up_proj": _linear(hidden, inter),
                "down_proj": _linear(inter, hidden),
            }
        )

    def heads(self, embedded: torch.Tensor, feature: torch.Tensor) -> list[torch.Tensor]:
        """[..., n, hidden] both -> q, k, v, [..., heads, n, head_dim], rotated by their place."""
        pair = torch.cat((self.input_layernorm(embedded), self.hidden_norm(feature)), -1)
        found = []
        for name in ("q", "k", "v"):
            x = self.self_attn[f"{name}_proj"](pair)
            x = x.unflatten(-1, (-1, self.head_dim)).transpose(-3, -2)
            x = x if name == "v" else _rotate(x)
            repeat = HEADS // x.shape[-3]
            found.append(x.repeat_interleave(repeat, -3))
        return found

    def rest(self, attended: torch.Tensor, feature: torch.Tensor) -> torch.Tensor:
        """[..., heads, n, head_dim] and what was paired -> the layer's output [..., n, hidden]."""
        stream = feature + self.self_attn["o_proj"](attended.transpose(-3, -2).flatten(-2))
        x = self.post_attention_layernorm(stream)
        gate = nn.functional.silu(self.mlp["gate_proj"](x))
        return stream + self.mlp["down_proj"](gate * self.mlp["up_proj"](x))


class Formula(nn.Module):
    """The head, named as in a checkpoint."""

    def __init__(self, embedding: torch.Tensor, ids: torch.Tensor) -> None:
        """``embedding``: of the target. ``ids``: token of the target by token of the head."""
        super().__init__()
        self.hidden = embedding.shape[1]
        self.fc = _linear(len(TAPS) * self.hidden, self.hidden)
        self.midlayer, self.norm = Layer(self.hidden), Norm(self.hidden)
        self.lm_head = _linear(self.hidden, DRAFT_VOCAB)
        self.embedding, self.ids = embedding, ids

    def before(self, states: torch.Tensor) -> torch.Tensor:
        """The feature that each token is paired with, of the target's states [..., n, taps]; the
        first with its own."""
        features = self.fc(states)
        return torch.cat((features[..., :1, :], features), -2)

    def forward(self, tokens: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """Output of the layer for each pair, [..., n, hidden], causal."""
        q, k, v = self.midlayer.heads(self.embedding[tokens], before)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return self.midlayer.rest(weights @ v, before)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> [..., DRAFT_VOCAB]."""
        return self.lm_head(self.norm(hidden))

    @torch.inference_mode()
    def guess(
        self, history: Sequence[int], states: torch.Tensor, count: int
    ) -> tuple[list[int], float]:
        """What follows a text, and the smallest gap between the two likeliest tokens on the way.

        Args:
            states: of the target, of all tokens but the last.
        """
        tokens = torch.tensor(history)
        before = self.before(states)
        gap = float("inf")
        for _ in range(count):
            hidden = self(tokens, before)[-1:]
            best = self.logits(hidden)[0].topk(2)
            gap = min(gap, float(best.values[0] - best.values[1]))
            tokens = torch.cat((tokens, self.ids[best.indices[:1]]))
            before = torch.cat((before, hidden))
        return tokens[len(history) :].tolist(), gap

    def unrolled(self, tokens: torch.Tensor, states: torch.Tensor, depth: int) -> torch.Tensor:
        """Logits [depth, ..., n, DRAFT_VOCAB] of guess 1 to ``depth``, each for the token behind
        its place: guess d has d - 1 outputs of the layer where features will be, as in drafting."""
        embedded = self.embedding[tokens]
        before = self.before(states)[..., :-1, :]
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        found = []
        for _ in range(depth):
            q, k, v = self.midlayer.heads(embedded, before)
            keys.append(k)
            values.append(v)
            attended = _attend_unrolled(q, keys, values)
            hidden = self.midlayer.rest(attended, before)
            found.append(self.logits(hidden))
            before = hidden.roll(1, -2)
        return torch.stack(found)


def _attend_unrolled(
    q: torch.Tensor, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Query i of the last depth d sees itself, what depth d - 1 has at i - 1, and so on down to the
    first depth, of which it sees all that is left."""
    depth, n = len(keys) - 1, q.shape[-2]
    distance = torch.arange(n)[:, None] - torch.arange(n)
    scores = []
    for each, k in enumerate(keys):
        place = depth - each
        seen = distance >= place if each == 0 else distance == place
        found = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        scores.append(found.masked_fill(~seen, float("-inf")))
    weights = torch.cat(scores, -1).softmax(-1)
    return weights @ torch.cat(list(values), -2)


def _rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions, theta 10000, the halves of a head apart."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    low, high = x.split(half, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


@cache
def target(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@torch.inference_mode()
def states(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    """What the tapped layers read of each token, side by side: [..., n, taps * hidden]."""
    batch = tokens if tokens.dim() == 2 else tokens[None]
    found = target(folder)(batch, output_hidden_states=True).hidden_states
    side = torch.cat([found[tap] for tap in TAPS], -1)
    return side if tokens.dim() == 2 else side[0]


def random_head(folder: Path, seed: int = 0) -> Formula:
    """A head of a target, its weights as large as the target's."""
    torch.manual_seed(seed)
    ids = torch.randperm(VOCAB)[:DRAFT_VOCAB].sort().values
    embedding = target(folder).get_input_embeddings().weight.detach()
    head = Formula(embedding, ids)
    for parameter in head.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, 0.0, 0.3)
    return head


def train(head: Formula, folder: Path, texts: torch.Tensor, steps: int, depth: int) -> None:
    """Teach it what comes in ``texts`` [texts, n], for guesses 1 to ``depth``."""
    read = states(folder, texts).clone()
    place = torch.full((VOCAB,), -100)
    place[head.ids] = torch.arange(DRAFT_VOCAB)
    wanted = place[texts[:, 1:]]
    optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
    for _ in range(steps):
        found = head.unrolled(texts, read, depth)[..., :-1, :]
        losses = [
            nn.functional.cross_entropy(each[:, skip:].flatten(0, 1), wanted[:, skip:].flatten())
            for skip, each in enumerate(found)
        ]
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()


def save_head(head: Formula, folder: Path, **other: Any) -> Path:
    """Write a checkpoint, as heads are published; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().clone() for name, value in head.state_dict().items()}
    tensors["d2t"] = head.ids - torch.arange(DRAFT_VOCAB)
    tensors["t2d"] = torch.isin(torch.arange(VOCAB), head.ids)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config(head.hidden) | other))
    return folder
