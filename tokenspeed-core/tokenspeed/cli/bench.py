# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts bench: measurements that anybody can repeat."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokenspeed.cli.lists import export_lists, list_options
from tokenspeed.cli.options import engine_config, engine_options, model_folder

if TYPE_CHECKING:
    from tokenspeed.bench.report import Report

_save = click.option(
    "--save", type=click.Path(dir_okay=False, path_type=Path), help="Write the report as JSON."
)
_COUNT = click.IntRange(min=1)
_check = click.option("--check", is_flag=True, help="Exit with 1 when a wanted ratio is missed.")


@click.group()
def bench() -> None:
    """Measure; figures come with the machine, the versions and every sample."""


@bench.command()
@click.argument("folder", callback=model_folder)
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--repetitions", type=click.IntRange(min=1), default=7, show_default=True)
@list_options
@_save
@_check
def cpu(
    folder: str,
    threads: int,
    repetitions: int,
    allow: tuple[str, ...] | None,
    deny: tuple[str, ...],
    save: Path | None,
    check: bool,
) -> None:
    """Decode and prefill beside Transformers, and beside the linear layers alone.

    Takes minutes: on two cores about five with --repetitions 1, and several times that by default.
    """
    export_lists(allow, deny)
    if importlib.util.find_spec("transformers") is None:
        raise click.ClickException("it compares with Transformers: pip install transformers")
    from tokenspeed.bench.cpu import run

    report = run(folder, threads=threads, repetitions=repetitions, progress=_say)
    _finish(report, save, check)


@bench.command()
@click.argument("folder", callback=model_folder)
@click.option(
    "--tokens",
    type=click.IntRange(min=9),
    multiple=True,
    help="Length of the prompt; repeatable. By default 35, 2600 and 7400.",
)
@list_options
@_save
@_check
def gateway(
    folder: str,
    tokens: tuple[int, ...],
    allow: tuple[str, ...] | None,
    deny: tuple[str, ...],
    save: Path | None,
    check: bool,
) -> None:
    """What gateway and front add to the engine's own time. Wants an idle machine."""
    export_lists(allow, deny)
    from tokenspeed.bench.gateway import SIZES, run

    _finish(run(folder, sizes=tokens or SIZES, progress=_say), save, check)


@bench.command()
@click.argument("folder", callback=model_folder)
@click.option("--batch", "batches", type=_COUNT, multiple=True, default=(1, 32, 128))
@click.option("--prompt-tokens", type=_COUNT, default=1024, show_default=True)
@click.option("--steps", type=_COUNT, default=256, show_default=True)
@click.option("--repetitions", type=_COUNT, default=3, show_default=True)
@engine_options
@_save
@_check
def decode(
    folder: str,
    batches: tuple[int, ...],
    prompt_tokens: int,
    steps: int,
    repetitions: int,
    save: Path | None,
    check: bool,
    **options: Any,
) -> None:
    """Decode steps beside the linear layers alone, on the device that the engine takes.

    With --load dummy a folder with a config.json alone will do: bench/configs/qwen3-8b.
    """
    from tokenspeed.bench.decode import run

    config = engine_config(folder, options)
    if max(batches) > config.max_num_seqs:
        raise click.UsageError(f"--batch {max(batches)} needs --max-num-seqs {max(batches)}")
    report = run(
        config,
        batches=batches,
        prompt_tokens=prompt_tokens,
        steps=steps,
        repetitions=repetitions,
        progress=_say,
    )
    _finish(report, save, check)


@bench.command()
@click.option("--repetitions", type=_COUNT, default=7, show_default=True)
@_save
@_check
def plugins(repetitions: int, save: Path | None, check: bool) -> None:
    """'ts plugins list' beside plugins that raise, sleep, or are for another contract."""
    from tokenspeed.bench.plugins import run

    _finish(run(repetitions=repetitions), save, check)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _finish(report: Report, save: Path | None, check: bool) -> None:
    from tokenspeed.bench import report as reports

    reports.show(report)
    if save is not None:
        reports.save(report, save)
    if check and not all(row.reached for row in report.rows):
        sys.exit(1)
