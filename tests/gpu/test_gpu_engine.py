# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Scheduler, executor and loop on the GPU: captured and eager steps, page tables, answers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from churn import Churn
from conversations import Conversations
from harness import Answer, all_at_once, engine, greedy, submit
from tokenspeed._scheduler import Finish
from tokenspeed.messages import EngineInput

pytestmark = pytest.mark.gpu

VOCABULARY = 97


def prompts(count: int, *, seed: int, shortest: int = 2, longest: int = 90) -> list[list[int]]:
    rng = random.Random(seed)
    return [
        [rng.randrange(VOCABULARY) for _ in range(rng.randint(shortest, longest))]
        for _ in range(count)
    ]


def arriving(asked: list[list[int]], lengths: list[int]) -> Any:
    """One request every third step, so that the batch grows and shrinks."""

    def script(step: int, _: dict[int, Answer]) -> EngineInput | None:
        which = step // 3
        if which >= len(asked):
            return None
        come = [submit(which, asked[which], lengths[which])] if step % 3 == 0 else []
        return EngineInput(submits=come)

    return script


def test_every_op_of_a_small_model_has_a_kernel(gpu: Any, kernels: Any, small_llama: Path) -> None:
    with engine(small_llama, gpu, kernels=kernels):
        chosen = {bound.site.op: bound.decision.chosen for bound in kernels.bound}
    print(chosen)
    assert len(chosen) >= 10
    assert "reference" not in chosen.values()


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("prefix_cache", [True, False], ids=["prefix", "no-prefix"])
def test_answers_equal_transformers(
    gpu: Any, kernels: Any, small_llama: Path, graphs: bool, prefix_cache: bool
) -> None:
    """float32, prompts in chunks and whole, more requests than slots."""
    asked = prompts(12, seed=1)
    options = {"graphs": graphs, "prefix_cache": prefix_cache, "kernels": kernels}
    for max_step_tokens in (9, 64):
        with engine(small_llama, gpu, max_step_tokens=max_step_tokens, **options) as built:
            answers = built.run(all_at_once([submit(i, p, 12) for i, p in enumerate(asked)]))
        for i, prompt in enumerate(asked):
            assert answers.answers[i].tokens == greedy(small_llama, prompt, 12)


def test_graphs_answer_as_eager_does(gpu: Any, kernels: Any, small_llama: Path) -> None:
    rng = random.Random(2)
    asked = prompts(40, seed=3, longest=40)
    lengths = [rng.randint(2, 40) for _ in asked]
    answers = []
    for graphs in (True, False):
        with engine(small_llama, gpu, max_seqs=20, kernels=kernels, graphs=graphs) as built:
            answers.append(built.run(arriving(asked, lengths)).answers)
    assert [answers[0][i].tokens for i in range(40)] == [answers[1][i].tokens for i in range(40)]


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_page_tables_hold_over_a_thousand_steps_of_churn(
    gpu: Any, kernels: Any, small_llama: Path, graphs: bool
) -> None:
    """Every step is verified; what is not aborted is answered as if alone."""
    churn = Churn(seed=4, steps=1000)
    with engine(small_llama, gpu, pages=40, graphs=graphs, kernels=kernels) as built:
        answers = built.run(churn.script).answers
        counters, ledger = built.scheduler.counters(), built.scheduler.ledger()
    aborted = sum(answer.finish == Finish.ABORTED for answer in answers.values())
    print(f"{counters.steps} steps, {counters.retractions} retractions, {aborted} aborts")
    assert counters.steps >= 1000
    assert counters.retractions > 10
    assert aborted > 50
    assert ledger.balanced, ledger.detail
    assert {answers[request].finish for request in churn.kept} == {Finish.LENGTH}
    for request in sorted(churn.kept)[:: max(1, len(churn.kept) // 12)]:
        prompt, length = churn.asked[request]
        assert answers[request].tokens == greedy(small_llama, prompt, length)


def test_turns_come_back_from_the_host(gpu: Any, kernels: Any, small_llama: Path) -> None:
    """A device pool for two of six conversations: pages go to the host and come back, while others
    decode in captured steps."""
    asked = Conversations(seed=31, number=6, turns=5, first=30, more=11, answer=6, most=2)
    with engine(small_llama, gpu, pages=44, host_pages=400, kernels=kernels) as built:
        answers = built.run(asked.script).answers
        counters, ledger = built.scheduler.counters(), built.scheduler.ledger()
    assert counters.evictions > 0, "the device pool held everything"
    assert counters.loaded_pages > 0
    assert counters.host_cached_tokens > 100
    assert counters.failed_transfers == 0
    assert ledger.balanced, ledger.detail
    for turn, prompt in asked.prompts.items():
        assert answers[turn].tokens == greedy(small_llama, prompt, 6), turn


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_a_few_steps_for_the_memory_checker(
    gpu: Any, kernels: Any, small_llama: Path, graphs: bool
) -> None:
    """Short enough for compute-sanitizer: prefill in chunks, growing and shrinking decode."""
    asked = prompts(6, seed=5, longest=40)
    options = {"max_seqs": 4, "max_step_tokens": 24, "graphs": graphs, "kernels": kernels}
    with engine(small_llama, gpu, pages=24, **options) as built:
        answers = built.run(arriving(asked, [3, 12, 5, 9, 2, 7])).answers
    assert [len(answers[i].tokens) for i in range(6)] == [3, 12, 5, 9, 2, 7]
