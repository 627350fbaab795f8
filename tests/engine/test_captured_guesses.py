# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Steps that verify guesses where decode steps are captured: the same answers from graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from churn import Churn
from harness import Engine, all_at_once, engine, greedy, submit
from hypothesis import given
from hypothesis import strategies as st
from test_grammar import Library, first, matcher, new
from test_speculation import MOST, VOCABULARY, Knowing, prompts
from tokenspeed.engine.buffers import Limits
from tokenspeed.engine.grammar import GrammarLoader, Grammars
from tokenspeed.engine.graphs import (
    MOST_VERIFIED,
    StepKind,
    graph_sizes,
    most_drafts,
    verify_sizes,
)
from tokenspeed.engine.speculation import Speculation
from tokenspeed.messages import Sampling
from tokenspeed_sdk.contracts.kernel import Binding, CallSite
from tokenspeed_sdk.contracts.platform import Device
from tokenspeed_sdk.ops import ReferenceResolver

DECODE, VERIFY = StepKind(), StepKind(verifies=True)
VERIFY_MASKED = StepKind(verifies=True, samples=False)

Replays = Counter[tuple[StepKind, int]]


@contextmanager
def watched(folder: Path, device: Device, **options: Any) -> Iterator[tuple[Engine, Replays]]:
    """An engine for guesses, and which graphs it replays."""
    with engine(folder, device, row_tokens=1 + MOST, **options) as built:
        replays: Replays = Counter()
        graphs = built.executor._graphs
        replay = graphs.replay

        def count(kind: StepKind, bucket: int) -> Any:
            replays[kind, bucket] += 1
            return replay(kind, bucket)

        graphs.replay = count  # type: ignore[method-assign]
        yield built, replays


def buckets(replays: Replays, kind: StepKind) -> set[int]:
    return {bucket for each, bucket in replays if each == kind}


@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0], ids=["right", "some_wrong", "all_wrong"])
def test_answers_are_those_of_transformers(
    tiny_llama: Path, replaying: Device, wrong: float
) -> None:
    """Rows of any number of guesses, and of none, in graphs of any size."""
    asked = prompts(7, seed=21)
    lengths = [8, 40, 16, 24, 9, 30, 12]
    right = {n: greedy(tiny_llama, p, lengths[n]) for n, p in enumerate(asked)}
    guessed = {n: tokens for n, tokens in right.items() if n != 4}
    speculation = Speculation(Knowing(guessed, wrong), MOST, VOCABULARY)
    with watched(tiny_llama, replaying) as (it, replays):
        submits = [submit(n, p, lengths[n]) for n, p in enumerate(asked)]
        answers = it.run(all_at_once(submits), speculation=speculation).answers
        assert it.scheduler.ledger().balanced
    assert {n: answer.tokens for n, answer in answers.items()} == right
    assert len(buckets(replays, VERIFY)) > 1
    assert speculation.accepted == speculation.drafted * (wrong == 0.0) or wrong == 0.3
    if wrong == 1.0:  # then requests are left alone, and their steps overlap
        assert buckets(replays, DECODE)


def test_runs_of_rows_have_an_op_of_their_own(tiny_llama: Path, replaying: Device) -> None:
    """Where a kernel is for it; every layer calls it for steps with guesses, and for no others."""
    calls: Counter[str] = Counter()

    class Counting(ReferenceResolver):
        def bind(self, site: CallSite) -> Binding:
            bound = super().bind(site)

            def call(*args: Any) -> Any:
                calls[site.op] += 1
                return bound.call(*args)

            return replace(bound, call=call) if site.op.startswith("attention") else bound

    asked = prompts(3, seed=25)
    right = {n: greedy(tiny_llama, p, 24) for n, p in enumerate(asked)}
    speculation = Speculation(Knowing({n: right[n] for n in (0, 1)}, 0.3), MOST, VOCABULARY)
    with watched(tiny_llama, replaying, kernels=Counting(fuse=True)) as (it, replays):
        calls.clear()  # those of the captures
        submits = [submit(n, p, 24) for n, p in enumerate(asked)]
        answers = it.run(all_at_once(submits), speculation=speculation).answers
    assert {n: answer.tokens for n, answer in answers.items()} == right
    layers = 2
    of_kind = Counter[StepKind]()
    for (kind, _), count in replays.items():
        of_kind[kind] += count
    assert calls["attention_verify@1"] == layers * of_kind[VERIFY] > 0
    assert calls["attention_decode@1"] >= layers * of_kind[DECODE] > 0  # more beside prompts


