# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A drafter with a model guesses what its formula says, whatever happens to a request meanwhile:
chunks, pages that were found, wrong guesses, retraction, the host tier."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import eagle
import msgspec
import numpy as np
import pytest
import torch
from churn import Churn
from harness import CONTEXT, Answer, Engine, all_at_once, engine, greedy, submit
from test_grammar import Library, first, matcher, new
from test_settings import PAGE_BYTES, ReadyMailbox, built
from test_speculation import prompts
from tokenspeed.engine.draft_model import DraftFolder
from tokenspeed.engine.drafters import GuessedInStep
from tokenspeed.engine.executor import InFlight
from tokenspeed.engine.grammar import GrammarLoader, Grammars
from tokenspeed.engine.graphs import StepKind
from tokenspeed.engine.speculation import Guesses, Speculation
from tokenspeed.messages import EngineInput, Sampling, Submit
from tokenspeed.plugins.errors import DrafterModelError
from tokenspeed_models.eagle3 import Eagle3, Eagle3Head
from tokenspeed_sdk.contracts.platform import GRAPH_CAPTURE, Device
from tokenspeed_sdk.modeling import ForwardBatch
from tokenspeed_sdk.ops import ReferenceResolver

MOST = 3
TEXTS, LENGTH = 6, 24
"""Of answers that the head has learnt."""

ROUNDING = 1e-3
"""Logits that are closer than this may swap with the order of sums."""


@dataclass(frozen=True)
class Taught:
    """A target, a head that learnt some of its answers, and the same head in plain torch."""

    target: Path
    head: Path
    formula: eagle.Formula
    asked: list[list[int]]
    right: dict[int, list[int]]


@pytest.fixture(scope="module", autouse=True)
def quiet_torch() -> Iterator[None]:
    """One thread: the machine is shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def teach(target: Path, folder: Path) -> Taught:
    """A head for ``target``, saved in ``folder``."""
    asked = prompts(TEXTS, seed=3)
    right = {n: greedy(target, prompt, LENGTH) for n, prompt in enumerate(asked, 1)}
    texts = [prompt + right[n] for n, prompt in enumerate(asked, 1)]
    longest = max(map(len, texts))
    padded = torch.tensor([text + text[-1:] * (longest - len(text)) for text in texts])
    formula = eagle.random_head(target, seed=1)
    eagle.train(formula, target, padded, steps=120, depth=MOST)
    return Taught(target, eagle.save_head(formula, folder), formula, asked, right)


@pytest.fixture(scope="module")
def taught(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Taught:
    return teach(tiny_llama, tmp_path_factory.mktemp("head"))


@pytest.fixture(autouse=True)
def checked_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What kernels plan with on the host is what the device has, at every guess."""
    step = Eagle3Head.step

    def checking(head: Eagle3Head, batch: ForwardBatch, features: torch.Tensor) -> Any:
        rows = batch.num_decode_rows
        if batch.host_kv_len is not None:  # else it is captured
            assert batch.host_query_start is not None
            assert batch.host_kv_len.tolist() == batch.kv_len.tolist()
            assert batch.host_query_start.tolist() == list(range(rows + 1))
        assert batch.query_start.tolist() == list(range(rows + 1))
        assert batch.kv_len.tolist() == (batch.positions + 1).tolist()
        assert batch.max_kv_len >= int(batch.kv_len.max())
        assert len(batch.token_ids) == len(batch.row_slot) == len(batch.token_slot) == rows
        return step(head, batch, features)

    monkeypatch.setattr(Eagle3Head, "step", checking)


@pytest.fixture(params=["launched", "captured"])
def device(request: pytest.FixtureRequest) -> Device:
    """One whose work ends at random times, and one that captures graphs."""
    name = {"launched": "delaying", "captured": "replaying"}[request.param]
    device: Device = request.getfixturevalue(name)
    return device


