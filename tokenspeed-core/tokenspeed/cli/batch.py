# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts batch: a file of requests, answered in order, in any number of runs."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tokenspeed.address import FIRST
from tokenspeed.cli.environment import API_KEY, check_environment
from tokenspeed.cli.options import (
    COUNT,
    Numbers,
    check_model,
    engine_config,
    engine_options,
    model_folder,
    server_address,
    usage_errors,
)
from tokenspeed.cli.serve import gateway_parser
from tokenspeed.config import EngineConfig, FrontConfig

if TYPE_CHECKING:
    from rich.console import Console

    from tokenspeed.batch.results import Results
    from tokenspeed.batch.run import Progress
    from tokenspeed.batch.worker import Worker

_LOCAL = "127.0.0.1"
_POLL_S = 0.2
_WAITING = 2
"""Requests asked at once for each that runs: the next is there when one ends."""

_URL_CONCURRENCY = 64
_SIGINT = 130
_GO_ON = "the same command goes on from there"


class _Sections(click.Command):
    """Help with the options of an engine apart, behind the command's own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        engine = set(EngineConfig.__struct_fields__) - {"model"}
        own: list[tuple[str, str]] = []
        engines: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if isinstance(param, click.Option) and record is not None:
                (engines if param.name in engine else own).append(record)
        with formatter.section("Options"):
            formatter.write_dl(own)
        with formatter.section("Options of the engine that --model starts, as for ts serve"):
            formatter.write_dl(engines)


@dataclass(frozen=True)
class _Asked:
    """What the command line says, beside the engine."""

    source: Path
    output: Path
    errors: Path
    overwrite: bool
    any_model: bool
    concurrency: int


@click.command(cls=_Sections)
@click.argument(
    "source",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    metavar="INPUT",
)
@click.argument("output", type=click.Path(dir_okay=False, path_type=Path), metavar="OUTPUT")
@click.option(
    "--model", callback=model_folder, metavar="FOLDER", help="Start an engine with this model."
)
@click.option(
    "--url",
    callback=server_address,
    metavar="HOST:PORT",
    help=f"Ask a server that runs, such as {FIRST}.",
)
@click.option(
    "--errors",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of lines in error; by default OUTPUT with .errors before its suffix.",
)
@click.option("--overwrite", is_flag=True, help="Start anew instead of going on.")
@click.option("--any-model", is_flag=True, help="Answer lines that ask for other models, too.")
@click.option(
    "--concurrency",
    type=COUNT,
    help=f"Lines asked at once; by default twice --max-num-seqs, or {_URL_CONCURRENCY} with --url.",
)
@click.option(
    "--request-timeout",
    type=Numbers(min=0, min_open=True),
    default=3600.0,
    show_default=True,
    help="Seconds that a line may take, with --model.",
)
@click.option("--served-model-name", help="Name in the lines; by default the folder's.")
@click.option("--api-key", envvar=API_KEY, help=f"Of the server at --url; or set {API_KEY}.")
@click.option(
    "--tool-call-parser", callback=gateway_parser, help="How the model writes tool calls."
)
@click.option(
    "--reasoning-parser", callback=gateway_parser, help="How the model marks its reasoning."
)
@click.option(
    "--chat-template",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="Jinja file used instead of the model's own.",
)
@engine_options
def batch(source: Path, output: Path, **values: Any) -> None:
    """Answer the requests of a file. Stopped or killed, the same command goes on where it was.

    INPUT has a request a line, as OpenAI's batch API takes them:

    \b
      {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
       "body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16}}

    (each on one line; url may be /v1/completions, with a prompt in the body). OUTPUT gets a line
    for each that is answered, in the order of INPUT; the others go to the file of errors, with the
    reason, and hurt nobody.

    \b
    Examples:
      ts batch in.jsonl out.jsonl --model FOLDER
      ts batch in.jsonl out.jsonl --url 127.0.0.1:8000
    """
    check_environment()
    folder, url = values.pop("model"), values.pop("url")
    if folder is None and url is None:
        raise click.UsageError("say who answers: --model FOLDER, or --url of a running server")
    if folder is not None and url is not None:
        raise click.UsageError("give --model or --url, not both: an engine, or a running server")
    if url is not None:
        _refuse_engine_options(click.get_current_context())
    engine = engine_config(folder or "", values)
    errors = values.pop("errors") or output.with_suffix(f".errors{output.suffix}")
    default = _URL_CONCURRENCY if url else _WAITING * engine.max_num_seqs
    asked = _Asked(
        source,
        output,
        errors,
        values.pop("overwrite"),
        values.pop("any_model"),
        values.pop("concurrency") or default,
    )
    _run(asked, url, engine, values)


def _refuse_engine_options(ctx: click.Context) -> None:
    own = {*EngineConfig.__struct_fields__, "request_timeout", "tool_call_parser"}
    own |= {"reasoning_parser", "chat_template"}
    for param in ctx.command.params:
        given = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
        if given and param.name in own - {"model"}:
            raise click.UsageError(f"{param.opts[0]} is for --model: the server at --url runs")


def _run(asked: _Asked, url: str | None, engine: EngineConfig, values: dict[str, Any]) -> None:
    from rich.console import Console

    from tokenspeed.batch.errors import BatchError
    from tokenspeed.batch.results import open_results
    from tokenspeed.batch.run import Progress
    from tokenspeed.process.supervisor import ChildFailedError, StopRequested

    console = Console(stderr=True)
    begun = False
    try:
        with open_results(
            asked.source, asked.output, asked.errors, overwrite=asked.overwrite
        ) as results:
            begun, done = True, results.done
            progress = Progress(done.answered, done.failed, done.bytes)
            if done.complete:
                console.print("nothing left to do" if done.line else "INPUT has no request")
            else:
                if done.line:
                    console.print(f"going on behind line {done.line:,}", highlight=False)
                asking = _Asking(asked, results, progress, console)
                if url is None:
                    _ask_own(asking, engine, values)
                else:
                    _ask_there(asking, url, values)
    except (KeyboardInterrupt, StopRequested):
        console.print(f"stopped; {_GO_ON}", highlight=False)
        sys.exit(_SIGINT)
    except (BatchError, ChildFailedError) as error:
        raise click.ClickException(f"{error}\n{_GO_ON}" if begun else str(error)) from error
    failed = f"; {progress.failed:,} in error: {asked.errors}" if progress.failed else ""
    click.echo(f"{progress.answered:,} answered: {asked.output}{failed}")


@dataclass(frozen=True)
class _Asking:
    """All that asking needs but the server."""

    asked: _Asked
    results: Results
    progress: Progress
    console: Console

    @contextmanager
    def begun(self, url: str, api_key: str | None, model: str | None) -> Iterator[Worker]:
        """A worker that asks; ``tick`` of what this yields shows how far it is."""
        from tokenspeed.batch.client import connected
        from tokenspeed.batch.lines import read_lines
        from tokenspeed.batch.run import run
        from tokenspeed.batch.show import shown
        from tokenspeed.batch.worker import Worker

        asked = self.asked

        async def work() -> None:
            async with connected(url, api_key, model=model, any_model=asked.any_model) as client:
                lines = read_lines(asked.source)
                await run(lines, client.answer, self.results, asked.concurrency, self.progress)

        size = asked.source.stat().st_size
        with Worker(work) as worker, shown(self.progress, size, self.console) as tick:
            worker.on_look = tick
            yield worker


def _ask_there(asking: _Asking, url: str, values: dict[str, Any]) -> None:
    """A server that runs."""
    with asking.begun(url, values["api_key"], values["served_model_name"]) as worker:
        while not worker.done():
            worker.wait(_POLL_S)


def _ask_own(asking: _Asking, engine: EngineConfig, values: dict[str, Any]) -> None:
    """A server for this run alone, which only this run has the key of."""
    from tokenspeed.process.gateway import GatewayConfig
    from tokenspeed.process.launch import plan_launch, private_ipc
    from tokenspeed.process.ports import any_free
    from tokenspeed.process.supervisor import serving

    check_model(engine)
    key = secrets.token_urlsafe(32)
    http = GatewayConfig(
        port=any_free(_LOCAL),
        api_key=key,
        tool_call_parser=values["tool_call_parser"],
        reasoning_parser=values["reasoning_parser"],
        chat_template=values["chat_template"],
        request_timeout=values["request_timeout"],
    )
    name = values["served_model_name"] or Path(engine.model).name
    with usage_errors():
        front = FrontConfig(
            model=engine.model,
            served_model_name=name,
            request_timeout=values["request_timeout"],
            max_queue=asking.asked.concurrency + 1,
        )
    asking.console.print(f"loading {name}", highlight=False)
    with private_ipc() as ipc:
        plan = plan_launch(engine, front, ipc)
        with (
            serving(plan, http, quiet=True) as (supervisor, _),
            asking.begun(f"http://{_LOCAL}:{http.port}", key, name) as worker,
        ):
            supervisor.watch(until=worker.done, poll=_POLL_S)
