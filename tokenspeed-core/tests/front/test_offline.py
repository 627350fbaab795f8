# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The offline API and "ts generate", with the fake engine in the engine's place."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer
from tokenspeed import LLM, SamplingParams
from tokenspeed.cli.generate import generate
from tokenspeed.config import ConfigError
from tokenspeed.front.errors import EngineGone, FailedInEngine, InvalidRequest
from tokenspeed.messages import Submit
from tokenspeed.plugins.plan import PluginPlan

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
        lambda engine, front, ipc: SimpleNamespace(
            engine=engine, front=front, ipc=ipc, plugins=PluginPlan.make("fake", ())
        ),
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"load": "zzz"}, 'load \'zzz\' is not allowed: it must be "auto" or "dummy"'),
        ({"page_size": 0}, "page_size 0 is not allowed: it must be an integer from 1 to 4096"),
        ({"page_size": 4097}, "page_size 4097 is not allowed"),
        ({"kv_pages": -3}, "kv_pages -3 is not allowed: it must be an integer from 1"),
        ({"kv_pages": "3"}, "kv_pages '3' is not allowed.*, or None"),
        ({"max_model_len": 1}, "max_model_len 1 is not allowed: it must be an integer from 2"),
        ({"prefill_share": float("nan")}, "prefill_share nan is not allowed"),
        ({"graphs": "no"}, "graphs 'no' is not allowed: it must be True or False"),
        ({"pins": {"rope@1": 3}}, "pins .* it must be a dict from op to kernel name"),
        ({"max_num_seqs": 600}, "max_num_seqs 600 is more than max_step_tokens 512"),
    ],
)
def test_options_out_of_range(model_folder: Path, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(str(model_folder), **options)


def test_home_folder(
    children: list[FakeChild], model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(model_folder.parent))
    with LLM(Path("~", model_folder.name)) as llm:
        assert llm.generate("a", SamplingParams(max_tokens=1))


@pytest.mark.filterwarnings("error")
def test_after_close(llm: LLM, engine: FakeEngine) -> None:
    engine.step_s = 0.01
    engine.script = lambda submit: iter(lambda: [10], None)
    open_, unstarted = llm.stream("a"), llm.stream("a")
    next(open_)
    llm.close()
    for call in (lambda: llm.generate("a"), lambda: llm.stream("a"), lambda: next(unstarted)):
        with pytest.raises(RuntimeError, match="this LLM is closed"):
            call()
    with pytest.raises((EngineGone, CancelledError)):
        list(open_)


@pytest.mark.parametrize("sampling", [None, "x", [None], {}, [SamplingParams(), "x"]])
def test_what_is_no_sampling(llm: LLM, sampling: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"sampling is .*, but must be SamplingParams"):
        llm.generate(["hello", "ab"], sampling)


@pytest.mark.parametrize("field", ["stop", "stop_token_ids"])
def test_arrays_are_no_lists(llm: LLM, field: str) -> None:
    for array in (np.array([1, 2]), np.array(3)):
        with pytest.raises(InvalidRequest, match=rf"{field} is .*, but must be a"):
            llm.generate("hello", SamplingParams(**{field: array}))


@pytest.mark.parametrize("prompts", [None, 5, np.array(5), [5, "a", 7], [None], ["a", 7], "\udcff"])
def test_what_is_no_prompt(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidRequest, match="prompt"):
        llm.generate(prompts)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", "{bad"),
        ("config.json", "{}"),
        ("config.json", '{"architectures": []}'),
        ("tokenizer.json", "{}"),
        ("generation_config.json", "[]"),
        ("tokenizer_config.json", "\udcff"),
    ],
)
def test_broken_file_is_named(model_folder: Path, tmp_path: Path, name: str, text: str) -> None:
    folder = shutil.copytree(model_folder, tmp_path / "model")
    (folder / name).write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(ValueError, match=str(folder / name)):
        LLM(folder)
    result = CliRunner().invoke(generate, [str(folder), "a"])
    assert result.exit_code == 1
    assert str(folder / name) in result.output


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


@pytest.mark.parametrize(("prompt", "stdin"), [(["\udcff"], None), ([], b"\xff")])
def test_generate_from_what_is_no_text(model_folder: Path, prompt: Any, stdin: Any) -> None:
    result = CliRunner().invoke(generate, [str(model_folder), *prompt], input=stdin)
    assert result.exit_code == 2
    assert "the prompt is not UTF-8 text" in result.output


def test_generate_names_options(model_folder: Path) -> None:
    result = CliRunner().invoke(generate, [str(model_folder), "a", "--max-num-seqs", "600"])
    assert result.exit_code == 2
    assert "--max-num-seqs 600 is more than --max-step-tokens 512" in " ".join(
        result.output.split()
    )


def test_generate_into_a_closed_pipe(
    children: list[FakeChild], model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(text: str = "", **options: Any) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("tokenspeed.cli.generate.click.echo", gone)
    result = CliRunner().invoke(generate, [str(model_folder), "a"])
    assert (result.exit_code, result.output) == (1, "")


def _answering(tokenizer: Tokenizer, text: str) -> Callable[..., None]:
    original = FakeEngine.__init__

    def init(self: FakeEngine, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        self.script = say(tokenizer, text)

    return init


@pytest.mark.parametrize("length", [1, 2, 4, 5, 12])
def test_prompt_logprobs(llm: LLM, engine: FakeEngine, length: int) -> None:
    """Of every token but the first, once, however the engine tells them."""
    prompt = list(range(40, 40 + length))
    params = SamplingParams(prompt_logprobs=2, max_tokens=3, n=2)
    for answer in llm.generate([prompt], params):
        assert answer.prompt_logprobs is not None
        first, *others = answer.prompt_logprobs
        assert first is None
        assert [each.token for each in others if each] == prompt[1:]
        assert [each.logprob for each in others if each] == [-t / 8 for t in prompt[1:]]
        assert [each.top for each in others if each] == [[(0, 0.0), (1, -0.125)]] * (length - 1)
        assert answer.logprobs is None
        assert len(answer.token_ids) == 3
    assert llm.generate([prompt], SamplingParams(max_tokens=1))[0].prompt_logprobs is None


def test_a_stream_tells_nothing_of_the_prompt(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="prompt_logprobs is 0, but must be None in a stream"):
        llm.stream([5], SamplingParams(prompt_logprobs=0))


def test_logprobs_of_answers(llm: LLM, engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.script = say(tokenizer, "hello")
    [answer] = llm.generate([[5]], SamplingParams(logprobs=True, top_logprobs=1))
    assert answer.logprobs is not None
    assert [each.token for each in answer.logprobs] == answer.token_ids
    assert [each.top for each in answer.logprobs] == [[(0, -1.0)]] * len(answer.token_ids)
    pieces = list(llm.stream([5], SamplingParams(logprobs=True)))
    assert [e.token for p in pieces for e in p.logprobs] == answer.token_ids
