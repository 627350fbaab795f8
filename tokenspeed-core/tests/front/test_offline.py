# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The offline API and "ts generate", with the fake engine in the engine's place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer
from tokenspeed import LLM, SamplingParams
from tokenspeed.cli.generate import generate
from tokenspeed.front.errors import EngineGone, FailedInEngine, InvalidRequest
from tokenspeed.messages import Submit

from .conftest import EOS
from .fake_engine import FakeEngine


class FakeChild:
    """Stands for the engine process."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.said: str | None = None

    def failure(self) -> str | None:
        return self.said

    def __enter__(self) -> FakeChild:
        return self

    def __exit__(self, *exception: object) -> None:
        self.engine.die()


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[FakeChild]:
    """The engines that were started."""
    started: list[FakeChild] = []

    def start(plan: Any) -> FakeChild:
        child = FakeChild(FakeEngine(plan.ipc))
        child.engine.start()
        started.append(child)
        return child

    monkeypatch.setattr(
        "tokenspeed.process.launch.plan_launch",
        lambda engine, front, ipc: SimpleNamespace(engine=engine, front=front, ipc=ipc),
    )
    monkeypatch.setattr("tokenspeed.process.launch.start_engine", start)
    return started


@pytest.fixture
def llm(children: list[FakeChild], model_folder: Path) -> Iterator[LLM]:
    with LLM(str(model_folder), max_model_len=128) as running:
        yield running


@pytest.fixture
def engine(llm: LLM, children: list[FakeChild]) -> FakeEngine:
    return children[0].engine


def say(tokenizer: Tokenizer, text: str) -> Callable[[Submit], Iterator[list[int]]]:
    return lambda submit: iter([[token] for token in [*tokenizer.encode(text).ids, EOS]])


def test_generate(llm: LLM, engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.script = say(tokenizer, "wörld 🙂")
    [one] = llm.generate("hello ")
    assert one.text == "wörld 🙂"
    assert one.token_ids == tokenizer.encode("wörld 🙂").ids
    assert (one.finish_reason, one.prompt_tokens, one.cached_tokens) == ("stop", 2, 3)
    assert one.completion_tokens == len(one.token_ids) + 1


@pytest.mark.parametrize("prompts", ["hello", ["hello", "ab"], [[5, 6], [7]], [5, 6], []])
def test_shapes_of_prompts(llm: LLM, prompts: Any) -> None:
    count = 1 if prompts in ("hello", [5, 6]) else len(prompts)
    answers = llm.generate(prompts, SamplingParams(max_tokens=2, n=2))
    assert [(a.prompt_index, a.index) for a in answers] == [
        (p, i) for p in range(count) for i in range(2)
    ]


def test_more_prompts_than_slots(llm: LLM) -> None:
    answers = llm.generate([[i] for i in range(5, 105)], SamplingParams(max_tokens=3))
    assert [a.token_ids[0] for a in answers] == list(range(6, 106))


def test_parameters_for_each_prompt(llm: LLM) -> None:
    answers = llm.generate(["a", "b"], [SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)])
    assert [a.completion_tokens for a in answers] == [1, 2]
    with pytest.raises(InvalidRequest, match="sampling"):
        llm.generate(["a", "b"], [SamplingParams()])


def test_bad_prompt_is_named_and_nothing_runs(llm: LLM, engine: FakeEngine) -> None:
    with pytest.raises(InvalidRequest, match="prompt token 0 is -1") as error:
        llm.generate([[5], [-1]])
    assert error.value.__notes__ == ["in prompt 1"]
    assert engine.submits == []


def test_stream_and_leaving_it(llm: LLM, engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.script = say(tokenizer, "hello fox")
    assert "".join(o.text for o in llm.stream("a", SamplingParams(stop="fox"))) == "hello "
    engine.step_s = 0.01
    engine.script = lambda submit: iter(lambda: [10], None)
    pieces = llm.stream("a")
    next(pieces)
    pieces.close()
    deadline = time.monotonic() + 1
    while engine.running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine.running == 0


def test_chat(llm: LLM, engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.script = say(tokenizer, "hello")
    [answer] = llm.chat([{"role": "user", "content": "ab"}])
    assert answer.text == "hello"
    ids = llm.chat_prompt([{"role": "user", "content": "ab"}])
    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert text == "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n"


def test_failures_are_raised(llm: LLM, engine: FakeEngine) -> None:
    engine.fail = "NaN"
    with pytest.raises(FailedInEngine, match="NaN"):
        llm.generate(["a", "b"])
    engine.fail = None
    engine.frozen = True
    engine.die()
    with pytest.raises(EngineGone):
        llm.generate("a")


def test_engine_that_does_not_start(
    children: list[FakeChild], model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(plan: Any) -> FakeChild:
        child = FakeChild(FakeEngine(plan.ipc, hold=True))
        child.engine.start()
        child.said = "no memory for 3 GB of weights"
        return child

    monkeypatch.setattr("tokenspeed.process.launch.start_engine", start)
    with pytest.raises(RuntimeError, match="no memory for 3 GB"):
        LLM(str(model_folder))


def test_unknown_option(model_folder: Path) -> None:
    with pytest.raises(TypeError, match="tensor_parallel"):
        LLM(str(model_folder), tensor_parallel=2)


def test_generate_command(
    children: list[FakeChild],
    model_folder: Path,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FakeEngine, "__init__", _answering(tokenizer, "hello 🙂"))
    run = CliRunner().invoke
    result = run(generate, [str(model_folder), "a prompt"])
    assert (result.exit_code, result.stdout) == (0, "hello 🙂\n")
    result = run(generate, [str(model_folder), "--chat"], input="from stdin")
    assert (result.exit_code, result.stdout) == (0, "hello 🙂\n")
    result = run(generate, [str(model_folder), "a", "--top-p", "2"])
    assert result.exit_code == 1
    assert "top_p is 2.0, but must be above 0 and at most 1" in result.stderr
    assert not any(child.engine.is_alive() for child in children)


def _answering(tokenizer: Tokenizer, text: str) -> Callable[..., None]:
    original = FakeEngine.__init__

    def init(self: FakeEngine, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        self.script = say(tokenizer, text)

    return init
