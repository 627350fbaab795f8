# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Guesses for requests with penalties: each token counts those in front of it, guesses among them.

A guess that stood behind another count would be drawn otherwise, so answers that equal those
without guesses tell that counts were right everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from harness import Answer, Engine, all_at_once, engine, submit
from test_adjustments import ASKED, expected, greedily, prompts
from test_grammar import Library, first, matcher, new
from test_settings import ReadyMailbox, built
from test_speculation import MOST, VOCABULARY, Knowing, check_equal
from tokenspeed.engine.grammar import GrammarLoader, Grammars
from tokenspeed.engine.speculation import Speculation
from tokenspeed.messages import Bias, EngineOutput, Sampling, Submit
from tokenspeed_sdk.contracts.platform import Device
from tokenspeed_sdk.ops import ReferenceResolver

ALWAYS = 1 << 30
LENGTH = 30
PROMPT = 24

KINDS: dict[str, dict[str, Any]] = {
    **ASKED,
    "all_wanted": {
        "repetition_penalty": 0.7,
        "frequency_penalty": -0.3,
        "presence_penalty": -0.5,
    },
    "all_and_biases": {
        **ASKED["all"],
        "biases": (
            Bias(7, 3.0, ALWAYS),
            Bias(7, 0.5, PROMPT + 11),
            *(Bias(token, -math.inf, PROMPT + 13) for token in range(0, 60, 2)),
        ),
    },
}
"""The last one has a bias for a token that repeats, and end tokens that wait, as it were."""


class Parts(ReferenceResolver):
    """References, but for the op that counts guesses."""

    def bind_fused(self, site: Any, parts: Any) -> Any:
        fused = site.op != "adjust_logits_verify@1"
        return super().bind_fused(site, parts) if fused else None


def asking(temperature: float, length: int = LENGTH) -> list[Submit]:
    """One request of each kind; every other one is told log-probabilities."""
    asked = prompts(len(KINDS), seed=41, shortest=PROMPT, longest=PROMPT)
    return [
        submit(
            n,
            prompt,
            length,
            sampling=Sampling(temperature, 30, 0.97, 0.0, n, logprobs=2 if n % 2 else -1, **kind),
        )
        for n, (prompt, kind) in enumerate(zip(asked, KINDS.values(), strict=True))
    ]


def guessing(it: Engine, drafter: Any) -> Speculation:
    return Speculation(drafter, MOST, VOCABULARY, penalties=it.executor.counts_guesses)


def guessed_for(outputs: Sequence[EngineOutput]) -> dict[int, tuple[int, int]]:
    """Of each request, how many guesses were verified, and how many were right."""
    told: dict[int, tuple[int, int]] = {}
    for each in (guessed for output in outputs for guessed in output.guessed):
        drafted, accepted = told.get(each.request, (0, 0))
        told[each.request] = drafted + each.drafted, accepted + each.accepted
    return told


def tokens_of(answers: dict[int, Answer]) -> dict[int, list[int]]:
    return {n: answer.tokens for n, answer in answers.items()}


@pytest.mark.parametrize("device", ["delaying", "replaying"])
@pytest.mark.parametrize("temperature", [0.0, 0.9], ids=["greedy", "sampled"])
def test_answers_are_those_without_guesses(
    tiny_llama: Path, request: pytest.FixtureRequest, device: str, temperature: float
) -> None:
    """Token for token, and their log-probabilities; guesses right, some wrong, all wrong."""
    chosen: Device = request.getfixturevalue(device)
    submits = asking(temperature)
    with engine(tiny_llama, chosen) as it:
        plain = it.run(all_at_once(submits)).answers
    right = tokens_of(plain)
    repeated = {n for n, tokens in right.items() if len(set(tokens)) < LENGTH - 3}
    assert len(repeated) > 4  # else few counts would matter
    for wrong in (0.0, 0.3, 1.0):
        options: dict[str, Any] = {"row_tokens": 1 + MOST, "kernels": ReferenceResolver(fuse=True)}
        with engine(tiny_llama, chosen, **options) as it:
            speculation = guessing(it, Knowing(right, wrong))
            mailbox = it.run(all_at_once(submits), speculation=speculation)
            assert it.scheduler.ledger().balanced
        assert tokens_of(mailbox.answers) == right
        for n, answer in mailbox.answers.items():
            check_equal(answer.logprobs, plain[n].logprobs)
            assert len(answer.logprobs) == (LENGTH if n % 2 else 0)
        counts = guessed_for(mailbox.outputs)
        assert counts.keys() == right.keys()
        for drafted, accepted in counts.values():
            assert accepted == drafted * (wrong == 0.0) or wrong == 0.3
        assert (speculation.accepted > 60) == (wrong < 1.0)


