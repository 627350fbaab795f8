# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Guesses change how fast an answer comes, and nothing of it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from churn import VOCABULARY, Churn
from harness import Answer, all_at_once, engine, greedy, submit
from numpy.typing import NDArray
from test_grammar import END, Library, ServingReferences, first, matcher, new
from tokenspeed._scheduler import Finish
from tokenspeed.engine.grammar import GrammarLoader, Grammars
from tokenspeed.engine.loop import now_ms
from tokenspeed.engine.speculation import REST, WORTH, Guesses, Speculation
from tokenspeed.front.logprobs import TokenLogprobs
from tokenspeed.messages import Bias, NewGrammar, Sampling, Submit, Thinking
from tokenspeed_sdk.contracts.platform import Device

MOST = 4


@pytest.fixture
def device(delaying: Device) -> Device:
    """Whose work ends at random times."""
    return delaying


class Knowing:
    """A drafter that knows the answers, and errs at some places; checks what it is told.

    Attributes:
        asked: how often it was asked for guesses.
    """

    def __init__(self, answers: Mapping[int, Sequence[int]], wrong: float, seed: int = 0) -> None:
        self._answers = answers
        self._wrong = wrong
        self._random = random.Random(seed)
        self._said: dict[int, list[int]] = {}
        self.asked = 0

    def begin(self, request: int, prompt: NDArray[np.int32], *, namespace: int) -> None:
        assert request not in self._said
        self._said[request] = []

    def advance(
        self,
        request: NDArray[np.uint64],
        token_start: NDArray[np.int32],
        tokens: NDArray[np.int32],
    ) -> None:
        for i, number in enumerate(request.tolist()):
            if number in self._said:
                self._said[number] += tokens[token_start[i] : token_start[i + 1]].tolist()

    def draft(
        self, request: NDArray[np.uint64], most: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        self.asked += 1
        counts = np.zeros(len(request), np.int32)
        for i, number in enumerate(request.tolist()):
            place = len(self._said[number])
            coming = list(self._answers.get(number, ()))[place : place + most[i]]
            # the largest token's wrong guess is none of the vocabulary
            guesses = [t if self._random.random() >= self._wrong else t ^ 1 for t in coming]
            counts[i] = len(guesses)
            tokens[i, : len(guesses)] = guesses
        return counts

    def end(self, request: int) -> None:
        del self._said[request]

    def is_empty(self) -> bool:
        return not self._said


def prompts(count: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCABULARY) for _ in range(rng.randint(3, 70))] for _ in range(count)]


def run(
    folder: Path, device: Device, submits: Sequence[Submit], drafter: Any = None, **options: Any
) -> tuple[dict[int, Answer], Speculation]:
    speculation = Speculation(drafter, MOST, VOCABULARY)
    with engine(folder, device, row_tokens=1 + MOST if drafter else 1, **options) as it:
        answers = it.run(all_at_once(submits), speculation=speculation).answers
        assert it.scheduler.ledger().balanced
    return answers, speculation


@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0], ids=["right", "some_wrong", "all_wrong"])
def test_greedy_answers_are_those_of_transformers(
    tiny_llama: Path, device: Device, wrong: float
) -> None:
    asked = prompts(6, seed=3)
    right = {n: greedy(tiny_llama, prompt, 24) for n, prompt in enumerate(asked, 1)}
    drafter = Knowing(right, wrong)
    answers, speculation = run(
        tiny_llama, device, [submit(n, p, 24) for n, p in enumerate(asked, 1)], drafter
    )
    assert {n: answer.tokens for n, answer in answers.items()} == right
    assert drafter.is_empty()
    assert speculation.drafted > 0
    if wrong == 0.0:
        assert speculation.accepted == speculation.drafted
    elif wrong == 1.0:
        assert speculation.accepted == 0
    else:
        assert 0 < speculation.accepted < speculation.drafted


