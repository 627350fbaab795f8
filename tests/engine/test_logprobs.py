# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Log-probabilities of tokens through the whole engine, against Transformers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from harness import Answer, _oracle, all_at_once, engine, submit
from tokenspeed._scheduler import Finish
from tokenspeed.messages import Bias, EngineInput, Sampling, Submit
from tokenspeed_sdk.contracts.platform import Device

ALWAYS = 1 << 30


def drawing(seed: int, **asked: object) -> Sampling:
    return Sampling(0.8, 30, 0.95, 0.0, seed, **asked)  # type: ignore[arg-type]


def prompts(count: int, *, seed: int, shortest: int = 5, longest: int = 60) -> list[list[int]]:
    rng = random.Random(seed)
    return [
        [rng.randrange(97) for _ in range(rng.randint(shortest, longest))] for _ in range(count)
    ]


@torch.inference_mode()
def log_softmax(folder: Path, tokens: Sequence[int]) -> torch.Tensor:
    """[tokens, vocabulary]: of what follows each of them."""
    return _oracle(folder)(torch.tensor([list(tokens)])).logits[0].log_softmax(-1)


def check(
    folder: Path, prompt: Sequence[int], answer: Answer, top: int, tolerance: float = 2e-4
) -> None:
    """Every token has its own entry, and as many of the likeliest as were asked for."""
    assert [each.token for each in answer.logprobs] == answer.tokens
    right = log_softmax(folder, [*prompt, *answer.tokens])[len(prompt) - 1 :]
    for row, each in zip(right, answer.logprobs, strict=False):
        assert each.logprob == pytest.approx(float(row[each.token]), abs=tolerance)
        values, ids = row.topk(top)
        assert [token for token, _ in each.top] == ids.tolist()
        assert [value for _, value in each.top] == pytest.approx(values.tolist(), abs=tolerance)


@pytest.mark.parametrize("device", ["delaying", "replaying"])
def test_they_are_the_models_own(
    tiny_llama: Path, request: pytest.FixtureRequest, device: str
) -> None:
    """Beside requests that do not ask; whatever changes the draw does not change them."""
    chosen: Device = request.getfixturevalue(device)
    kinds: list[dict[str, object]] = [
        {"logprobs": 0},
        {},
        {"logprobs": 20},
        {"logprobs": 3, "repetition_penalty": 1.8, "frequency_penalty": 1.0},
        {"presence_penalty": 1.0},
        {"logprobs": 5, "biases": (Bias(7, 30.0, ALWAYS), Bias(8, float("-inf"), ALWAYS))},
    ] * 2
    asked = prompts(len(kinds), seed=3)
    submits = [
        submit(i, prompt, 10, sampling=drawing(i, **kind))
        for i, (prompt, kind) in enumerate(zip(asked, kinds, strict=True))
    ]
    with engine(tiny_llama, chosen, max_seqs=5, max_step_tokens=16) as built:
        answers = built.run(all_at_once(submits)).answers
    for i, (prompt, kind) in enumerate(zip(asked, kinds, strict=True)):
        assert len(answers[i].tokens) == 10
        if "logprobs" in kind:
            check(tiny_llama, prompt, answers[i], int(str(kind["logprobs"])))
        else:
            assert answers[i].logprobs == []
    assert answers[5].tokens == [7] * 10  # a bias that forces what the model finds unlikely
    assert min(each.logprob for each in answers[5].logprobs) < -2


def test_they_do_not_change_the_draw(tiny_llama: Path, delaying: Device) -> None:
    prompt = prompts(1, seed=4)[0]
    with engine(tiny_llama, delaying) as built:
        answers = built.run(
            all_at_once(
                [
                    submit(1, prompt, 20, sampling=drawing(9)),
                    submit(2, prompt, 20, sampling=drawing(9, logprobs=4)),
                ]
            )
        ).answers
    assert answers[1].tokens == answers[2].tokens


def test_retraction_loses_and_repeats_none(tiny_llama: Path, delaying: Device) -> None:
    asked = prompts(8, seed=12, shortest=20, longest=40)
    submits = [submit(i, p, 40, sampling=drawing(i, logprobs=2)) for i, p in enumerate(asked)]
    with engine(tiny_llama, delaying, pages=24) as built:
        answers = built.run(all_at_once(submits)).answers
        assert built.scheduler.counters().retractions > 0
    for i, prompt in enumerate(asked):
        check(tiny_llama, prompt, answers[i], 2)


