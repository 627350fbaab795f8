# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Penalties, biases and end tokens that wait, through the whole engine, against Transformers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import Answer, _oracle, all_at_once, engine, greedy, submit
from test_grammar import Library, first, matcher, new
from test_logprobs import check
from tokenspeed._scheduler import Finish
from tokenspeed.engine.adjustments import count_tokens
from tokenspeed.engine.grammar import GrammarLoader, Grammars
from tokenspeed.messages import Bias, EngineInput, Sampling, Submit
from tokenspeed_sdk.contracts.platform import Device

ALWAYS = 1 << 30

ASKED = {
    "nothing": {},
    "repetition": {"repetition_penalty": 1.7},
    "repetition_wanted": {"repetition_penalty": 0.6},
    "frequency": {"frequency_penalty": 1.1},
    "presence": {"presence_penalty": -1.3},
    "all": {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": 0.9},
    "biases": {"biases": (Bias(5, 4.0, ALWAYS), Bias(6, -9.0, ALWAYS), Bias(5, 1.0, ALWAYS))},
}


def greedily(**asked: object) -> Sampling:
    return Sampling(0.0, -1, 1.0, 0.0, 0, **asked)  # type: ignore[arg-type]


def prompts(count: int, *, seed: int, shortest: int = 5, longest: int = 90) -> list[list[int]]:
    rng = random.Random(seed)
    return [
        [rng.randrange(97) for _ in range(rng.randint(shortest, longest))] for _ in range(count)
    ]


@torch.inference_mode()
def expected(
    folder: Path,
    prompt: Sequence[int],
    count: int,
    sampling: Sampling,
    allowed: Callable[[Sequence[int]], list[int]] | None = None,
) -> list[int]:
    """What Transformers takes at temperature 0, with its own repetition penalty; the other
    penalties are the OpenAI API's formula.

    Args:
        allowed: by a grammar, after the tokens that came.
    """
    from transformers import RepetitionPenaltyLogitsProcessor

    model, ids = _oracle(folder), torch.tensor([list(prompt)])
    repetition = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
    for _ in range(count):
        logits = repetition(ids, model(ids).logits[:, -1])[0]
        times = torch.bincount(ids[0, len(prompt) :], minlength=len(logits)).float()
        logits -= times * sampling.frequency_penalty
        logits -= (times > 0).float() * sampling.presence_penalty
        for bias in sampling.biases:
            logits[bias.token] += bias.value if ids.shape[1] < bias.until else 0.0
        if allowed is not None:
            kept = allowed(ids[0, len(prompt) :].tolist())
            logits[[token for token in range(len(logits)) if token not in kept]] = -math.inf
        ids = torch.cat((ids, logits.argmax().view(1, 1)), 1)
    return ids[0, len(prompt) :].tolist()


@pytest.mark.parametrize("device", ["delaying", "replaying"])
def test_a_mixed_batch_equals_transformers(
    tiny_llama: Path, request: pytest.FixtureRequest, device: str
) -> None:
    """All kinds side by side and in chunks; in graphs, too, which are captured before anyone asks.
    More requests than slots, so that each slot has tenants of several kinds."""
    chosen: Device = request.getfixturevalue(device)
    kinds = [ASKED[kind] for _ in range(3) for kind in ASKED]
    asked = prompts(len(kinds), seed=3)
    samplings = [greedily(**kind) for kind in kinds]
    with engine(tiny_llama, chosen, max_seqs=5, max_step_tokens=16) as built:
        answers = built.run(
            all_at_once(
                [
                    submit(i, prompt, 14, sampling=sampling)
                    for i, (prompt, sampling) in enumerate(zip(asked, samplings, strict=True))
                ]
            )
        ).answers
    wanted = [expected(tiny_llama, p, 14, s) for p, s in zip(asked, samplings, strict=True)]
    assert [answers[i].tokens for i in range(len(asked))] == wanted
    plain = [greedy(tiny_llama, prompt, 14) for prompt in asked]
    changed = {kind for kind, w, p in zip([*ASKED] * 3, wanted, plain, strict=True) if w != p}
    assert changed == ASKED.keys() - {"nothing"}  # else this would test nothing


def test_tokens_from_the_cache_count(tiny_llama: Path, delaying: Device) -> None:
    """A prompt that is not computed again is repeated all the same."""
    prompt = prompts(1, seed=5, shortest=60, longest=60)[0]
    sampling = greedily(**ASKED["all"])

    def script(_: int, answers: dict[int, Answer]) -> EngineInput | None:
        turn = len(answers)
        if turn < 3 and all(answer.finish != Finish.NONE for answer in answers.values()):
            if turn in sent:
                return EngineInput()
            sent.add(turn)
            return EngineInput(submits=[submit(turn, prompt, 10, sampling=sampling)])
        return EngineInput() if turn < 3 else None

    sent: set[int] = set()
    with engine(tiny_llama, delaying) as built:
        answers = built.run(script).answers
    assert [answers[i].cached_tokens for i in range(3)] == [0, 59, 59]
    wanted = expected(tiny_llama, prompt, 10, sampling)
    assert [answers[i].tokens for i in range(3)] == [wanted] * 3


@pytest.mark.parametrize("host_pages", [0, 64], ids=["computed-again", "host-tier"])
def test_who_was_retracted_counts_as_before(
    tiny_llama: Path, delaying: Device, host_pages: int
) -> None:
    kinds = [ASKED[kind] for kind in ("all", "frequency", "nothing", "repetition")] * 2
    asked = prompts(len(kinds), seed=12, shortest=20, longest=40)
    submits = [
        submit(i, prompt, 40, sampling=greedily(**kind))
        for i, (prompt, kind) in enumerate(zip(asked, kinds, strict=True))
    ]
    with engine(tiny_llama, delaying, pages=24, host_pages=host_pages) as built:
        answers = built.run(all_at_once(submits)).answers
        retractions = built.scheduler.counters().retractions
    assert retractions > 0
    for i, (prompt, kind) in enumerate(zip(asked, kinds, strict=True)):
        assert answers[i].tokens == expected(tiny_llama, prompt, 40, greedily(**kind))


def test_a_draw_depends_on_its_own_row_alone(tiny_llama: Path, delaying: Device) -> None:
    """A seeded request with every adjustment, alone and in crowds that adjust otherwise."""
    prompt = prompts(1, seed=10)[0]
    adjusted = {**ASKED["all"], **ASKED["biases"]}
    drawn = Sampling(1.0, 40, 0.95, 0.0, 11, **adjusted)  # type: ignore[arg-type]
    kinds = list(ASKED.values())

    def crowd(first: int) -> list[Submit]:
        return [
            submit(first + i, p, 9 + i, sampling=Sampling(0.9, -1, 1.0, 0.0, i, **kinds[i]))  # type: ignore[arg-type]
            for i, p in enumerate(prompts(len(kinds), seed=first))
        ]

    with engine(tiny_llama, delaying) as built:
        alone = built.run(all_at_once([submit(1, prompt, 20, sampling=drawn)])).answers[1]
        for first, place in ((10, 0), (30, 5)):
            together = crowd(first)
            together.insert(place, submit(2, prompt, 20, sampling=drawn))
            answers = built.run(all_at_once(together)).answers
            assert answers[2].tokens == alone.tokens


def test_end_tokens_wait(tiny_llama: Path, delaying: Device) -> None:
    """Banned until enough tokens came, then free again."""
    prompt = prompts(1, seed=9)[0]
    first = greedy(tiny_llama, prompt, 1)[0]
    bans = (Bias(first, -math.inf, len(prompt) + 5),)
    with engine(tiny_llama, delaying) as built:
        answers = built.run(
            all_at_once(
                [
                    submit(1, prompt, 30, stop_ids=[first], sampling=greedily(biases=bans)),
                    submit(2, prompt, 30, stop_ids=[first]),
                ]
            )
        ).answers
    assert answers[2].tokens == [first]
    free = expected(tiny_llama, prompt, 30, greedily(biases=bans))
    assert first not in free[:5]
    wanted = free[: free.index(first) + 1] if first in free else free
    assert answers[1].tokens == wanted


def test_a_slot_forgets_its_last_tenant(tiny_llama: Path, replaying: Device) -> None:
    """One slot, tenants of every kind in turn."""
    order = ["all", "nothing", "frequency", "repetition", "nothing", "biases", "nothing", "all"]
    asked = prompts(len(order), seed=21, longest=30)
    submits = [
        submit(i, prompt, 8, sampling=greedily(**ASKED[kind]))
        for i, (prompt, kind) in enumerate(zip(asked, order, strict=True))
    ]
    with engine(tiny_llama, replaying, max_seqs=1) as built:
        answers = built.run(all_at_once(submits)).answers
    for i, (prompt, kind) in enumerate(zip(asked, order, strict=True)):
        assert answers[i].tokens == expected(tiny_llama, prompt, 8, greedily(**ASKED[kind]))


@pytest.mark.parametrize("device", ["delaying", "replaying"])
def test_beside_grammars(tiny_llama: Path, request: pytest.FixtureRequest, device: str) -> None:
    """A mask falls on adjusted logits, and log-probabilities stay the model's own."""
    chosen: Device = request.getfixturevalue(device)
    kinds = [ASKED["all"], ASKED["nothing"], ASKED["biases"], ASKED["repetition"]] * 2
    asked = prompts(len(kinds), seed=17)
    samplings = [greedily(logprobs=2, **kind) for kind in kinds]
    submits = [
        submit(i, prompt, 12, sampling=sampling, grammar=1 if i % 3 else 0)
        for i, (prompt, sampling) in enumerate(zip(asked, samplings, strict=True))
    ]
    held = Grammars(GrammarLoader(lambda name: Library()))
    with engine(tiny_llama, chosen, max_seqs=5, max_step_tokens=16) as built:
        answers = built.run(first([new(1, 5)], submits), held).answers
    for i, (prompt, sampling) in enumerate(zip(asked, samplings, strict=True)):
        allowed = matcher(5).allowed if i % 3 else None
        assert answers[i].tokens == expected(tiny_llama, prompt, 12, sampling, allowed)
        check(tiny_llama, prompt, answers[i], 2)


def test_who_comes_and_goes_leaves_nothing(tiny_llama: Path, delaying: Device) -> None:
    """Requests of all kinds come and are aborted at random; the others are answered as if alone."""
    rng = random.Random(14)
    asked = prompts(10, seed=15, shortest=4, longest=30)
    samplings = [greedily(logprobs=i % 3 - 1, **kind) for i, kind in enumerate(ASKED.values())]
    which: dict[int, tuple[int, int]] = {}
    alive: set[int] = set()

    def script(_: int, answers: dict[int, Answer]) -> EngineInput | None:
        over = {r for r in alive if answers.get(r, Answer()).finish != Finish.NONE}
        alive.difference_update(over)
        if len(which) >= 150:
            return EngineInput() if alive else None
        message = EngineInput()
        while len(alive) < 7:
            request, (p, s) = len(which), (rng.randrange(10), rng.randrange(len(samplings)))
            which[request] = p, s
            alive.add(request)
            message.submits.append(submit(request, asked[p], 10, sampling=samplings[s]))
        message.aborts += [r for r in alive if rng.random() < 0.08]
        return message

    with engine(tiny_llama, delaying, pages=40, max_seqs=5, max_step_tokens=16) as built:
        answers = built.run(script).answers
        assert built.scheduler.ledger().balanced
    right = {
        (p, s): expected(tiny_llama, asked[p], 10, samplings[s]) for p, s in set(which.values())
    }
    whole = 0
    for request, answer in answers.items():
        p, s = which[request]
        assert answer.tokens == right[p, s][: len(answer.tokens)]
        told = answer.tokens if samplings[s].logprobs >= 0 else []
        assert [each.token for each in answer.logprobs] == told
        whole += answer.finish == Finish.LENGTH
    assert 30 < whole < 130


def test_counts() -> None:
    counts = np.full(6, -1, np.int32)
    count_tokens(counts, np.array([1, 1, 4, 4, 2, 4], np.int32), 3)
    assert counts.tolist() == [0, 1, 2, 0, 5, 0]
