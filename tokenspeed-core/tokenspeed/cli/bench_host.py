# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts bench host: what a decode step costs the engine's loop."""

from __future__ import annotations

from typing import Any

import click

from tokenspeed.cli.options import engine_config, engine_options, model_folder


@click.command()
@click.argument("folder", required=False, callback=model_folder)
@click.option("--batch", "batches", type=click.IntRange(min=1), multiple=True, default=(1, 64, 128))
@click.option("--steps", type=click.IntRange(min=20), default=400, show_default=True)
@engine_options
def host(folder: str | None, batches: tuple[int, ...], steps: int, **options: Any) -> None:
    """Microseconds of the host in a decode step, by phase of the loop.

    Without FOLDER on a device that computes nothing, so any machine will do; the options of the
    engine say nothing then.
    """
    from tokenspeed.bench.host import run, show

    config = None if folder is None else engine_config(folder, options)
    if config is not None and max(batches) > config.max_num_seqs:
        raise click.UsageError(f"--batch {max(batches)} needs --max-num-seqs {max(batches)}")
    show(run(config, batches=batches, steps=steps))