def test_cancelled_at_any_step(tiny_llama: Path, delaying: Device) -> None:
    """What an aborted request still finds is told to nobody."""
    asked = prompts(6, seed=15, longest=20)
    submits = [submit(i, p, 30, sampling=drawing(i, logprobs=20)) for i, p in enumerate(asked)]

    def script(step: int, answers: dict[int, Answer]) -> EngineInput | None:
        if step == 0:
            return EngineInput(submits=submits)
        return EngineInput(aborts=[step // 2 - 1]) if step % 2 == 0 and step < 12 else None

    with engine(tiny_llama, delaying) as built:
        answers = built.run(script).answers
    assert {answer.finish for answer in answers.values()} >= {Finish.ABORTED}
    for i, prompt in enumerate(asked):
        check(tiny_llama, prompt, answers[i], 20)


def test_who_does_not_ask_pays_nothing(tiny_llama: Path, replaying: Device) -> None:
    """Not even the copy of what was found to the host, also when a slot's last tenant asked."""
    prompt = prompts(1, seed=6)[0]
    with engine(tiny_llama, replaying, max_seqs=1) as built:
        built.run(all_at_once([submit(1, prompt, 5, sampling=drawing(1, logprobs=3))]))
        for buffers in built.executor._ring:
            buffers.logprobs.fill_(-5)
        answers = built.run(all_at_once([submit(2, prompt, 5, sampling=drawing(1))])).answers
        untouched = [bool((buffers.logprobs == -5).all()) for buffers in built.executor._ring]
    assert answers[2].logprobs == []
    assert untouched == [True] * 3


def check_prompt(
    folder: Path, prompt: Sequence[int], answer: Answer, top: int, tolerance: float = 2e-4
) -> None:
    """Every token but the first."""
    assert sorted(answer.prompt_logprobs) == list(range(1, len(prompt)))
    right = log_softmax(folder, prompt)
    for position, each in answer.prompt_logprobs.items():
        row = right[position - 1]
        assert each.token == prompt[position]
        assert each.logprob == pytest.approx(float(row[each.token]), abs=tolerance)
        assert [token for token, _ in each.top] == row.topk(top).indices.tolist()


@pytest.mark.parametrize("max_step_tokens", [9, 64, 256], ids=["chunked", "pages", "whole"])
@pytest.mark.parametrize("device", ["delaying", "replaying"])
def test_of_prompts(
    tiny_llama: Path, request: pytest.FixtureRequest, device: str, max_step_tokens: int
) -> None:
    """Longer than a page and than a chunk, again and again, beside others of the same prompt."""
    prompt, *others = prompts(4, seed=31, shortest=70, longest=90)
    asking = drawing(1, prompt_logprobs=3, logprobs=1)

    def ask(first: int) -> list[Submit]:
        """In a namespace of its own, as the front does it."""
        told = msgspec.structs.replace(submit(first, prompt, 6, sampling=asking), namespace=first)
        twin = submit(first + 1, prompt, 6, sampling=drawing(1))
        return [told, twin, submit(first + 2, others[first % 3], 6, sampling=drawing(2))]

    chosen: Device = request.getfixturevalue(device)
    with engine(tiny_llama, chosen, max_step_tokens=max_step_tokens) as built:
        for first in (10, 20):
            answers = built.run(all_at_once(ask(first))).answers
            check_prompt(tiny_llama, prompt, answers[first], 3)
            check(tiny_llama, prompt, answers[first], 1)
            assert answers[first].cached_tokens == 0
            assert answers[first].tokens == answers[first + 1].tokens
            assert not answers[first + 1].prompt_logprobs


def test_of_prompts_of_who_is_retracted(tiny_llama: Path, delaying: Device) -> None:
    asked = prompts(8, seed=12, shortest=20, longest=40)
    submits = [
        msgspec.structs.replace(
            submit(i, p, 40, sampling=drawing(i, prompt_logprobs=2)), namespace=i
        )
        for i, p in enumerate(asked)
    ]
    with engine(tiny_llama, delaying, pages=24, max_step_tokens=9) as built:
        answers = built.run(all_at_once(submits)).answers
        assert built.scheduler.counters().retractions > 0
    for i, prompt in enumerate(asked):
        check_prompt(tiny_llama, prompt, answers[i], 2)


def test_of_a_prompt_of_one_token(tiny_llama: Path, delaying: Device) -> None:
    with engine(tiny_llama, delaying) as built:
        asking = drawing(1, prompt_logprobs=0)
        answers = built.run(all_at_once([submit(1, [5], 3, sampling=asking)])).answers
    assert answers[1].prompt_logprobs == {}
    assert len(answers[1].tokens) == 3
