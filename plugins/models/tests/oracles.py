# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Tiny random checkpoints, and the Transformers models that they were saved from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

LLAMAS: dict[str, dict[str, Any]] = {
    "gqa": {},
    "tied": {"tie_word_embeddings": True, "num_key_value_heads": 1},
    "llama3-rope": {"rope_parameters": LLAMA3_ROPE},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "wide-heads": {"head_dim": 16, "num_key_value_heads": 4, "rms_norm_eps": 1e-3},
}
"""Name -> how the config of a Llama differs from the base."""

QWEN3S: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 16},
    "qwen3-tied": {"head_dim": 8, "tie_word_embeddings": True, "rms_norm_eps": 1e-3},
}
"""The same for Qwen3."""

BASE = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Oracle:
    """A checkpoint folder, the Transformers model that it was saved from, and our entry for it."""

    entry: Any
    folder: Path
    model: Any

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """[tokens, vocabulary] of one sequence."""
        with torch.no_grad():
            out: torch.Tensor = self.model(torch.tensor([tokens])).logits[0]
        return out
