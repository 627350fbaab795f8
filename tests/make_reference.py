# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Write tests/data/parity.json: what Transformers answers greedily in float32.

    .venv/bin/python tests/make_reference.py

Takes about two minutes on two cores. The tests only read the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))

import demo_model  # noqa: E402

TOKENS = 64
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain in two sentences why the sky is blue.",
    "List the first ten prime numbers.",
    "Write a Python function that reverses a string.",
    "Translate 'good morning' into Spanish, German and Japanese.",
    "Who wrote Pride and Prejudice, and when?",
    "What is 17 times 23? Think step by step.",
    "Tell me a short story about a robot that learns to paint.",
    "Give me three tips for better sleep.",
    "Schreibe einen Satz auf Deutsch über Brücken. 🌉",
)
EXCERPTS = (
    (0, 1),
    (0, 15),
    (0, 16),
    (0, 17),
    (100, 133),
    (200, 320),
    (400, 600),
    (0, 380),
    (900, 1400),
)
"""Ranges of tokens of constitution.txt: around page borders, and long enough to be chunked."""


def prompts(tokenizer: Any) -> list[list[int]]:
    """Twenty prompts: chats and raw text, of 1 to 500 tokens."""
    text = (HERE / "data" / "constitution.txt").read_text()
    ids = tokenizer(text).input_ids
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in QUESTIONS
    ]
    return chats + [ids[start:stop] for start, stop in EXCERPTS]


@torch.inference_mode()
def reference(model: Any, prompt: list[int]) -> dict[str, Any]:
    """Greedy ids after ``prompt``, and at each position the gap between the two best logits."""
    first = torch.tensor([prompt])
    whole = model.generate(
        first,
        attention_mask=torch.ones_like(first),  # else it hides <|im_end|>, the padding token
        max_new_tokens=TOKENS,
        min_new_tokens=TOKENS,
        do_sample=False,
        eos_token_id=None,
    )
    answer = whole[0, len(prompt) :]
    best = model(whole).logits[0, len(prompt) - 1 : -1].topk(2)
    gaps = best.values[:, 0] - best.values[:, 1]
    same = best.indices[:, 0] == answer
    assert bool((same | (gaps < 1e-4)).all()), "generate and a forward pass must agree"
    gaps = gaps.tolist()
    return {
        "prompt": prompt,
        "ids": answer.tolist(),
        "gaps": [float(f"{gap:.4g}") for gap in gaps],
    }


def main() -> None:
    """Compute and write."""
    folder = demo_model.ensure()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    result = {
        "command": "python tests/make_reference.py",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "model": demo_model.FOLDER,
        "weights_sha256": demo_model.weights_digest(folder),
        "dtype": "float32",
        "cases": [reference(model, prompt) for prompt in prompts(tokenizer)],
    }
    path = HERE / "data" / "parity.json"
    path.write_text(json.dumps(result).replace('{"prompt"', '\n{"prompt"') + "\n")


if __name__ == "__main__":
    main()
