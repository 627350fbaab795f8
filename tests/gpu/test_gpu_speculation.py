# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Guesses that are verified on the GPU: in captured steps, launched ones, and not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from churn import Churn
from harness import all_at_once, engine, greedy, submit
from test_captured_guesses import VERIFY, VERIFY_MASKED, buckets, watched
from test_draft_model import Taught, ask, teach
from test_draft_model import run as run_head
from test_grammar import Library, first, matcher, new
from test_penalized_guesses import KINDS, LENGTH, asking, guessed_for, guessing, tokens_of
from test_speculation import MOST, VOCABULARY, Knowing, check_equal, prompts, telling
from tokenspeed.engine.grammar import GrammarLoader, Grammars
from tokenspeed.engine.speculation import Speculation

pytestmark = pytest.mark.gpu

EDITS = Path(__file__).parents[2] / "bench" / "edits" / "edits.jsonl"
TIE = {"float32": 1e-4, "bfloat16": 0.25}
"""The two best logits in float32 are nearer than this: what sums in another order may swap."""

TOLERANCE = 1e-3
"""Of log-probabilities, where many logits are large."""

graphs_or_eager = pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])


@graphs_or_eager
@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0], ids=["right", "some_wrong", "all_wrong"])
def test_answers_are_those_of_transformers(
    gpu: Any, kernels: Any, small_llama: Path, graphs: bool, wrong: float
) -> None:
    """float32; rows of any number of guesses and of none, more requests than slots."""
    asked = prompts(14, seed=21)
    lengths = [8 + 5 * (n % 7) for n in range(14)]
    right = {n: greedy(small_llama, p, lengths[n]) for n, p in enumerate(asked)}
    guessed = {n: tokens for n, tokens in right.items() if n % 5 != 4}
    speculation = Speculation(Knowing(guessed, wrong), MOST, VOCABULARY)
    with watched(small_llama, gpu, kernels=kernels, graphs=graphs) as (it, replays):
        submits = [submit(n, p, lengths[n]) for n, p in enumerate(asked)]
        answers = it.run(all_at_once(submits), speculation=speculation).answers
        assert it.scheduler.ledger().balanced
    assert {n: answer.tokens for n, answer in answers.items()} == right
    assert len(buckets(replays, VERIFY)) > 2 * graphs - 1
    print(f"{speculation.accepted} of {speculation.drafted} right, in {buckets(replays, VERIFY)}")


@graphs_or_eager
def test_random_traffic_is_answered_as_without_guesses(
    gpu: Any, kernels: Any, small_llama: Path, graphs: bool
) -> None:
    """Every step's page tables are verified; rows are retracted, aborted, and begin in between."""
    churn = Churn(seed=24, steps=300, longest=30)
    right: dict[int, Sequence[int]] = {}

    class Learning(Knowing):
        def begin(self, request: int, prompt: Any, *, namespace: int) -> None:
            super().begin(request, prompt, namespace=namespace)
            right[request] = greedy(small_llama, prompt.tolist(), churn.asked[request][1])

    speculation = Speculation(Learning(right, 0.3), MOST, VOCABULARY)
    options = {"pages": 24, "kernels": kernels, "graphs": graphs}
    with watched(small_llama, gpu, **options) as (it, _):
        answers = it.run(churn.script, speculation=speculation).answers
        assert it.scheduler.ledger().balanced
        assert it.scheduler.counters().retractions > 0
    for request in churn.kept:
        assert answers[request].tokens == right[request], request
    assert speculation.accepted > 100


@graphs_or_eager
@pytest.mark.parametrize("temperature", [0.0, 0.9], ids=["greedy", "sampled"])
def test_draws_biases_and_log_probabilities_are_those_without_guesses(
    gpu: Any, kernels: Any, small_llama: Path, graphs: bool, temperature: float
) -> None:
    submits = telling(temperature)
    options = {"kernels": kernels, "graphs": graphs}
    with engine(small_llama, gpu, **options) as it:
        plain = it.run(all_at_once(submits)).answers
    right = {n: answer.tokens for n, answer in plain.items()}
    speculation = Speculation(Knowing(right, 0.3), MOST, VOCABULARY)
    with watched(small_llama, gpu, **options) as (it, replays):
        answers = it.run(all_at_once(submits), speculation=speculation).answers
    assert {n: answer.tokens for n, answer in answers.items()} == right
    assert speculation.accepted > 40
    assert bool(buckets(replays, VERIFY)) == graphs
    for n, answer in answers.items():
        check_equal(answer.logprobs, plain[n].logprobs)


@graphs_or_eager
@pytest.mark.parametrize("temperature", [0.0, 0.9], ids=["greedy", "sampled"])
def test_penalties_behind_guesses(
    gpu: Any, kernels: Any, small_llama: Path, graphs: bool, temperature: float
) -> None:
    """Of every kind; guesses right, some wrong, all wrong."""
    submits, options = asking(temperature), {"kernels": kernels, "graphs": graphs}
    with engine(small_llama, gpu, **options) as it:
        plain = it.run(all_at_once(submits)).answers
    right = tokens_of(plain)
    for wrong in (0.0, 0.3, 1.0):
        with watched(small_llama, gpu, **options) as (it, replays):
            speculation = guessing(it, Knowing(right, wrong))
            mailbox = it.run(all_at_once(submits), speculation=speculation)
        assert tokens_of(mailbox.answers) == right
        assert len(guessed_for(mailbox.outputs)) == len(KINDS)
        assert (speculation.accepted > 2 * LENGTH) == (wrong < 1.0)
        assert bool(buckets(replays, VERIFY)) == graphs
        for n, answer in mailbox.answers.items():
            check_equal(answer.logprobs, plain[n].logprobs, TOLERANCE)


