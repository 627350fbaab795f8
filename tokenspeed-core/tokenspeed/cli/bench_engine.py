# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts bench decode, weights, prefill, agentic, suite: an engine alone, on the device it takes."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from tokenspeed.cli.bench_options import COUNT, check_option, finish, plot_option, save_option, say
from tokenspeed.cli.options import engine_config, engine_options, model_folder
from tokenspeed.config import EngineConfig

if TYPE_CHECKING:
    from tokenspeed.bench.floors import Turns

Command = TypeVar("Command", bound=Callable[..., Any])

REPETITIONS = click.option("--repetitions", type=COUNT, default=3, show_default=True)


def _counts(name: str, values: str, default: tuple[int, ...]) -> Callable[[Command], Command]:
    return click.option(name, values, type=COUNT, multiple=True, default=default, show_default=True)


_folder = click.argument("folder", callback=model_folder)
_batches = _counts("--batch", "batches", (1, 8, 32, 128))
_prompts = _counts("--tokens", "prompts", (2048, 8192, 32768))
_prompt_tokens = click.option("--prompt-tokens", type=COUNT, default=1024, show_default=True)
_steps = click.option("--steps", type=COUNT, default=256, show_default=True)
_lockstep = click.option(
    "--lockstep/--free",
    default=True,
    show_default=True,
    help="Whether a turn begins when all answers of the one before have ended, or each user's own.",
)


def _turns(command: Command) -> Command:
    """Options of the agentic workload; the defaults are those of the suite."""
    for name, default, help_text in (
        ("--output", 128, "Tokens of each answer."),
        ("--added", 512, "New prompt tokens of a turn."),
        ("--turns", 6, "Turns of each user."),
        ("--history", 24 * 1024, "Tokens that each user has said before; cached at the start."),
        ("--users", 8, "Users at once."),
    ):
        command = click.option(
            name, type=COUNT, default=default, show_default=True, help=help_text
        )(command)
    return command


@click.command()
@_folder
@_batches
@click.option("--sweep", is_flag=True, help="Batches 1, 2, 4 to 128, for --plot.")
@_prompt_tokens
@_steps
@REPETITIONS
@engine_options
@save_option
@plot_option
@check_option
def decode(
    folder: str,
    batches: tuple[int, ...],
    sweep: bool,
    prompt_tokens: int,
    steps: int,
    repetitions: int,
    save: Path | None,
    plot: Path | None,
    check: bool,
    **options: Any,
) -> None:
    """Decode steps beside what weights and KV take to read, on the device that the engine takes.

    With --load dummy a folder with a config.json alone will do: bench/configs/qwen3-8b.
    """
    from tokenspeed.bench.decode import SWEEP, run

    config = engine_config(folder, options)
    batches = SWEEP if sweep else batches
    _check_room(config, max(batches), prompt_tokens + steps + 1)
    report = run(
        config,
        batches=batches,
        prompt_tokens=prompt_tokens,
        steps=steps,
        repetitions=repetitions,
        progress=say,
    )
    finish(report, save, check, plot)


@click.command()
@_folder
@_counts("--batch", "batches", (1, 2, 4, 8, 16))
@click.option(
    "--text",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="Also the perplexity of this file's first 1024 tokens.",
)
@click.option("--repetitions", type=COUNT, default=5, show_default=True)
@engine_options
@save_option
@check_option
def weights(
    folder: str,
    batches: tuple[int, ...],
    text: Path | None,
    repetitions: int,
    save: Path | None,
    check: bool,
    **options: Any,
) -> None:
    """A --quantization beside plain weights: decode steps in turns, and the loss in quality."""
    from tokenspeed.bench.weights import run

    config = engine_config(folder, options)
    if config.quantization is None:
        raise click.UsageError("say which format is compared with plain weights: --quantization")
    _check_room(config, max(batches), 1)
    report = run(config, batches=batches, repetitions=repetitions, text=text, progress=say)
    finish(report, save, check)


@click.command()
@_folder
@click.option(
    "--edits",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="Code to be written again, such as bench/edits/edits.jsonl.",
)
@click.option(
    "--questions",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="Questions without anything to copy, such as bench/edits/free.jsonl.",
)
@click.option("--first", type=COUNT, help="Only so many of each.")
@click.option("--repetitions", type=COUNT, default=1, show_default=True)
@engine_options
@save_option
@check_option
def speculation(
    folder: str,
    edits: Path | None,
    questions: Path | None,
    first: int | None,
    repetitions: int,
    save: Path | None,
    check: bool,
    **options: Any,
) -> None:
    """Answers with a --drafter beside the same answers without one, one request at a time."""
    from tokenspeed.bench.edits import read_edits, read_free
    from tokenspeed.bench.speculation import run

    config = engine_config(folder, options)
    if config.drafter is None:
        raise click.UsageError("say who guesses: --drafter")
    workloads = {}
    if edits is not None:
        workloads["edits"] = {edit.id: edit.prompt for edit in read_edits(edits)[:first]}
    if questions is not None:
        workloads["questions"] = {free.id: free.prompt for free in read_free(questions)[:first]}
    if not workloads:
        raise click.UsageError("give --edits, --questions or both")
    report = run(config, workloads, repetitions=repetitions, progress=say)
    finish(report, save, check)


