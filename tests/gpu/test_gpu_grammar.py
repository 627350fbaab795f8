# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Steps in two parts on the GPU: the forward pass captured or not, masks behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import engine, greedy, submit
from test_gpu_engine import prompts
from test_grammar import Library, first, matcher, new
from tokenspeed._scheduler import Finish
from tokenspeed.engine.grammar import GrammarLoader, Grammars

pytestmark = pytest.mark.gpu

STRIDES = {1: 5, 2: 7}


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("max_step_tokens", [9, 64], ids=["chunked", "whole"])
def test_answers_equal_masked_transformers(
    gpu: Any, kernels: Any, small_llama: Path, graphs: bool, max_step_tokens: int
) -> None:
    """Beside rows without a grammar; some requests end early, so that batches shrink."""
    asked = prompts(12, seed=11)
    held = [i % 3 for i in range(12)]
    lengths = [4 + 3 * (i % 5) for i in range(12)]
    submits = [submit(i, p, lengths[i], grammar=held[i]) for i, p in enumerate(asked)]
    grammars = Grammars(GrammarLoader(lambda name: Library()))
    options = {"graphs": graphs, "kernels": kernels, "max_step_tokens": max_step_tokens}
    with engine(small_llama, gpu, **options) as built:
        news = [new(number, stride) for number, stride in STRIDES.items()]
        mailbox = built.run(first(news, submits), grammars)
    for i, prompt in enumerate(asked):
        allowed = matcher(STRIDES[held[i]]).allowed if held[i] else None
        assert mailbox.answers[i].tokens == greedy(small_llama, prompt, lengths[i], allowed)
        assert mailbox.answers[i].finish == Finish.LENGTH


def test_a_grammar_that_ends_in_nothing_fails_its_row_alone(
    gpu: Any, kernels: Any, small_llama: Path
) -> None:
    one, two = prompts(2, seed=12)
    news = [new(1, 5), new(2, 5, fault="ends in nothing")]
    submits = [submit(1, one, 12, grammar=1), submit(2, two, 12, grammar=2)]
    grammars = Grammars(GrammarLoader(lambda name: Library()))
    with engine(small_llama, gpu, kernels=kernels) as built:
        answers = built.run(first(news, submits), grammars).answers
        assert built.scheduler.ledger().active == 0
    assert (answers[2].finish, len(answers[2].tokens)) == (Finish.FAILED, 3)
    assert answers[1].tokens == greedy(small_llama, one, 12, matcher(5).allowed)
