# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Families without a small public checkpoint: greedy tokens on what Transformers saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from tokenspeed import LLM, SamplingParams
from tokenspeed_sdk.testing import TINY_CONFIG, save_byte_tokenizer, save_tiny_checkpoint

TOKENS = 24
PROMPTS = ["Hello", "The capital of France is", "def main():\n    return " * 2]


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
def test_greedy_ids_are_equal(family: str, tmp_path: Path) -> None:
    """Prompts and answers cross pages; all prompts run in one batch."""
    kind = getattr(transformers, f"{family}ForCausalLM")
    model = save_tiny_checkpoint(kind, tmp_path, {**TINY_CONFIG, "head_dim": 16})
    save_byte_tokenizer(tmp_path)
    with LLM(tmp_path, dtype="float32", kv_pages=64, threads=1) as llm:
        answers = llm.generate(
            PROMPTS, SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
        )
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        assert ids.shape[1] == answer.prompt_tokens == len(prompt)
        wanted = greedy(model, ids)
        assert answer.token_ids == wanted
        assert answer.text == tokenizer.decode(wanted, skip_special_tokens=True)


@torch.inference_mode()
def greedy(model: transformers.PreTrainedModel, ids: torch.Tensor) -> list[int]:
    """The ids that follow ``ids`` [1, tokens], each computed from the whole text before it."""
    answer: list[int] = []
    for _ in range(TOKENS):
        answer.append(int(model(ids).logits[0, -1].argmax()))
        ids = torch.cat((ids, torch.tensor([answer[-1:]])), dim=1)
    return answer