@graphs_or_eager
def test_masks_behind_guesses(gpu: Any, kernels: Any, small_llama: Path, graphs: bool) -> None:
    asked = prompts(4, seed=23)
    strides = {1: 3, 2: 5}
    held = [0, 1, 2, 1]
    right = {
        n: greedy(small_llama, p, 24, matcher(strides[held[n]]).allowed if held[n] else None)
        for n, p in enumerate(asked)
    }
    submits = [submit(n, p, 24, grammar=held[n]) for n, p in enumerate(asked)]
    speculation = Speculation(Knowing(right, 0.2), MOST, VOCABULARY)
    grammars = Grammars(GrammarLoader(lambda name: Library()))
    with watched(small_llama, gpu, kernels=kernels, graphs=graphs) as (it, replays):
        news = [new(number, stride) for number, stride in strides.items()]
        answers = it.run(first(news, submits), grammars, speculation).answers
    assert {n: answer.tokens for n, answer in answers.items()} == right
    assert speculation.accepted > 24
    assert bool(buckets(replays, VERIFY_MASKED)) == graphs


@pytest.fixture(scope="module")
def taught(small_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Taught:
    return teach(small_llama, tmp_path_factory.mktemp("head"))


@graphs_or_eager
def test_a_model_guesses_within_the_step(
    gpu: Any, kernels: Any, taught: Taught, graphs: bool
) -> None:
    """float32; each guess is what the head's formula says of its text, and answers are those of
    Transformers, of prompts in chunks too."""
    script = all_at_once(ask(taught))
    options = {"kernels": kernels, "graphs": graphs, "max_step_tokens": 40, "max_seqs": 4}
    answers, speculation, _ = run_head(taught, gpu, script, **options)
    assert {n: answer.tokens for n, answer in answers.items()} == taught.right
    assert speculation.accepted > 0.5 * speculation.drafted
    print(f"{speculation.accepted} of {speculation.drafted} guesses of the head right")


@pytest.fixture(scope="module")
def edits(smollm2: Path) -> list[list[int]]:
    """Prompts whose answers repeat much of them."""
    from tokenspeed.front.chat_template import ChatTemplate
    from tokenspeed.front.model_folder import ModelFolder

    folder = ModelFolder(str(smollm2))
    template = ChatTemplate.of(folder)
    lines = [json.loads(line) for line in EDITS.read_text().splitlines()[:6]]
    said = [f"{line['instruction']}\n\n{line['code']}" for line in lines]
    texts = [template.render([{"role": "user", "content": text}]) for text in said]
    return [folder.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


@torch.inference_mode()
def gaps(folder: Path, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """[answer]: between the two best logits in float32, where each token was drawn."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    best = logits.topk(2).values
    return best[:, 0] - best[:, 1]


@pytest.mark.weights
@pytest.mark.parametrize(
    ("dtype", "graphs"), [("float32", True), ("bfloat16", True), ("bfloat16", False)]
)
def test_greedy_answers_of_a_real_model(
    gpu: Any, smollm2: Path, edits: list[list[int]], dtype: str, graphs: bool
) -> None:
    """Teacher-forced: where an answer differs from the one without guesses, both best logits must
    be near, and it goes on with the other's token."""
    from tokenspeed import LLM, SamplingParams

    length = 128
    options = {"dtype": dtype, "graphs": graphs, "max_model_len": 2048, "max_num_seqs": 8}
    whole = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
    with LLM(str(smollm2), platform="nvidia", **options) as llm:
        plain = [answer.token_ids for answer in llm.generate(edits, whole)]
    near = []
    with LLM(str(smollm2), platform="nvidia", drafter="suffix", **options) as llm:
        pending = [(n, 0) for n in range(len(edits))]
        while pending:
            ours = llm.generate(
                [edits[n] + plain[n][:start] for n, start in pending],
                [msgspec.structs.replace(whole, max_tokens=length - start) for _, start in pending],
            )
            ends = []
            for (n, start), answer in zip(pending, ours, strict=True):
                pairs = enumerate(zip(answer.token_ids, plain[n][start:], strict=True), start)
                at = next((i for i, (mine, theirs) in pairs if mine != theirs), None)
                if at is not None:
                    near.append(float(gaps(smollm2, edits[n], plain[n])[at]))
                    ends.append((n, at + 1))
            pending = [(n, start) for n, start in ends if start < length]
        load = llm._client.load
    print(
        f"{load.accepted_tokens} of {load.drafted_tokens} guesses right; {len(near)} of "
        f"{length * len(edits)} differ, largest gap {max(near, default=0):.4f}"
    )
    assert load.accepted_tokens > 100
    assert max(near, default=0) < TIE[dtype]
    assert len(near) <= 0.03 * length * len(edits)
