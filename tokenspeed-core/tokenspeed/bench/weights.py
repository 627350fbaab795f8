# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A format of weights beside the plain ones: decode in turns in one run; perplexity of a text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tokenspeed.bench.engine import MeasuredEngine, launch_plan, measured_engine
from tokenspeed.bench.prompts import random_prompt
from tokenspeed.bench.report import Report, Row, compare_times, new_report
from tokenspeed.plugins.load.activate import load_platform

if TYPE_CHECKING:
    from tokenspeed.config import EngineConfig

BATCHES = (1, 2, 4, 8, 16)
PROMPT_TOKENS, STEPS = 32, 64
TEXT_TOKENS = 1024
PLAIN = "plain"

Samples = dict[str, list[float]]
Progress = Callable[[str], None]


def run(
    config: EngineConfig,
    *,
    batches: Sequence[int],
    repetitions: int,
    text: Path | None,
    progress: Progress,
) -> Report:
    """Measure.

    Args:
        config: with a quantization; everything else is that of both engines.
        text: whose perplexity is measured; None: speed alone.
    """
    assert config.quantization is not None
    tokens = PROMPT_TOKENS + STEPS + 1
    pages = max(batches) * -(-tokens // config.page_size) + 1
    coded = msgspec.structs.replace(config, kv_pages=pages, prefix_cache=False)
    samples: Samples = defaultdict(list)
    with engines(coded, progress) as both:
        for repetition in range(-1, repetitions):  # the first one warms up and is dropped
            name = f"repetition {repetition + 1} of {repetitions}"
            progress(name if repetition >= 0 else "warming up")
            _repetition(both, batches, samples if repetition >= 0 else defaultdict(list))
    rows = [row for batch in batches for row in _rows(samples, batch, config.quantization)]
    notes = {
        "decode": f"{STEPS} steps after {PROMPT_TOKENS}-token prompts, greedy",
        "engines": "in turns, so that a busy moment of the machine hits both; medians",
        "tokens/s": ", ".join(_rate(samples, batch, config.quantization) for batch in batches),
    }
    if text is not None:
        progress("perplexity")
        rows.append(_compare_perplexity(config, text, samples))
        notes["perplexity"] = f"of {text.name}, its first {TEXT_TOKENS} tokens at most"
    return new_report("ts bench weights", config.model, rows, samples, notes)


@contextmanager
def engines(config: EngineConfig, progress: Progress) -> Iterator[dict[str, MeasuredEngine]]:
    """The engine that is asked for, and the same with plain weights."""
    with ExitStack() as stack:
        both = {}
        for name, each in (
            (str(config.quantization), config),
            (PLAIN, msgspec.structs.replace(config, quantization=None)),
        ):
            progress(f"loading, weights: {name}")
            plan = stack.enter_context(launch_plan(each))
            load_platform(plan.plugins).prepare(each.threads)
            both[name] = stack.enter_context(measured_engine(plan))
        yield both


def _repetition(both: dict[str, MeasuredEngine], batches: Sequence[int], samples: Samples) -> None:
    for batch in batches:
        prompts = [random_prompt(PROMPT_TOKENS) for _ in range(batch)]
        for name, engine in both.items():
            samples[f"step {batch} {name}"].append(engine.decode(prompts, STEPS) / STEPS)


def _rows(samples: Samples, batch: int, quantization: str) -> Iterator[Row]:
    ours, plain = samples[f"step {batch} {quantization}"], samples[f"step {batch} {PLAIN}"]
    yield compare_times(
        f"decode, batch {batch}", unit="ms a step", ours_s=ours, theirs_s=plain, versus="plain"
    )


def _rate(samples: Samples, batch: int, quantization: str) -> str:
    best = min(samples[f"step {batch} {quantization}"])
    return f"batch {batch}: at best {batch / best:.1f}"


def _compare_perplexity(config: EngineConfig, text: Path, samples: Samples) -> Row:
    from tokenspeed.bench.perplexity import perplexity
    from tokenspeed.front.model_folder import ModelFolder

    ids = ModelFolder(config.model).tokenizer.encode(text.read_text("utf-8")).ids
    with launch_plan(config) as plan:
        device = load_platform(plan.plugins).open()
        ours, plain = (
            perplexity(plan, device, ids[:TEXT_TOKENS], quantization=each)
            for each in (config.quantization, None)
        )
    samples["perplexity"] = [ours, plain]
    return Row(
        what="perplexity",
        unit="",
        ours=round(ours, 4),
        versus="plain",
        theirs=round(plain, 4),
        ratio=round(plain / ours, 4),
        bar=0.98,
    )