@dataclass
class Guessed:
    """The guesses of all steps: the text that was known, and what was guessed behind it.

    Attributes:
        replayed: steps with guesses that were captured.
    """

    found: list[tuple[list[int], list[int]]] = field(default_factory=list)
    replayed: int = 0

    def check(self, taught: Taught) -> None:
        """Each is what the formula says of its text. AssertionError shows the first that is not."""
        sure = 0
        for history, guess in self.found:
            read = eagle.states(taught.target, torch.tensor(history[:-1]))
            wanted, gap = taught.formula.guess(history, read, len(guess))
            sure += gap > ROUNDING
            assert guess == wanted or gap <= ROUNDING, (history, guess, wanted, gap)
        assert sure > 0.9 * len(self.found) > 0


@contextmanager
def watched(it: Engine) -> Iterator[Guessed]:
    """Notes the guesses of each step once it has ended."""
    guessed, known = Guessed(), {}
    dispatch, wait = it.executor.dispatch, it.executor.wait
    replay = it.executor._graphs.replay

    def dispatching(plan: Any, *args: Any, **options: Any) -> InFlight:
        step = dispatch(plan, *args, **options)
        if step.drafts:
            requests = step.buffers.host["row_request"][: plan.num_decode_rows].tolist()
            known[plan.step] = [np.array(it.scheduler.tokens(r)[0]).tolist() for r in requests]
        return step

    def waiting(step: InFlight) -> None:
        wait(step)
        starts = step.buffers.host["row_query_start"].tolist()
        tokens = step.buffers.host["token_ids"].tolist()
        for row, history in enumerate(known.pop(step.plan.step, ())):
            if guess := tokens[starts[row] + 1 : starts[row + 1]]:
                guessed.found.append((history, guess))

    def replaying(kind: StepKind, bucket: int) -> Any:
        guessed.replayed += kind.verifies
        return replay(kind, bucket)

    it.executor.dispatch, it.executor.wait = dispatching, waiting  # type: ignore[method-assign]
    it.executor._graphs.replay = replaying  # type: ignore[method-assign]
    yield guessed


def run(
    taught: Taught,
    device: Device,
    script: Callable[[int, dict[int, Answer]], EngineInput | None],
    *,
    most: int = MOST,
    **options: Any,
) -> tuple[dict[int, Answer], Speculation, Engine]:
    """With the head, every guess of which is checked; captured where the device can."""
    speculation = Speculation(GuessedInStep(), most, eagle.VOCAB, known=False)
    settings = {"row_tokens": 1 + most, "head": taught.head} | options
    captures = options.get("graphs", True) and GRAPH_CAPTURE in device.capabilities.features
    with engine(taught.target, device, **settings) as it, watched(it) as guessed:
        answers = it.run(script, speculation=speculation).answers
        assert it.scheduler.ledger().balanced
    guessed.check(taught)
    assert (guessed.replayed > 0) == captures
    return answers, speculation, it


def ask(taught: Taught, sampling: Sampling | None = None) -> list[Submit]:
    more: dict[str, Any] = {} if sampling is None else {"sampling": sampling}
    return [submit(n, prompt, LENGTH, **more) for n, prompt in enumerate(taught.asked, 1)]


def tokens_of(answers: dict[int, Answer]) -> dict[int, list[int]]:
    return {n: answer.tokens for n, answer in answers.items()}


def test_a_head_that_knows_the_answers_is_right(taught: Taught, device: Device) -> None:
    """Chance would be right once in a hundred times."""
    answers, speculation, it = run(taught, device, all_at_once(ask(taught)))
    assert tokens_of(answers) == taught.right
    assert speculation.accepted > 0.7 * speculation.drafted
    assert it.scheduler.counters().steps < 0.7 * TEXTS * LENGTH


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_sampled_answers_are_those_without_a_drafter(
    taught: Taught, device: Device, temperature: float
) -> None:
    submits = ask(taught, Sampling(temperature, 20, 0.95, 0.0, 77))
    with engine(taught.target, device) as plain:
        wanted = tokens_of(plain.run(all_at_once(submits)).answers)
    answers, speculation, _ = run(taught, device, all_at_once(submits))
    assert tokens_of(answers) == wanted
    assert speculation.drafted > 0