def test_sampled_answers_are_those_without_guesses(tiny_llama: Path, replaying: Device) -> None:
    submits = [
        submit(n, prompt, 30, sampling=Sampling(0.9, 20, 0.95, 0.0, 77 + n))
        for n, prompt in enumerate(prompts(5, seed=22), 1)
    ]
    with engine(tiny_llama, replaying) as it:
        plain = it.run(all_at_once(submits)).answers
    right = {n: answer.tokens for n, answer in plain.items()}
    speculation = Speculation(Knowing(right, 0.3), MOST, VOCABULARY)
    with watched(tiny_llama, replaying) as (it, replays):
        answers = it.run(all_at_once(submits), speculation=speculation).answers
    assert {n: answer.tokens for n, answer in answers.items()} == right
    assert speculation.accepted > 20
    assert buckets(replays, VERIFY)


def test_masks_behind_a_captured_forward_pass(tiny_llama: Path, replaying: Device) -> None:
    free_prompt, bound_prompt = prompts(2, seed=23)
    right = {
        1: greedy(tiny_llama, free_prompt, 24),
        2: greedy(tiny_llama, bound_prompt, 24, matcher(3).allowed),
    }
    submits = [submit(1, free_prompt, 24), submit(2, bound_prompt, 24, grammar=1)]
    speculation = Speculation(Knowing(right, 0.2), MOST, VOCABULARY)
    grammars = Grammars(GrammarLoader(lambda name: Library()))
    with watched(tiny_llama, replaying) as (it, replays):
        answers = it.run(first([new(1, 3)], submits), grammars, speculation).answers
    assert {n: answer.tokens for n, answer in answers.items()} == right
    assert speculation.accepted > 12
    assert buckets(replays, VERIFY_MASKED)


def test_random_traffic_is_answered_as_without_guesses(tiny_llama: Path, replaying: Device) -> None:
    """With prompts in between, whose steps are launched, and rows that are retracted."""
    churn = Churn(seed=24, steps=100, longest=30)
    right: dict[int, Sequence[int]] = {}

    class Learning(Knowing):
        def begin(self, request: int, prompt: Any, *, namespace: int) -> None:
            super().begin(request, prompt, namespace=namespace)
            right[request] = greedy(tiny_llama, prompt.tolist(), churn.asked[request][1])

    speculation = Speculation(Learning(right, 0.3), MOST, VOCABULARY)
    with watched(tiny_llama, replaying, pages=24) as (it, replays):
        answers = it.run(churn.script, speculation=speculation).answers
        assert it.scheduler.ledger().balanced
        assert it.scheduler.counters().retractions > 0
    for request in churn.kept:
        assert answers[request].tokens == right[request], request
    assert speculation.accepted > 0
    assert buckets(replays, VERIFY)


def test_nobody_pays_for_graphs_that_are_not_needed() -> None:
    limits = {"sequences": 64, "tokens": 2048, "groups": 1, "max_kv_len": 4096, "page_size": 16}
    assert set(graph_sizes(Limits(**limits))) == {DECODE}
    guessing = graph_sizes(Limits(**limits, row_tokens=8, mask_words=9))
    assert set(guessing) == {StepKind(v, s) for v in (False, True) for s in (False, True)}
    assert guessing[DECODE] == graph_sizes(Limits(**limits))[DECODE]
    assert guessing[VERIFY][-1] == MOST_VERIFIED == 64 * 8
    assert sum(map(len, guessing.values())) < 50


@given(st.lists(st.integers(0, 7), min_size=1, max_size=64), st.integers(0, 20))
def test_a_captured_step_has_room_for_all_guesses_of_a_model(counts: list[int], dead: int) -> None:
    """Whatever rows a step of that many tokens has, the most guesses first."""
    tokens = sum(counts) + len(counts) + dead
    limits = Limits(64, 2048, groups=1, max_kv_len=4096, page_size=16, row_tokens=8)
    drafted = sorted((count for count in counts if count), reverse=True)
    most = most_drafts(tokens, limits)
    assert len(drafted) <= len(most)
    assert all(each <= bound for each, bound in zip(drafted, most, strict=False))
    assert sorted(most, reverse=True) == list(most)
    assert sum(most) <= 1.8 * tokens


@pytest.mark.parametrize("most", [2, 3, 40, 48, 500, 512])
def test_little_of_a_step_with_guesses_is_padding(most: int) -> None:
    sizes = verify_sizes(most)
    assert sizes[-1] == most
    for tokens in range(2, most + 1):
        bucket = min(size for size in sizes if size >= tokens)
        assert bucket - tokens <= tokens / 2