@pytest.mark.parametrize("device", ["delaying", "replaying"])
def test_they_are_those_of_transformers(
    tiny_llama: Path, request: pytest.FixtureRequest, device: str
) -> None:
    """More requests than slots, prompts in chunks beside guesses, few pages: some are retracted."""
    chosen: Device = request.getfixturevalue(device)
    kinds = [*KINDS.values()] * 2
    asked = prompts(len(kinds), seed=43, shortest=10, longest=40)
    samplings = [greedily(**kind) for kind in kinds]
    right = {
        n: expected(tiny_llama, prompt, LENGTH, sampling)
        for n, (prompt, sampling) in enumerate(zip(asked, samplings, strict=True))
    }
    submits = [submit(n, p, LENGTH, sampling=samplings[n]) for n, p in enumerate(asked)]
    options: dict[str, Any] = {"max_seqs": 5, "max_step_tokens": 40, "pages": 34}
    options |= {"row_tokens": 1 + MOST, "kernels": ReferenceResolver(fuse=True)}
    with engine(tiny_llama, chosen, **options) as it:
        speculation = guessing(it, Knowing(right, 0.3))
        answers = it.run(all_at_once(submits), speculation=speculation).answers
        assert it.scheduler.counters().retractions > 0
    assert tokens_of(answers) == right
    assert speculation.accepted > 100


@pytest.mark.parametrize("device", ["delaying", "replaying"])
def test_beside_grammars(tiny_llama: Path, request: pytest.FixtureRequest, device: str) -> None:
    """A mask falls on logits that were adjusted for the guesses in front of them."""
    chosen: Device = request.getfixturevalue(device)
    asked = prompts(4, seed=44, shortest=10, longest=40)
    samplings = [greedily(**KINDS[kind]) for kind in ("all", "all_wanted", "frequency", "all")]
    allowed = matcher(5).allowed
    right = {
        n: expected(tiny_llama, asked[n], 24, samplings[n], allowed if n % 3 else None)
        for n in range(4)
    }
    submits = [
        submit(n, asked[n], 24, sampling=samplings[n], grammar=1 if n % 3 else 0) for n in range(4)
    ]
    held = Grammars(GrammarLoader(lambda name: Library()))
    options: dict[str, Any] = {"row_tokens": 1 + MOST, "kernels": ReferenceResolver(fuse=True)}
    with engine(tiny_llama, chosen, **options) as it:
        speculation = guessing(it, Knowing(right, 0.2))
        answers = it.run(first([new(1, 5)], submits), held, speculation).answers
    assert tokens_of(answers) == right
    assert speculation.accepted > 20


def test_a_slot_has_the_counts_of_what_it_said(tiny_llama: Path, delaying: Device) -> None:
    """Twice the tokens that counted, plus one for those of the prompt; of wrong guesses nothing."""
    [prompt] = prompts(1, seed=45, shortest=PROMPT, longest=PROMPT)
    sampling = greedily(**KINDS["all_wanted"])
    right = {1: expected(tiny_llama, prompt, LENGTH, sampling)}
    options: dict[str, Any] = {"row_tokens": 1 + MOST, "kernels": ReferenceResolver(fuse=True)}
    with engine(tiny_llama, delaying, max_seqs=1, **options) as it:
        speculation = guessing(it, Knowing(right, 0.3))
        submits = [submit(1, prompt, LENGTH, sampling=sampling)]
        answers = it.run(all_at_once(submits), speculation=speculation).answers
        counts = it.executor._step.adjustments.counts[1].tolist()
    assert answers[1].tokens == right[1]
    assert 0 < speculation.accepted < speculation.drafted
    said = right[1]
    assert counts == [2 * said.count(t) + (t in prompt) for t in range(VOCABULARY)]


def test_without_a_kernel_that_counts_guesses_there_are_none(
    tiny_llama: Path, delaying: Device
) -> None:
    """Others are guessed for beside them."""
    submits = asking(0.0)
    with engine(tiny_llama, delaying) as it:
        right = tokens_of(it.run(all_at_once(submits)).answers)
    with engine(tiny_llama, delaying, row_tokens=1 + MOST, kernels=Parts(fuse=True)) as it:
        assert not it.executor.counts_guesses
        mailbox = it.run(all_at_once(submits), speculation=guessing(it, Knowing(right, 0.2)))
    assert tokens_of(mailbox.answers) == right
    free = {n for n, each in enumerate(submits) if not each.sampling.penalizes}
    assert guessed_for(mailbox.outputs).keys() == free


def test_a_whole_engine_guesses_beside_penalties(tiny_llama: Path) -> None:
    """As a server builds it: the CPU's kernels, and the drafter that finds what came before."""
    loops = [KINDS["all_wanted"], {"frequency_penalty": -1.5}, {"presence_penalty": -2.0}]
    asked = prompts(len(loops), seed=46)
    submits = [submit(n, asked[n], 60, sampling=greedily(**kind)) for n, kind in enumerate(loops)]
    answers = []
    for settings in ({}, {"drafter": "suffix", "draft_tokens": MOST}):
        mailbox = ReadyMailbox(all_at_once(submits))
        with built(tiny_llama, mailbox, **settings) as loop:
            loop.run()
        answers.append(tokens_of(mailbox.answers))
    assert answers[1] == answers[0]
    assert mailbox.load.accepted_tokens > 10
