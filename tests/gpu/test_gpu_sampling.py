# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Penalties, biases and log-probabilities in captured and in eager steps, against Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import all_at_once, engine, submit
from test_adjustments import ASKED, expected, greedily, prompts
from test_logprobs import check, check_prompt

pytestmark = pytest.mark.gpu

TOLERANCE = 2e-3


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_a_mixed_batch(gpu: Any, kernels: Any, small_llama: Path, graphs: bool) -> None:
    """More requests than slots: graphs are captured before anyone asks for anything."""
    kinds = [ASKED[kind] for _ in range(3) for kind in ASKED]
    asked = prompts(len(kinds), seed=3)
    samplings = [greedily(logprobs=i % 4 - 1, **kind) for i, kind in enumerate(kinds)]
    submits = [
        submit(i, prompt, 14, sampling=sampling)
        for i, (prompt, sampling) in enumerate(zip(asked, samplings, strict=True))
    ]
    with engine(small_llama, gpu, max_seqs=5, kernels=kernels, graphs=graphs) as built:
        answers = built.run(all_at_once(submits)).answers
    for i, (prompt, sampling) in enumerate(zip(asked, samplings, strict=True)):
        assert answers[i].tokens == expected(small_llama, prompt, 14, sampling)
        if sampling.logprobs >= 0:
            check(small_llama, prompt, answers[i], sampling.logprobs, TOLERANCE)
        else:
            assert answers[i].logprobs == []


def test_who_was_retracted_counts_as_before(gpu: Any, kernels: Any, small_llama: Path) -> None:
    kinds = [ASKED[kind] for kind in ("all", "frequency", "nothing", "repetition")] * 2
    asked = prompts(len(kinds), seed=12, shortest=20, longest=40)
    samplings = [greedily(logprobs=1, **kind) for kind in kinds]
    submits = [
        submit(i, prompt, 40, sampling=sampling)
        for i, (prompt, sampling) in enumerate(zip(asked, samplings, strict=True))
    ]
    with engine(small_llama, gpu, pages=24, kernels=kernels) as built:
        answers = built.run(all_at_once(submits)).answers
        assert built.scheduler.counters().retractions > 0
    for i, (prompt, sampling) in enumerate(zip(asked, samplings, strict=True)):
        assert answers[i].tokens == expected(small_llama, prompt, 40, sampling)
        check(small_llama, prompt, answers[i], 1, TOLERANCE)


def test_prompts(gpu: Any, kernels: Any, small_llama: Path) -> None:
    """Longer than a slice of logits, and in chunks."""
    for max_step_tokens in (16, 256):
        asked = prompts(4, seed=31, shortest=80, longest=120)
        submits = [
            msgspec.structs.replace(
                submit(i, prompt, 4, sampling=greedily(prompt_logprobs=3)), namespace=i
            )
            for i, prompt in enumerate(asked)
        ]
        with engine(small_llama, gpu, kernels=kernels, max_step_tokens=max_step_tokens) as built:
            answers = built.run(all_at_once(submits)).answers
        for i, prompt in enumerate(asked):
            check_prompt(small_llama, prompt, answers[i], 3, TOLERANCE)
