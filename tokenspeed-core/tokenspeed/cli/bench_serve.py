# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts bench serve: an HTTP server under load."""

from __future__ import annotations

import re
from pathlib import Path

import click

from tokenspeed.cli.bench_options import COUNT, check_option, finish, save_option, say
from tokenspeed.cli.options import model_folder, server_address

_ADDRESS = re.compile(r"://|:\d+(/v1)?/?$|^\d+$")
"""Of what is meant as a server's address, be it a right one, and not as a folder."""

_MS = click.FloatRange(min=0, min_open=True)


def _target(ctx: click.Context, param: click.Parameter, value: str) -> str | None:
    """Callback: a URL without a path, or a model's folder."""
    if _ADDRESS.search(value) and not Path(value).is_dir():
        return server_address(ctx, param, value)
    return model_folder(ctx, param, value)


@click.command()
@click.argument("target", callback=_target, metavar="HOST:PORT|FOLDER")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS OF TS SERVE]")
@click.option("--requests", type=COUNT, default=64, show_default=True)
@click.option("--concurrency", type=COUNT, default=8, show_default=True, help="Requests at once.")
@click.option("--rate", type=_MS, help="Requests a second, at random times; instead of at once.")
@click.option("--words", type=COUNT, default=512, show_default=True, help="Words of a prompt.")
@click.option("--output", type=COUNT, default=64, show_default=True, help="Tokens of an answer.")
@click.option("--ttft-ms", type=_MS, default=1000.0, show_default=True, help="Limit for goodput.")
@click.option("--itl-ms", type=_MS, default=50.0, show_default=True, help="Limit for goodput.")
@save_option
@check_option
def serve(
    target: str,
    arguments: tuple[str, ...],
    requests: int,
    concurrency: int,
    rate: float | None,
    words: int,
    output: int,
    ttft_ms: float,
    itl_ms: float,
    save: Path | None,
    check: bool,
) -> None:
    """Time to first token, between tokens, and goodput of an HTTP server.

    HOST:PORT is that of a running server; of a FOLDER a server is started, with what stands
    behind --.
    """
    from tokenspeed.bench.http_load import ServerError, Traffic
    from tokenspeed.bench.serve import Limits, run
    from tokenspeed.bench.served import ServeFailedError

    traffic = Traffic(requests, concurrency, rate, words, output)
    limits = Limits(ttft_ms, itl_ms)
    try:
        report = run(target, traffic, limits, arguments=arguments, progress=say)
    except (ServerError, ServeFailedError) as error:
        raise click.ClickException(str(error)) from error
    finish(report, save, check)
