# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts bench: measurements that anybody can repeat."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal

import click

from tokenspeed.cli.bench_engine import agentic, decode, prefill, speculation, suite, weights
from tokenspeed.cli.bench_host import host
from tokenspeed.cli.bench_options import COUNT, check_option, finish, save_option, say
from tokenspeed.cli.bench_serve import serve
from tokenspeed.cli.lists import export_lists, list_options
from tokenspeed.cli.options import model_folder


@click.group()
def bench() -> None:
    """Measure; figures come with the machine, the versions and every sample."""


@bench.command()
@click.argument("folder", callback=model_folder)
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--repetitions", type=click.IntRange(min=1), default=7, show_default=True)
@click.option("--quantization", type=click.Choice(("int8",)), help="Of our weights alone.")
@list_options
@save_option
@check_option
def cpu(
    folder: str,
    threads: int,
    repetitions: int,
    quantization: Literal["int8"] | None,
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

    report = run(
        folder,
        threads=threads,
        repetitions=repetitions,
        progress=say,
        quantization=quantization,
    )
    finish(report, save, check)


@bench.command()
@click.argument("folder", callback=model_folder)
@click.option(
    "--tokens",
    type=click.IntRange(min=9),
    multiple=True,
    help="Length of the prompt; repeatable. By default 35, 2600 and 7400.",
)
@list_options
@save_option
@check_option
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

    finish(run(folder, sizes=tokens or SIZES, progress=say), save, check)


@bench.command()
@click.option("--repetitions", type=COUNT, default=7, show_default=True)
@save_option
@check_option
def plugins(repetitions: int, save: Path | None, check: bool) -> None:
    """'ts plugins list' beside plugins that raise, sleep, or are for another contract."""
    from tokenspeed.bench.plugins import run

    finish(run(repetitions=repetitions), save, check)


for _command in (decode, weights, prefill, speculation, agentic, suite, serve, host):
    bench.add_command(_command)
