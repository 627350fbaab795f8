# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Hugging Face Transformers with a static batch: what people use without an engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch


class StaticBatch:
    """A model of Transformers in float32 that answers a batch of equally long prompts greedily."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model.eval()  # type: ignore[no-untyped-call]
        model.generation_config.eos_token_id = None  # every answer has the same length
        self._model: Any = model

    @torch.inference_mode()
    def decode(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        """Seconds for ``steps`` tokens of every prompt after the first token."""
        clock = _Clock()
        ids = torch.tensor(prompts)
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=steps + 1,
            min_new_tokens=steps + 1,
            do_sample=False,
            pad_token_id=0,
            stopping_criteria=[clock],
        )
        assert len(clock.times) == steps + 1
        return clock.times[-1] - clock.times[0]

    @torch.inference_mode()
    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds for a forward pass over a prompt, the head on its last token only."""
        start = time.perf_counter()
        self._model(torch.tensor([prompt]), logits_to_keep=1).logits.argmax(-1)
        return time.perf_counter() - start


class _Clock:
    """A stopping criterion that never stops; it is asked after each token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)