def test_prompts_in_chunks(taught: Taught, device: Device) -> None:
    """The first token of a chunk is paired with what the chunk before left in a page."""
    script = all_at_once(ask(taught))
    answers, speculation, it = run(taught, device, script, max_step_tokens=9, max_seqs=3)
    assert tokens_of(answers) == taught.right
    assert speculation.accepted > 0.5 * speculation.drafted
    assert it.scheduler.counters().steps > sum(map(len, taught.asked)) / 9


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_prompts_whose_pages_are_found(taught: Taught, device: Device, page_size: int) -> None:
    """Twice, the second time with another token somewhere: what is found was computed for one that
    went on otherwise."""
    prompt = max(taught.asked, key=len)
    turned = [_turned(prompt, at) for at in (33, 48)]
    submits = [submit(n, each, LENGTH) for n, each in enumerate((prompt, *turned, prompt), 1)]

    def script(step: int, answers: dict[int, Answer]) -> EngineInput | None:
        over = [n for n, answer in answers.items() if answer.finish]
        if len(over) == len(submits) or len(script_sent) > len(over):
            return None
        script_sent.append(len(over))
        return EngineInput(submits=[submits[len(over)]])

    script_sent: list[int] = []
    answers, _, _ = run(taught, device, script, page_size=page_size)
    for n, each in enumerate((prompt, *turned, prompt), 1):
        assert answers[n].tokens == greedy(taught.target, each, LENGTH), n
        assert (answers[n].cached_tokens > 0) == (n > 1)


@pytest.mark.parametrize("pages", [24, 128], ids=["retracting", "roomy"])
def test_random_traffic(taught: Taught, device: Device, pages: int) -> None:
    churn = Churn(seed=9, steps=80, longest=20)
    answers, speculation, it = run(taught, device, churn.script, pages=pages)
    for request in churn.kept:
        prompt, count = churn.asked[request][:2]
        assert answers[request].tokens == greedy(taught.target, prompt, count), request
    assert (it.scheduler.counters().retractions > 0) == (pages == 24)
    assert speculation.drafted > 0


def test_pages_that_come_back_from_the_host(taught: Taught, device: Device) -> None:
    submits = [submit(10 * turn + n, p, LENGTH) for turn in range(3) for n, p in _numbered(taught)]
    options = {"pages": 32, "host_pages": 200, "max_seqs": 3}
    answers, speculation, it = run(taught, device, all_at_once(submits), **options)
    for number, answer in answers.items():
        assert answer.tokens == taught.right[number % 10]
    assert it.scheduler.counters().host_cached_tokens > 0
    assert speculation.accepted > 0.7 * speculation.drafted


