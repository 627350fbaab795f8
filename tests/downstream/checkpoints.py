# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Small random models in folders that a server takes, and what they must answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenspeed_sdk.testing import TINY_CONFIG, save_byte_tokenizer, save_tiny_checkpoint


@dataclass(frozen=True)
class Checkpoint:
    """A folder to serve, and the Transformers model that was saved there."""

    folder: Path
    oracle: Any

    @classmethod
    def make(
        cls, kind: type[Any], folder: Path, fields: Mapping[str, Any] = TINY_CONFIG
    ) -> Checkpoint:
        """Save a random one of a Transformers class, with a tokenizer of bytes."""
        oracle = save_tiny_checkpoint(kind, folder, fields)
        save_byte_tokenizer(folder)
        return cls(folder, oracle)

    @torch.inference_mode()
    def greedy(self, ids: list[int], count: int) -> list[int]:
        """The ``count`` most likely next ids, each from the whole sequence so far."""
        answer: list[int] = []
        for _ in range(count):
            logits = self.oracle(torch.tensor([ids + answer])).logits[0, -1]
            answer.append(int(logits.argmax()))
        return answer


def juniper() -> type[Any]:
    """The Transformers class that the stranger's model is tested against."""
    from .model.tests.oracle import JuniperForCausalLM

    return JuniperForCausalLM
