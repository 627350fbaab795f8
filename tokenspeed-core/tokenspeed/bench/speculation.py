# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Answers with a drafter beside the same answers without one, greedy, one request at a time.

Two engines with the same weights take turns, prompt by prompt, so that a busy moment of the machine
hits both. Code that is to be written again is what a drafter is for; answers to plain questions
must not become slower. Time counts from the first token.

Answers that loop, where 16 tokens in a row come three times, are counted and left out: a drafter
would be praised for a fault of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from tokenspeed.bench.engine import MeasuredEngine, launch_plan, measured_engine
from tokenspeed.bench.report import Report, Row, compare_rates, new_report
from tokenspeed.front.chat_template import ChatTemplate
from tokenspeed.front.model_folder import ModelFolder

if TYPE_CHECKING:
    from tokenspeed.bench.answers import Answer
    from tokenspeed.bench.session import Progress
    from tokenspeed.config import EngineConfig

MAX_TOKENS = {"edits": 320, "questions": 128}
"""A small model loops sooner or later: most answers have not yet."""

LOOP_TOKENS, LOOP_TIMES = 16, 3
BARS = {"edits": 1.8, "questions": 0.97}
"""Of the rates with a drafter and without."""


@dataclass
class Pair:
    """What a workload took.

    Attributes:
        with_s, without_s: seconds behind the first token, of the answers that count.
        with_tokens, without_tokens: tokens behind the first; answers that differ are of any length.
        looped: answers that were left out.
        differing: answers that were not the same.
    """

    with_s: float = 0.0
    without_s: float = 0.0
    with_tokens: int = 0
    without_tokens: int = 0
    looped: int = 0
    differing: int = 0
    samples: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, ours: Answer, theirs: Answer) -> None:
        """The two answers to one prompt."""
        self.differing += ours.token_ids != theirs.token_ids
        if loops(ours.token_ids) or loops(theirs.token_ids):
            self.looped += 1
            return
        seconds = [answer.ended - answer.arrivals[0] for answer in (ours, theirs)]
        self.with_s += seconds[0]
        self.without_s += seconds[1]
        self.with_tokens += len(ours.token_ids) - 1
        self.without_tokens += len(theirs.token_ids) - 1
        self.samples.setdefault(name, []).extend(round(each, 4) for each in seconds)


def loops(tokens: Sequence[int]) -> bool:
    """Whether LOOP_TOKENS in a row come LOOP_TIMES."""
    runs = zip(*(tokens[i:] for i in range(LOOP_TOKENS)), strict=False)
    return max(Counter(runs).values(), default=0) >= LOOP_TIMES


def run(
    config: EngineConfig,
    workloads: dict[str, dict[str, str]],
    *,
    repetitions: int,
    progress: Progress,
) -> Report:
    """Measure. ``workloads``: "edits" and "questions", each of name -> what the user says."""
    assert config.drafter is not None
    folder = ModelFolder(config.model)
    template = ChatTemplate.of(folder)
    tokenizer = folder.tokenizer
    rows: list[Row] = []
    notes: dict[str, str] = {}
    samples: dict[str, list[float]] = {}
    with ExitStack() as stack:
        plain = msgspec.structs.replace(config, drafter=None, drafter_model=None)
        ours, theirs = (_engine(stack, each) for each in (config, plain))
        stop_ids = folder.eos_ids(ours.ready.vocab_size)
        for kind, prompts in workloads.items():
            pair, guesses = Pair(), ours.guesses()
            for name, said in prompts.items():
                text = template.render([{"role": "user", "content": said}])
                prompt = tokenizer.encode(text, add_special_tokens=False).ids
                for repetition in range(repetitions):
                    salt = str(repetition)  # a drafter would find the answer of the one before
                    answers = [
                        engine.run(
                            engine.ask(prompt, MAX_TOKENS[kind], stop_ids=stop_ids, salt=salt)
                        )
                        for engine in (ours, theirs)
                    ]
                    pair.add(name, *answers)
                progress(f"{kind}: {name}, {answers[0].tokens} tokens")
            drafted, accepted = (b - a for a, b in zip(guesses, ours.guesses(), strict=True))
            if pair.with_s and pair.without_s:  # else no answer counts
                rows.append(_row(kind, config.drafter, pair))
            notes[kind] = (
                f"{accepted} of {drafted} guesses were right; {pair.looped} answers looped and do "
                f"not count; {pair.differing} of {len(prompts) * repetitions} differ"
            )
            samples |= {f"{kind} {name}": each for name, each in pair.samples.items()}
    notes["weights"] = config.quantization or "as in the folder"
    return new_report("ts bench speculation", config.model, rows, samples, notes)


def _engine(stack: ExitStack, config: EngineConfig) -> MeasuredEngine:
    return stack.enter_context(measured_engine(stack.enter_context(launch_plan(config))))


def _row(kind: str, drafter: str, pair: Pair) -> Row:
    return compare_rates(
        f"{kind}, drafter {drafter}",
        work=1,
        unit="tokens/s",
        ours_s=[pair.with_s / pair.with_tokens],
        theirs_s=[pair.without_s / pair.without_tokens],
        versus="no drafter",
        bar=BARS[kind],
    )