def test_up_to_the_end_of_the_context(
    taught: Taught, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last rows have room for fewer guesses than are asked for, beside others that have it."""
    monkeypatch.setattr(Guesses, "wanted", lambda self, most: most)
    prompt = [*taught.asked[0], *range(eagle.VOCAB), *range(eagle.VOCAB), *range(eagle.VOCAB)]
    long = [[(n + token) % eagle.VOCAB for token in prompt] for n in range(5)]
    lengths = [20 + room for room in (0, 1, 2, 3, 9)]
    texts = [text[: CONTEXT - length] for text, length in zip(long, lengths, strict=True)]
    submits = [submit(11 + n, *each) for n, each in enumerate(zip(texts, lengths, strict=True))]
    script = all_at_once([*ask(taught), *submits])
    options = {"max_seqs": 11, "max_step_tokens": 1500, "pages": 480}
    answers, speculation, _ = run(taught, device, script, most=7, **options)
    for n, (text, length) in enumerate(zip(texts, lengths, strict=True), 11):
        assert answers[n].tokens == greedy(taught.target, text, length), n
        assert len(text) + length == CONTEXT
    assert speculation.accepted > 0


def _turned(prompt: list[int], at: int) -> list[int]:
    """Another token at one place."""
    return [*prompt[:at], (prompt[at] + 1) % eagle.VOCAB, *prompt[at + 1 :]]


def _numbered(taught: Taught) -> Sequence[tuple[int, list[int]]]:
    return list(enumerate(taught.asked, 1))


def test_beside_requests_that_are_not_guessed_for(taught: Taught, device: Device) -> None:
    """They take part in every step, and what the head keeps of them is found by others."""
    penalized = Sampling(0.0, -1, 1.0, 0.0, 0, 1.7)
    plain = [submit(n, p, LENGTH) for n, p in _numbered(taught)]
    others = [submit(10 + n, p, LENGTH, sampling=penalized) for n, p in _numbered(taught)]
    mixed = [each for pair in zip(others, plain, strict=True) for each in pair]
    with engine(taught.target, device) as alone:
        wanted = tokens_of(alone.run(all_at_once(mixed)).answers)
    answers, speculation, _ = run(taught, device, all_at_once(mixed), max_seqs=4)
    assert tokens_of(answers) == wanted
    assert speculation.accepted > 0.5 * speculation.drafted


def test_beside_requests_with_a_grammar(taught: Taught, device: Device) -> None:
    """Their masks stand behind guesses that nobody knows yet: they go without."""
    stride, prompt = 3, taught.asked[0]
    allowed = matcher(stride).allowed
    bound = greedy(taught.target, prompt, 12, allowed)
    submits = [*ask(taught), submit(9, prompt, 12, grammar=1)]
    grammars = Grammars(GrammarLoader(lambda name: Library()))
    speculation = Speculation(GuessedInStep(), MOST, eagle.VOCAB, known=False)
    settings: dict[str, Any] = {"row_tokens": 1 + MOST, "head": taught.head}
    with engine(taught.target, device, **settings) as it, watched(it) as guessed:
        answers = it.run(first([new(1, stride)], submits), grammars, speculation).answers
    guessed.check(taught)
    assert tokens_of(answers) == taught.right | {9: bound}
    assert speculation.accepted > 0.5 * speculation.drafted


def test_penalties_count_guesses_that_nobody_knew(taught: Taught, device: Device) -> None:
    """They are found within the step, and so is what stands behind each."""
    kind = Sampling(0.0, -1, 1.0, 0.0, 0, 0.9, 0.4, -0.3)
    submits = ask(taught, kind)
    with engine(taught.target, device) as alone:
        wanted = tokens_of(alone.run(all_at_once(submits)).answers)
    assert wanted != taught.right
    settings: dict[str, Any] = {"row_tokens": 1 + MOST, "head": taught.head}
    speculation = Speculation(GuessedInStep(), MOST, eagle.VOCAB, known=False, penalties=True)
    with engine(taught.target, device, kernels=ReferenceResolver(fuse=True), **settings) as it:
        answers = it.run(all_at_once(submits), speculation=speculation).answers
    assert tokens_of(answers) == wanted
    assert speculation.accepted > 0.2 * speculation.drafted > 0


def test_tenants_do_not_share_what_the_head_knows(taught: Taught, device: Device) -> None:
    prompt = max(taught.asked, key=len)
    submits = [submit(n, prompt, LENGTH) for n in (1, 2)]
    submits = [msgspec.structs.replace(each, namespace=each.request) for each in submits]
    answers, _, _ = run(taught, device, all_at_once(submits), max_seqs=1)
    assert answers[1].tokens == answers[2].tokens == greedy(taught.target, prompt, LENGTH)
    assert answers[2].cached_tokens == 0


@pytest.mark.parametrize(
    "formats", [{"quantization": "int8"}, {"kv_dtype": "float8_e4m3fn"}], ids=["int8", "fp8_kv"]
)
def test_formats_of_the_target(taught: Taught, device: Device, formats: dict[str, str]) -> None:
    """The head follows integers, and keeps its pages in the dtype of the model: it was taught with
    other numbers, and still knows most."""
    with engine(taught.target, device, **formats) as alone:
        wanted = tokens_of(alone.run(all_at_once(ask(taught))).answers)
    settings: dict[str, Any] = {"row_tokens": 1 + MOST, "head": taught.head}
    speculation = Speculation(GuessedInStep(), MOST, eagle.VOCAB, known=False)
    with engine(taught.target, device, **settings, **formats) as it:
        answers = it.run(all_at_once(ask(taught)), speculation=speculation).answers
    assert tokens_of(answers) == wanted
    assert speculation.accepted > 0.2 * speculation.drafted


@pytest.mark.parametrize("captures", [False, True], ids=["launched", "captured"])
def test_it_is_an_option_of_the_engine(taught: Taught, captures: bool) -> None:
    """As a server builds it, on the kernels of the CPU; they run once before they are captured."""
    settings: dict[str, Any] = {"drafter": "eagle3", "drafter_model": str(taught.head)}
    settings |= {"draft_tokens": MOST, "captures": captures}
    mailbox = ReadyMailbox(all_at_once(ask(taught)))
    with built(taught.target, mailbox, **settings) as loop:
        loop.run()
    assert tokens_of(mailbox.answers) == taught.right
    assert mailbox.load.accepted_tokens > 0.7 * mailbox.load.drafted_tokens
    (ready,) = mailbox.ready
    with built(taught.target, ReadyMailbox(all_at_once([])), kv_pages=ready.total_pages):
        pass
    plain = PAGE_BYTES * (ready.total_pages + 1)
    width = taught.formula.hidden
    head = 16 * (2 * eagle.KV_HEADS * width // eagle.HEADS + width) * 4
    assert ready.kv_bytes == plain + head * (ready.total_pages + 1)


def test_integers_on_the_kernels_of_the_cpu(taught: Taught) -> None:
    """Target and head in int8: answers are those of the target in int8 alone."""
    found = []
    for settings in ({}, {"drafter": "eagle3", "drafter_model": str(taught.head)}):
        mailbox = ReadyMailbox(all_at_once(ask(taught)))
        with built(taught.target, mailbox, quantization="int8", **settings) as loop:
            loop.run()
        found.append(mailbox)
    plain, guessed = found
    assert tokens_of(guessed.answers) == tokens_of(plain.answers)
    assert guessed.load.accepted_tokens > 0.2 * guessed.load.drafted_tokens > 0


def test_made_up_weights_need_no_checkpoint(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(eagle.config(32)))
    settings: dict[str, Any] = {"drafter": "eagle3", "drafter_model": str(tmp_path)}
    mailbox = ReadyMailbox(all_at_once([submit(1, [1, 2, 3], 9)]))
    with built(tiny_llama, mailbox, load="dummy", **settings) as loop:
        loop.run()
    assert len(mailbox.answers[1].tokens) == 9
    assert mailbox.load.drafted_tokens > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"drafter": "eagle3"}, "give the model's folder with --drafter-model"),
        ({"drafter": "suffix", "drafter_model": "."}, "drafter suffix has no model"),
        ({"drafter": "eagle3", "drafter_model": "/nowhere"}, "/nowhere/config.json is missing"),
    ],
)
def test_what_does_not_fit_is_refused(
    tiny_llama: Path, settings: dict[str, Any], message: str
) -> None:
    with (
        pytest.raises(DrafterModelError, match=message),
        built(tiny_llama, ReadyMailbox(all_at_once([])), **settings),
    ):
        pass


def test_a_head_of_another_model_is_refused(taught: Taught, tmp_path: Path) -> None:
    folder = eagle.save_head(taught.formula, tmp_path, vocab_size=500)
    settings: dict[str, Any] = {"drafter": "eagle3", "drafter_model": str(folder)}
    message = rf"--drafter-model {folder}: .*vocab_size must be 97 for this model; got 500"
    with (
        pytest.raises(ValueError, match=message),
        built(taught.target, ReadyMailbox(all_at_once([])), **settings),
    ):
        pass


def test_a_model_that_shows_nothing_is_refused(taught: Taught) -> None:
    class Plain:
        """Has what contract model asked for before 1.1."""

        weight_map = prepare = forward = logits = None

    target = json.loads((taught.target / "config.json").read_text())
    folder = DraftFolder.read(Eagle3(), str(taught.head), target, weights=True)
    with pytest.raises(ValueError, match=r"--drafter eagle3 reads hidden states.* Plain does not"):
        folder.build(None, Plain())  # type: ignore[arg-type]