def test_what_was_guessed_is_told_by_request(tiny_llama: Path, device: Device) -> None:
    """With the message that has the tokens, the last one of a request too."""
    asked = prompts(3, seed=15)
    right = {n: greedy(tiny_llama, prompt, 24) for n, prompt in enumerate(asked, 1)}
    unknown = submit(9, asked[0], 24)
    submits = [unknown, *(submit(n, p, 24) for n, p in enumerate(asked, 1))]
    speculation = Speculation(Knowing(right, 0.3), MOST, VOCABULARY)
    with engine(tiny_llama, device, row_tokens=1 + MOST) as it:
        mailbox = it.run(all_at_once(submits), speculation=speculation)
    told: dict[int, list[int]] = {}
    for output in mailbox.outputs:
        for guessed in output.guessed:
            updated = np.frombuffer(output.request, np.uint64).tolist()
            assert guessed.request in updated
            assert 0 <= guessed.accepted <= guessed.drafted > 0
            counts = told.setdefault(guessed.request, [0, 0])
            counts[0] += guessed.drafted
            counts[1] += guessed.accepted
    assert told.keys() == {1, 2, 3}
    drafted, accepted = np.array(list(told.values())).sum(0).tolist()
    assert (drafted, accepted) == (speculation.drafted, speculation.accepted)
    load = mailbox.outputs[-1].load
    assert (drafted, accepted) == (load.drafted_tokens, load.accepted_tokens)


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_sampled_answers_are_those_without_guesses(
    tiny_llama: Path, device: Device, temperature: float
) -> None:
    submits = [
        submit(n, prompt, 30, sampling=Sampling(temperature, 20, 0.95, 0.0, 77 + n))
        for n, prompt in enumerate(prompts(5, seed=4), 1)
    ]
    plain, _ = run(tiny_llama, device, submits)
    right = {n: answer.tokens for n, answer in plain.items()}
    answers, speculation = run(tiny_llama, device, submits, Knowing(right, 0.3))
    assert {n: answer.tokens for n, answer in answers.items()} == right
    assert speculation.accepted > 0


def test_right_guesses_take_fewer_steps(tiny_llama: Path, device: Device) -> None:
    prompt = prompts(1, seed=5)[0]
    right = {1: greedy(tiny_llama, prompt, 40)}
    for drafter, most in ((None, 45), (Knowing(right, 0.0), 15)):
        with engine(tiny_llama, device, row_tokens=1 + MOST) as it:
            speculation = Speculation(drafter, MOST, VOCABULARY)
            answers = it.run(all_at_once([submit(1, prompt, 40)]), speculation=speculation).answers
            assert it.scheduler.counters().steps <= most
            if drafter is not None:
                assert drafter.asked <= most, "once for each step"
        assert answers[1].tokens == right[1]


def test_an_answer_ends_at_its_stop_token_within_guesses(tiny_llama: Path, device: Device) -> None:
    prompt = prompts(1, seed=6)[0]
    whole = greedy(tiny_llama, prompt, 20)
    stop = whole[10]
    until = whole[: whole.index(stop) + 1]
    answers, _ = run(tiny_llama, device, [submit(1, prompt, 20, [stop])], Knowing({1: whole}, 0.0))
    assert answers[1].tokens == until
    assert answers[1].finish == Finish.STOP


ALWAYS = 1 << 30
BANNED = tuple(Bias(token, float("-inf"), 37) for token in range(0, 60, 2))
TOLD: list[dict[str, Any]] = [
    {"logprobs": 3},
    {"biases": (Bias(7, 3.0, ALWAYS), *BANNED), "logprobs": 0},
    {},
    {"logprobs": 20},
    {"biases": BANNED},
]
"""What requests ask of their logits."""