@click.command()
@_folder
@_prompts
@REPETITIONS
@engine_options
@save_option
@check_option
def prefill(
    folder: str,
    prompts: tuple[int, ...],
    repetitions: int,
    save: Path | None,
    check: bool,
    **options: Any,
) -> None:
    """Time to the first token of a prompt alone, beside what its operations take at least."""
    from tokenspeed.bench.prefill import run

    config = engine_config(folder, options)
    _check_room(config, 1, max(prompts) + 1)
    finish(run(config, tokens=prompts, repetitions=repetitions, progress=say), save, check)


@click.command()
@_folder
@_turns
@_lockstep
@click.option(
    "--published",
    is_flag=True,
    help="As others publish it: 50,000 tokens first, +800 in each of 10 to 15 turns, 500 decoded.",
)
@click.option(
    "--scale",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="With --published: shorten all lengths by this factor.",
)
@_counts("--concurrency", "concurrencies", (1, 2, 4, 8, 16))
@REPETITIONS
@engine_options
@save_option
@plot_option
@check_option
def agentic(
    folder: str,
    lockstep: bool,
    published: bool,
    scale: float,
    concurrencies: tuple[int, ...],
    repetitions: int,
    save: Path | None,
    plot: Path | None,
    check: bool,
    **options: Any,
) -> None:
    """Turns of users who come back with long conversations.

    By default their histories are cached when the clock starts. With --published nothing is, and
    the concurrencies are measured one after the other; --plot draws these.
    """
    turns = _take_turns(options)
    config = engine_config(folder, options)
    if published:
        from tokenspeed.bench import published as form

        shape = form.scaled(scale)
        _check_room(config, max(concurrencies), shape.longest)
        report = form.run(config, shape, concurrencies=concurrencies, progress=say)
    else:
        from tokenspeed.bench.agentic import run

        if plot is not None:
            raise click.UsageError("--plot draws concurrencies: give --published too")
        _check_room(config, turns.users, turns.longest)
        report = run(config, turns, lockstep=lockstep, repetitions=repetitions, progress=say)
    finish(report, save, check, plot)


@click.command()
@_folder
@_batches
@_prompts
@_prompt_tokens
@_steps
@_turns
@_lockstep
@REPETITIONS
@click.option(
    "--bars",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help='JSON with milliseconds that are wanted: {"ms": {"decode_bs1": 4.4}, "fp8": {}}.',
)
@click.option(
    "--fp8",
    "fp8_options",
    metavar="OPTIONS",
    help="Measure a second engine with these engine options on top, in one text; its figures are "
    'the file\'s "fp8".',
)
@engine_options
@save_option
@check_option
def suite(
    folder: str,
    batches: tuple[int, ...],
    prompts: tuple[int, ...],
    prompt_tokens: int,
    steps: int,
    lockstep: bool,
    repetitions: int,
    bars: Path | None,
    fp8_options: str | None,
    save: Path | None,
    check: bool,
    **options: Any,
) -> None:
    """Decode, prefill and agentic work in one engine, with floors of the same run.

    The file of --save is written after each part.
    """
    from tokenspeed.bench import suite as suites
    from tokenspeed.bench.session import timed

    turns = _take_turns(options)
    work = suites.Workloads(batches, prompt_tokens, steps, prompts, turns, lockstep, repetitions)
    configs = [engine_config(folder, dict(options))]
    if fp8_options is not None:
        configs.append(engine_config(folder, options | _engine_values(fp8_options)))
    for config in configs:
        _check_room(config, max(*batches, turns.users), work.longest)
    wanted = json.loads(bars.read_text()) if bars else {}
    file = suites.File(save, configs[0], work, "ts " + shlex.join(sys.argv[1:]))
    progress, missed = timed(say), []
    for config, kind in zip(configs, ("ms", "fp8"), strict=False):
        found = suites.measure(config, work, progress, partial(file.write, kind))
        suites.show(kind, found, wanted.get(kind, {}))
        missed += suites.missed(found, wanted.get(kind, {}))
    if check and missed:
        sys.exit(1)


def _engine_values(text: str) -> dict[str, Any]:
    """The engine options that a text gives, without those that it leaves out."""
    command = engine_options(click.Command("--fp8", params=[], callback=None))
    context = command.make_context("--fp8", shlex.split(text))
    given = ParameterSource.COMMANDLINE
    return {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is given
    }


def _take_turns(options: dict[str, Any]) -> Turns:
    """What ``_turns`` added."""
    from tokenspeed.bench.floors import Turns

    return Turns(**{name: options.pop(name) for name in Turns.__dataclass_fields__})


def _check_room(config: EngineConfig, sequences: int, tokens: int) -> None:
    """UsageError when the workload does not fit what the engine is told to serve."""
    if sequences > config.max_num_seqs:
        raise click.UsageError(
            f"{sequences} requests at once need --max-num-seqs {sequences} or more"
        )
    longest = config.max_model_len
    if longest is not None and tokens > longest:
        raise click.UsageError(f"{tokens} tokens need --max-model-len {tokens} or more")
