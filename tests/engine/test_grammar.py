# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Grammars in the loop: every answer follows its own, whatever happens to its request.

The grammar of these tests lets a token follow n others if it is n more than another multiple of a
stride, so that a mask which is a token late, or of another row, is found out at once.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from harness import Answer, all_at_once, engine, greedy, submit
from test_loop import prompts
from tokenspeed._scheduler import Finish
from tokenspeed.engine.grammar import NO_TOKEN, GrammarLoader, Grammars, Loading
from tokenspeed.messages import EngineInput, NewGrammar, Sampling, Submit, Thinking
from tokenspeed_sdk.contracts.grammar import GrammarError
from tokenspeed_sdk.contracts.kernel import Binding, CallSite
from tokenspeed_sdk.contracts.platform import Device
from tokenspeed_sdk.ops import ReferenceResolver

VOCABULARY = 97
END = 0


class Strides:
    """One sequence. The data of its grammar says (stride, tokens before an end, a fault)."""

    def __init__(self, stride: int, ends_after: int, fault: str) -> None:
        self.stride, self.ends_after, self.fault = stride, ends_after, fault
        self.came: list[int] = []

    def allowed(self, came: Sequence[int]) -> list[int]:
        n = len(came)
        if n >= self.ends_after:
            return [END]
        return [t for t in range(1, VOCABULARY) if t % self.stride == n % self.stride]

    def fill(self, mask: np.ndarray) -> None:
        if self.fault == "raises" and len(self.came) == 3:
            raise GrammarError("too hard")
        if self.fault == "crashes" and len(self.came) == 3:
            raise ZeroDivisionError
        mask[:] = 0
        if self.fault == "ends in nothing" and len(self.came) == 3:
            return
        for token in self.allowed(self.came):
            mask[token // 32] |= np.array(1 << token % 32, np.uint32).view(np.int32)

    def accept(self, token: int) -> bool:
        if token not in self.allowed(self.came) or (self.fault == "refuses" and self.came):
            return False
        self.came.append(token)
        return True

    def rollback(self, tokens: int) -> None:
        del self.came[len(self.came) - tokens :]


class Library:
    """Attributes:
    go: loading waits for it.
    """

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()

    def load(self, compiled: bytes) -> Any:
        assert self.go.wait(10)
        if compiled == b"broken":
            raise GrammarError("it is broken")
        stride, ends_after, fault = compiled.decode().split(",")
        return type("Compiled", (), {"matcher": lambda _: matcher(stride, ends_after, fault)})()


def matcher(stride: Any, ends_after: Any = 10**6, fault: str = "") -> Strides:
    return Strides(int(stride), int(ends_after), fault)


def new(number: int, stride: int, ends_after: int = 10**6, fault: str = "") -> NewGrammar:
    return NewGrammar(number, "strides", f"{stride},{ends_after},{fault}".encode())


class ServingReferences(ReferenceResolver):
    """References, but that the embedding takes the id of a row that failed, as kernels do."""

    def bind(self, site: CallSite) -> Binding:
        bound = super().bind(site)
        if site.op != "embedding@1":
            return bound
        return replace(bound, call=lambda ids, weight: bound.call(ids.clamp_min(0), weight))


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def grammars(library: Library) -> Grammars:
    return Grammars(GrammarLoader(lambda name: library))


def first(
    news: Sequence[NewGrammar], submits: Sequence[Submit]
) -> Callable[[int, dict[int, Answer]], EngineInput | None]:
    """A script that sends everything with the first step, and waits for all answers."""

    def script(step: int, answers: dict[int, Answer]) -> EngineInput | None:
        if step == 0:
            return EngineInput(new_grammars=list(news), submits=list(submits))
        over = [a for a in answers.values() if a.finish != Finish.NONE or a.failure]
        return None if len(over) == len(submits) else EngineInput()

    return script


@pytest.mark.parametrize("max_step_tokens", [9, 64], ids=["chunked", "whole"])
@pytest.mark.parametrize("device", ["cpu", "delaying", "replaying"])
def test_answers_equal_masked_transformers(
    tiny_llama: Path,
    request: pytest.FixtureRequest,
    grammars: Grammars,
    device: str,
    max_step_tokens: int,
) -> None:
    """Beside rows without a grammar, whose answers are those of nobody's mask."""
    chosen: Device = request.getfixturevalue(device)
    asked = prompts(6)
    strides = {1: 5, 2: 7}
    held = [1, 0, 2, 1, 0, 2]
    submits = [submit(i, p, 12, grammar=held[i]) for i, p in enumerate(asked)]
    with engine(tiny_llama, chosen, max_step_tokens=max_step_tokens) as built:
        news = [new(number, stride) for number, stride in strides.items()]
        mailbox = built.run(first(news, submits), grammars)
    for i, prompt in enumerate(asked):
        allowed = matcher(strides[held[i]]).allowed if held[i] else None
        assert mailbox.answers[i].tokens == greedy(tiny_llama, prompt, 12, allowed)
        assert mailbox.answers[i].finish == Finish.LENGTH
        assert mailbox.answers[i].updates_after_finish == 0


def test_the_end_comes_where_the_grammar_ends(
    tiny_llama: Path, delaying: Device, grammars: Grammars
) -> None:
    news = [new(1, 5, ends_after=1), new(2, 5, ends_after=4), new(3, 5, ends_after=9)]
    submits = [
        submit(i, p, 30, [END], grammar=1 + i % 3) for i, p in enumerate(prompts(9, longest=30))
    ]
    with engine(tiny_llama, delaying) as built:
        mailbox = built.run(first(news, submits), grammars)
    for i in range(9):
        answer = mailbox.answers[i]
        assert (answer.finish, len(answer.tokens)) == (Finish.STOP, 1 + (1, 4, 9)[i % 3])
        assert answer.tokens[-1] == END
        assert END not in answer.tokens[:-1]


@pytest.mark.parametrize("seed", range(3))
def test_answers_follow_their_grammars_through_retraction_and_aborts(
    tiny_llama: Path, delaying: Device, grammars: Grammars, seed: int
) -> None:
    """Sampled, with pages for a third of the requests; some leave, some share a prompt."""
    luck = random.Random(seed)
    asked = prompts(12, seed=seed, longest=30)
    strides = {1: 5, 2: 7, 3: 11}
    held = [luck.choice([0, 1, 2, 3]) for _ in asked]
    submits = [
        submit(i, asked[i - i % 2], 24, [END], Sampling(1.0, -1, 1.0, 0.0, i), held[i])
        for i in range(12)
    ]
    leave = {luck.randrange(12): luck.randrange(5, 30) for _ in range(3)}

    def script(step: int, answers: dict[int, Answer]) -> EngineInput | None:
        if step == 0:
            news = [new(number, stride, 20) for number, stride in strides.items()]
            return EngineInput(new_grammars=news, submits=submits)
        over = sum(a.finish != Finish.NONE for a in answers.values())
        aborts = [request for request, at in leave.items() if at == step]
        return None if over == 12 else EngineInput(aborts=aborts)

    with engine(tiny_llama, delaying, pages=24, page_size=4) as built:
        mailbox = built.run(script, grammars)
    assert mailbox.outputs[-1].load.retractions > 0
    for i, answer in mailbox.answers.items():
        if not held[i]:
            continue
        follow = matcher(strides[held[i]], 20)
        assert all(follow.accept(token) for token in answer.tokens), (i, answer.tokens)
        if i not in leave:
            assert (answer.finish, len(answer.tokens)) == (Finish.STOP, 21)
    assert not grammars._sequences


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
def test_a_grammar_begins_when_the_model_has_thought(
    tiny_llama: Path, delaying: Device, grammars: Grammars, begun: bool
) -> None:
    """A thought is free but for the end of the answer; whether there is one, the model says."""
    asked = prompts(8, seed=1)
    for begin, end in ((5, 11), (30, 41)):  # the grammar itself lets the first token begin with 5
        thinking = Thinking(begin, end, begun, [END])
        submits = [
            msgspec.structs.replace(
                submit(i, p, 24, [END], Sampling(2.0, -1, 1.0, 0.0, i), grammar=1),
                thinking=thinking,
            )
            for i, p in enumerate(asked)
        ]
        with engine(tiny_llama, delaying) as built:
            mailbox = built.run(first([new(1, 5, 6)], submits), grammars)
        thought = 0
        for answer in mailbox.answers.values():
            tokens = answer.tokens
            if begun or tokens[0] == begin:
                over = tokens.index(end) + 1 if end in tokens else len(tokens)
                assert END not in tokens[:over]
                thought += over < len(tokens)
                tokens = tokens[over:]
            follow = matcher(5, 6)
            assert all(follow.accept(token) for token in tokens)
            assert answer.finish == (Finish.STOP if tokens[-1:] == [END] else Finish.LENGTH)
        assert thought or not begun


@pytest.mark.parametrize(
    ("fault", "reason", "tokens"),
    [
        ("raises", "its grammar fails: too hard", 3),
        ("crashes", "its grammar fails: ZeroDivisionError: ", 3),
        ("ends in nothing", NO_TOKEN, 3),
        ("refuses", r"its grammar does not let token \d+ follow", 2),
    ],
)
def test_a_grammar_that_fails_ends_its_request_alone(
    tiny_llama: Path, delaying: Device, grammars: Grammars, fault: str, reason: str, tokens: int
) -> None:
    [one, two, three] = prompts(3)
    submits = [submit(1, one, 12, grammar=1), submit(2, two, 12, grammar=2), submit(3, three, 12)]
    with engine(tiny_llama, delaying, kernels=ServingReferences()) as built:
        mailbox = built.run(first([new(1, 5), new(2, 5, fault=fault)], submits), grammars)
        assert built.scheduler.ledger().active == 0, "its pages are free"
    failed = mailbox.answers[2]
    assert (failed.finish, len(failed.tokens)) == (Finish.FAILED, tokens)
    assert failed.failure is not None
    assert re.fullmatch(reason, failed.failure)
    assert mailbox.answers[1].tokens == greedy(tiny_llama, one, 12, matcher(5).allowed)
    assert mailbox.answers[3].tokens == greedy(tiny_llama, three, 12)


def test_nobody_waits_for_a_grammar_but_who_has_it(
    tiny_llama: Path, delaying: Device, grammars: Grammars, library: Library
) -> None:
    """It is loaded on another thread; meanwhile other requests run, and an abort is taken."""
    [one, two, three, four] = prompts(4)
    library.go.clear()

    def script(step: int, answers: dict[int, Answer]) -> EngineInput | None:
        if step == 0:
            submits = [submit(i, p, 8, grammar=1) for i, p in ((1, one), (3, three))]
            submits += [submit(2, two, 8), submit(4, four, 8, grammar=9)]
            return EngineInput(new_grammars=[new(1, 5)], submits=submits, old_grammars=[1])
        over = {i for i, a in answers.items() if a.finish != Finish.NONE or a.failure}
        if over == {2, 4} and not library.go.is_set():
            library.go.set()
            return EngineInput(aborts=[3])
        if not over:
            time.sleep(0.001)
        return None if over == {1, 2, 4} else EngineInput()

    with engine(tiny_llama, delaying) as built:
        mailbox = built.run(script, grammars)
    assert mailbox.answers[1].tokens == greedy(tiny_llama, one, 8, matcher(5).allowed)
    assert mailbox.answers[2].tokens == greedy(tiny_llama, two, 8)
    assert 3 not in mailbox.answers
    assert mailbox.answers[4].failure == "its grammar cannot be loaded: the engine does not have it"
    assert not grammars.waits


def test_a_submit_is_given_back_once_whenever_its_grammar_is_made() -> None:
    """Another thread makes it, at any moment between two looks at it."""

    class Sudden(Loading):
        """Is made when it is looked at for the nth time."""

        def __init__(self, looks: int) -> None:
            self.looks = looks

        @property
        def made(self) -> Any:
            self.looks -= 1
            return None if self.looks > 0 else "made"

        @made.setter
        def made(self, value: Any) -> None: ...

    class Loader(GrammarLoader):
        def load(self, new: NewGrammar) -> Loading:
            return Sudden(new.number)

    grammars = Grammars(Loader(lambda name: pytest.fail("it is not asked")))
    for looks in (1, 2, 3):
        grammars.hold(new(looks, 5))
        grammars.wait_for(submit(looks, [1], 1, grammar=looks))
    given = [submit.request for _ in range(5) for submit, _ in grammars.take_ready()]
    assert sorted(given) == [1, 2, 3]
    assert not grammars.waits


def test_a_grammar_that_does_not_load_fails_who_has_it(
    tiny_llama: Path, delaying: Device, grammars: Grammars
) -> None:
    [one, two] = prompts(2)
    submits = [submit(1, one, 4, grammar=1), submit(2, two, 4)]
    broken = NewGrammar(1, "strides", b"broken")
    with engine(tiny_llama, delaying) as built:
        mailbox = built.run(first([broken], submits), grammars)
    reason = "its grammar cannot be loaded: GrammarError: it is broken"
    assert mailbox.answers[1].failure == reason
    assert mailbox.answers[2].tokens == greedy(tiny_llama, two, 4)


def test_without_backends_a_grammar_is_refused(tiny_llama: Path, delaying: Device) -> None:
    [one] = prompts(1)
    with engine(tiny_llama, delaying) as built:
        mailbox = built.run(first([new(1, 5)], [submit(1, one, 4, grammar=1)]))
    assert mailbox.answers[1].failure is not None
    assert "there is no grammar backend 'strides' here" in mailbox.answers[1].failure


def test_without_a_grammar_a_step_is_launched_whole(tiny_llama: Path, delaying: Device) -> None:
    """No step is cut in two, and no mask is sent, where no row has a grammar."""
    with engine(tiny_llama, delaying) as built:
        parts: list[bool] = []
        dispatch = built.executor.dispatch

        def spy(*args: Any, masked: bool) -> Any:
            parts.append(masked)
            return dispatch(*args, masked=masked)

        built.executor.dispatch = spy  # type: ignore[method-assign]
        built.run(all_at_once([submit(i, p, 5) for i, p in enumerate(prompts(3))]))
    assert parts
    assert not any(parts)