def telling(temperature: float) -> list[Submit]:
    """A request of each kind of TOLD, its prompt as long as the others'."""
    asked = [[*prompt[:3], *range(21)] for prompt in prompts(len(TOLD), seed=19)]
    return [
        submit(n, p, 30, sampling=Sampling(temperature, 30, 1.0, 0.0, n, **kind))
        for n, (p, kind) in enumerate(zip(asked, TOLD, strict=True))
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.9], ids=["greedy", "sampled"])
def test_log_probabilities_and_biases_are_those_without_guesses(
    tiny_llama: Path, request: pytest.FixtureRequest, temperature: float
) -> None:
    """Of every token that counts, and of no other; a bias holds up to its position, wherever that
    lies in a row of guesses."""
    submits = telling(temperature)
    for name in ("delaying", "replaying"):
        device = request.getfixturevalue(name)
        plain, _ = run(tiny_llama, device, submits)
        right = {n: answer.tokens for n, answer in plain.items()}
        assert not any(token % 2 == 0 and token < 60 for token in right[4][: 37 - 24])
        for wrong in (0.0, 0.3):
            answers, speculation = run(tiny_llama, device, submits, Knowing(right, wrong))
            assert {n: answer.tokens for n, answer in answers.items()} == right
            assert speculation.accepted > 60
            for n, answer in answers.items():
                check_equal(answer.logprobs, plain[n].logprobs)
                assert len(answer.logprobs) == (30 if "logprobs" in TOLD[n] else 0)


def check_equal(
    found: Sequence[TokenLogprobs], right: Sequence[TokenLogprobs], tolerance: float = 1e-4
) -> None:
    """Other sums in between: values may differ in their last bits."""
    for mine, theirs in zip(found, right, strict=True):
        assert mine.token == theirs.token
        assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]
        values = [value for _, value in theirs.top]
        assert [mine.logprob, *(value for _, value in mine.top)] == pytest.approx(
            [theirs.logprob, *values], abs=tolerance
        )


def held(number: int, prompt: list[int], length: int, thinking: Thinking | None = None) -> Submit:
    """A request of grammar 1."""
    bound = submit(number, prompt, length, [END], grammar=1)
    return msgspec.structs.replace(bound, thinking=thinking)


def follow(
    folder: Path, device: Device, grammar: NewGrammar, submits: Sequence[Submit], drafter: Any
) -> tuple[dict[int, Answer], Speculation]:
    speculation = Speculation(drafter, MOST, VOCABULARY)
    grammars = Grammars(GrammarLoader(lambda name: Library()))
    row_tokens = 1 + MOST if drafter else 1
    with engine(folder, device, row_tokens=row_tokens, kernels=ServingReferences()) as it:
        answers = it.run(first([grammar], submits), grammars, speculation).answers
        assert it.scheduler.ledger().balanced
    return answers, speculation


@pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["behind", "in_front"])
@pytest.mark.parametrize("wrong", [0.0, 0.3])
def test_a_grammar_beside_guesses(
    tiny_llama: Path, device: Device, order: tuple[int, int], wrong: float
) -> None:
    """Each token of a row has the mask behind those in front of it, wherever the guesses of others
    push it."""
    free_prompt, bound_prompt = prompts(2, seed=8)
    right = {
        1: greedy(tiny_llama, free_prompt, 24),
        2: greedy(tiny_llama, bound_prompt, 24, matcher(3).allowed),
    }
    submits = {1: submit(1, free_prompt, 24), 2: submit(2, bound_prompt, 24, grammar=1)}
    drafter = Knowing(right, wrong)
    asked = [submits[n] for n in order]
    answers, speculation = follow(tiny_llama, device, new(1, 3), asked, drafter)
    assert {n: answer.tokens for n, answer in answers.items()} == right
    assert speculation.accepted > (12 if wrong else 30)


def test_what_a_grammar_refuses_is_not_verified(tiny_llama: Path, device: Device) -> None:
    """A wrong guess is another token by one, which none of these grammars lets follow."""
    [prompt] = prompts(1, seed=8)
    right = {1: greedy(tiny_llama, prompt, 40, matcher(3).allowed)}
    answers, speculation = follow(
        tiny_llama, device, new(1, 3), [submit(1, prompt, 40, grammar=1)], Knowing(right, 0.4)
    )
    assert answers[1].tokens == right[1]
    assert speculation.drafted == speculation.accepted > 10


