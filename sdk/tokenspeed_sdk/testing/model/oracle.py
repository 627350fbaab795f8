# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Tiny random checkpoints, and the Transformers models that they were saved from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from tokenspeed_sdk.contracts.model import ModelEntry
from tokenspeed_sdk.testing.model.runner import ModelRunner

TINY_CONFIG: Mapping[str, Any] = {
    "vocab_size": 257,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 256,
}
"""Config fields of a decoder that runs in milliseconds; its vocabulary is that of the byte
tokenizer of ``byte_tokenizer``."""

LARGE_EPS = 0.03
"""An epsilon that shows: with 1e-6 or 1e-5 a norm that reads the wrong one goes unnoticed."""

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


def save_tiny_checkpoint(
    oracle: type[Any], folder: str | Path, fields: Mapping[str, Any] = TINY_CONFIG
) -> Any:
    """Make a model of a Transformers class with random weights and save it.

    Every parameter is random, also those that Transformers starts trivial (norms, biases), since a
    model that forgets a vector of ones or zeros would otherwise agree.

    Args:
        oracle: class such as ``transformers.LlamaForCausalLM``.
        folder: where config.json and model.safetensors are written; made when absent.
        fields: of the class's config.

    Returns:
        The model, in float32.
    """
    with torch.random.fork_rng(devices=[]):
        model = oracle(oracle.config_class(**fields)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_(1.0, 0.3, generator=generator)
            else:
                parameter.normal_(0.0, 2 / parameter.shape[-1] ** 0.5, generator=generator)
    model.save_pretrained(folder)
    return model


@dataclass(frozen=True)
class Oracle:
    """A checkpoint folder, the Transformers model that it was saved from, and the entry under test.

    Attributes:
        entry: what is tested.
        kind: the Transformers class.
        model: the instance that was saved to ``folder``.
    """

    entry: ModelEntry
    kind: type[Any]
    model: Any
    folder: Path

    @classmethod
    def make(
        cls, entry: ModelEntry, kind: type[Any], fields: Mapping[str, Any], folder: Path
    ) -> Oracle:
        """Save a tiny model; every ``*_eps`` of its config becomes at least LARGE_EPS."""
        plain = kind.config_class(**fields)
        large = {
            name: max(value, LARGE_EPS)
            for name, value in plain.to_dict().items()
            if name.endswith("eps") and isinstance(value, float)
        }
        return cls(entry, kind, save_tiny_checkpoint(kind, folder, {**fields, **large}), folder)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The config.json that Transformers wrote."""
        text = (self.folder / CONFIG_FILE).read_text(encoding="utf-8")
        config: dict[str, Any] = json.loads(text)
        return config

    @property
    def ties(self) -> dict[str, str]:
        """Parameter that shares another's memory -> the one whose memory it is."""
        first: dict[int, str] = {}
        named = self.model.named_parameters(remove_duplicate=False)
        pairs = ((name, first.setdefault(p.data_ptr(), name)) for name, p in named)
        return {name: to for name, to in pairs if name != to}

    def tokens(self, seed: int, count: int) -> list[int]:
        """Random token ids."""
        generator = torch.Generator().manual_seed(seed)
        vocab = int(self.model.get_input_embeddings().num_embeddings)
        ids: list[int] = torch.randint(0, vocab, (count,), generator=generator).tolist()
        return ids

    @torch.inference_mode()
    def logits(self, tokens: list[int], model: Any = None) -> torch.Tensor:
        """[tokens, vocabulary] float32 of one sequence, by the saved model or another one."""
        chosen = self.model if model is None else model
        out: torch.Tensor = chosen(torch.tensor([tokens])).logits[0]
        return out.float()

    def runner(self, page_size: int = 16, max_model_len: int = 64, **options: Any) -> ModelRunner:
        """The entry's model with the checkpoint's weights; options as ``ModelRunner`` takes."""
        return ModelRunner.from_folder(
            self.entry, self.folder, page_size=page_size, max_model_len=max_model_len, **options
        )