def test_an_answer_ends_with_its_grammar_within_guesses(tiny_llama: Path, device: Device) -> None:
    """What is guessed behind the end is dropped."""
    asked = prompts(4, seed=16)
    submits = [held(n, prompt, 30) for n, prompt in enumerate(asked, 1)]
    plain, _ = follow(tiny_llama, device, new(1, 5, ends_after=9), submits, None)
    right = {n: [*answer.tokens, 7, 7, 7] for n, answer in plain.items()}
    assert all(len(answer.tokens) == 10 for answer in plain.values())
    answers, speculation = follow(
        tiny_llama, device, new(1, 5, ends_after=9), submits, Knowing(right, 0.0)
    )
    assert {n: a.tokens for n, a in answers.items()} == {n: a.tokens for n, a in plain.items()}
    assert {answer.finish for answer in answers.values()} == {Finish.STOP}
    assert speculation.accepted > 0


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not_begun"])
def test_guesses_from_a_thought_into_an_answer(
    tiny_llama: Path, device: Device, begun: bool
) -> None:
    """The mask behind the end of a thought is the grammar's first."""
    asked, begin = prompts(8, seed=17), 5
    drawn = Sampling(2.0, -1, 1.0, 0.0, 3)
    plain: dict[int, Answer] = {}
    for end in range(30, 50):  # one that this model writes now and then
        thinking = Thinking(begin, end, begun, [END])
        submits = [
            msgspec.structs.replace(held(n, prompt, 24, thinking), sampling=drawn)
            for n, prompt in enumerate(asked, 1)
        ]
        plain, _ = follow(tiny_llama, device, new(1, 5, 6), submits, None)
        if sum(answer.finish == Finish.STOP for answer in plain.values()) > 2:
            break
    right = {n: answer.tokens for n, answer in plain.items()}
    for wrong in (0.0, 0.3):
        answers, speculation = follow(
            tiny_llama, device, new(1, 5, 6), submits, Knowing(right, wrong)
        )
        assert {n: answer.tokens for n, answer in answers.items()} == right
        assert speculation.accepted > 0


@pytest.mark.parametrize("fault", ["raises", "crashes", "ends in nothing", "refuses"])
def test_a_grammar_that_fails_behind_guesses(tiny_llama: Path, device: Device, fault: str) -> None:
    """It fails its request where it fails it without them, and nobody else's."""
    asked = prompts(2, seed=18)
    grammar = new(1, 5, fault=fault)
    submits = [submit(1, asked[0], 12, grammar=1), submit(2, asked[1], 12)]
    plain, _ = follow(tiny_llama, device, grammar, submits, None)
    right = {
        1: greedy(tiny_llama, asked[0], 12, matcher(5).allowed),
        2: greedy(tiny_llama, asked[1], 12),
    }
    answers, _ = follow(tiny_llama, device, grammar, submits, Knowing(right, 0.0))
    for n, answer in answers.items():
        told = (answer.tokens, answer.finish, answer.failure)
        assert told == (plain[n].tokens, plain[n].finish, plain[n].failure)
    assert answers[1].finish == Finish.FAILED


@pytest.mark.parametrize("pages", [24, 128], ids=["retracting", "roomy"])
def test_random_traffic_is_answered_as_without_guesses(
    tiny_llama: Path, device: Device, pages: int
) -> None:
    churn = Churn(seed=9, steps=120, longest=30)
    answered: dict[int, list[int]] = {}

    class Learning(Knowing):
        """Guesses what the oracle says, asked when the request begins."""

        def begin(self, request: int, prompt: NDArray[np.int32], *, namespace: int) -> None:
            super().begin(request, prompt, namespace=namespace)
            answered[request] = greedy(tiny_llama, prompt.tolist(), churn.asked[request][1])

    drafter = Learning(answered, 0.3)
    speculation = Speculation(drafter, MOST, VOCABULARY)
    options: dict[str, Any] = {"pages": pages, "row_tokens": 1 + MOST}
    with engine(tiny_llama, device, **options) as it:
        answers = it.run(churn.script, speculation=speculation).answers
        assert it.scheduler.ledger().balanced
        assert (it.scheduler.counters().retractions > 0) == (pages == 24)
    for request in churn.kept:
        assert answers[request].tokens == answered[request], request
    assert drafter.is_empty()
    assert speculation.accepted > 0


class Seldom(Knowing):
    """Guesses now and then: what it says when the engine looks need not be what comes of it."""

    def draft(
        self, request: NDArray[np.uint64], most: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        counts = super().draft(request, most, tokens)
        return counts if self._random.random() < 0.5 else np.zeros_like(counts)


def test_a_step_with_guesses_ends_before_the_next_is_planned(
    tiny_llama: Path, device: Device
) -> None:
    """Also where others expire meanwhile, and nobody has another guess then: what counts of the
    step is known only when it has ended."""
    prompt = prompts(1, seed=11)[0]
    right = {1: greedy(tiny_llama, prompt, 100)}
    begin = now_ms()
    submits = [submit(1, prompt, 100)]
    submits += [
        msgspec.structs.replace(submit(n, prompt[:3], 200), deadline_ms=begin + 3 * n)
        for n in range(2, 150)
    ]
    speculation = Speculation(Seldom(right, 0.2), MOST, VOCABULARY)
    with engine(tiny_llama, device, row_tokens=1 + MOST, max_seqs=2) as it:
        answers = it.run(all_at_once(submits), speculation=speculation).answers
    assert answers[1].tokens == right[1]
    assert speculation.drafted > 0


def test_guesses_with_a_host_tier_and_a_small_pool(tiny_llama: Path, device: Device) -> None:
    """Rows wait for pages that transfers hold, steps after their guesses were verified."""
    asked = prompts(8, seed=12)
    right = {n: greedy(tiny_llama, prompt, 40) for n, prompt in enumerate(asked, 1)}
    submits = [submit(n, prompt, 40) for n, prompt in enumerate(asked, 1)]
    for wrong in (0.0, 0.5):
        drafter = Knowing(right, wrong)
        answers, speculation = run(
            tiny_llama, device, submits, drafter, pages=40, host_pages=200, max_seqs=6
        )
        assert {n: answer.tokens for n, answer in answers.items()} == right
        assert speculation.accepted > 0


class Raising(Knowing):
    """Breaks in one of its calls."""

    def __init__(self, answers: Mapping[int, Sequence[int]], where: str) -> None:
        super().__init__(answers, 0.0)
        self._where = where

    def advance(self, *arrays: Any) -> None:
        super().advance(*arrays)
        if self._where == "advance" and self.asked > 2:
            raise RuntimeError("advance broke")

    def draft(self, *arrays: Any) -> NDArray[np.int32]:
        counts = super().draft(*arrays)
        if self._where == "draft" and self.asked > 3:
            raise RuntimeError("draft broke")
        return counts - 99 if self._where == "counts" and self.asked > 3 else counts


@pytest.mark.parametrize("where", ["advance", "draft", "counts"])
def test_a_drafter_that_breaks_ends_no_request(
    tiny_llama: Path, device: Device, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = prompts(3, seed=13)
    right = {n: greedy(tiny_llama, prompt, 24) for n, prompt in enumerate(asked, 1)}
    answers, _ = run(
        tiny_llama,
        device,
        [submit(n, p, 24) for n, p in enumerate(asked, 1)],
        Raising(right, where),
    )
    assert {n: answer.tokens for n, answer in answers.items()} == right
    assert ("the drafter" in caplog.text) == (where != "counts")


def test_an_abort_with_guesses_in_flight_is_no_wrong_guess() -> None:
    guesses = Guesses(given=3)
    guesses.settle(0)
    assert (guesses.drafted, guesses.accepted, guesses.given) == (0, 0, 0)


def test_what_does_not_pay_is_left_alone_for_a_while() -> None:
    guesses = Guesses()
    seen = []
    while not guesses.rest:
        guesses.given = guesses.wanted(MOST)
        seen.append(guesses.given)
        guesses.settle(1)
    assert seen == sorted(seen, reverse=True)
    assert guesses.wanted(MOST) == 0
    guesses.settle(REST)
    assert guesses.wanted(MOST) > 0
    assert guesses.share == WORTH


def test_guesses_grow_with_their_share() -> None:
    guesses = Guesses(share=0.5)
    before = guesses.wanted(100)
    for _ in range(20):
        guesses.given = guesses.wanted(100)
        guesses.settle(guesses.given + 1)
    assert guesses.wanted(100) > 2 * before
    assert guesses.drafted == guesses.accepted
