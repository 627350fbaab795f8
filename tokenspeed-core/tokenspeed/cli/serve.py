# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts serve: check everything that can be checked now, then become the supervisor."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from tokenspeed.cli.environment import API_KEY, OPERATOR_KEY, check_environment
from tokenspeed.cli.options import (
    COUNT,
    Integers,
    Numbers,
    check_model,
    engine_config,
    engine_options,
    model_folder,
    read_config,
    usage_errors,
)
from tokenspeed.cli.start_table import print_compact, wired_rows
from tokenspeed.config import EngineConfig, FrontConfig
from tokenspeed.plugins.choose.resolve import Resolution
from tokenspeed.plugins.errors import did_you_mean

_ADMIN_HOST = "127.0.0.1"
_FIRST_PORT = 8000
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_FRONT = FrontConfig(model="", served_model_name="")


def gateway_parser(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Callback: a parser that the gateway knows, rather than an error after loading."""
    if value is not None:
        kind = str(param.name).removesuffix("_parser")
        known = getattr(import_module("smg.smg_rs"), f"get_available_{kind}_parsers")()
        if value not in known:
            raise click.BadParameter(f'there is no parser "{value}"; {did_you_mean(value, known)}')
    return value


def operator_key(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Callback: the gateway takes keys in one text with their names."""
    if value is not None and not re.fullmatch(r"[!-9;-~]+", value):
        raise click.BadParameter("it must be visible ASCII characters without a space or a colon")
    return value


@click.command()
@click.argument("folder", callback=model_folder, metavar="FOLDER", required=False)
@click.option(
    "--model", callback=model_folder, metavar="FOLDER", help="Folder of the model; same as FOLDER."
)
@click.option("--served-model-name", help="Name in the API; by default the folder's.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=Integers(1, 65535), help="By default 8000 or the next free one.")
@click.option(
    "--admin-port",
    type=Integers(0, 65535),
    default=_FRONT.admin_port,
    help=f"Of metrics and health, on {_ADMIN_HOST}; by default a free one.",
)
@engine_options
@click.option(
    "--kv-events/--no-kv-events",
    default=True,
    show_default=True,
    help="Tell a gateway that asks what the prefix cache holds.",
)
@click.option(
    "--request-timeout",
    type=Numbers(min=0, min_open=True),
    default=_FRONT.request_timeout,
    show_default=True,
    help="Seconds that a request may take.",
)
@click.option(
    "--max-queue",
    type=COUNT,
    default=_FRONT.max_queue,
    show_default=True,
    help="Requests that may wait; one more is refused.",
)
@click.option(
    "--drain-timeout",
    type=Numbers(min=0, min_open=True),
    default=_FRONT.drain_timeout,
    show_default=True,
    help="Seconds that open requests have to end after SIGTERM; Ctrl-C does not wait.",
)
@click.option(
    "--restarts",
    type=Integers(0, 1000),
    default=0,
    show_default=True,
    help="How often within an hour an engine that died is started anew; then the server ends.",
)
@click.option(
    "--isolate-tenants",
    is_flag=True,
    help="Refuse requests without a salt: no two tenants share cached prefixes by mistake.",
)
@click.option(
    "--tool-call-parser",
    callback=gateway_parser,
    help="How the model writes tool calls; by default as its chat template shows.",
)
@click.option(
    "--reasoning-parser",
    callback=gateway_parser,
    help="How the model marks its reasoning; by default as its chat template shows.",
)
@click.option(
    "--chat-template",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="Jinja file used instead of the model's own.",
)
@click.option(
    "--api-key",
    envvar=API_KEY,
    help=f"Key that clients must send; set {API_KEY} to keep it out of the process list.",
)
@click.option(
    "--operator-key",
    envvar=OPERATOR_KEY,
    callback=operator_key,
    help=f"Key of who may change the gateway; set {OPERATOR_KEY} instead. Without it nobody may.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
def serve(folder: str | None, model: str | None, **values: Any) -> None:
    """Serve the model in FOLDER over HTTP, with the OpenAI and Anthropic APIs."""
    check_environment()
    if (folder is None) == (model is None):
        raise click.UsageError("name one model folder: ts serve FOLDER")
    path = folder or model or ""
    engine = engine_config(path, values)
    _default_parsers(path, values)
    asked_port = values["port"]
    values["port"] = _choose_port(values["host"], asked_port)
    with usage_errors():
        front = FrontConfig(
            model=path,
            served_model_name=values.pop("served_model_name") or Path(path).name,
            request_timeout=values["request_timeout"],
            max_queue=values.pop("max_queue"),
            drain_timeout=values.pop("drain_timeout"),
            isolate_tenants=values["isolate_tenants"],
            reasoning=values["reasoning_parser"] is not None,
            admin_port=_choose_admin_port(values.pop("admin_port"), values["port"]),
        )
    log_level, restarts = values.pop("log_level"), values.pop("restarts")
    moved = asked_port is None and values["port"] != _FIRST_PORT
    _run(engine, front, values, log_level, restarts, moved=moved)


def _run(
    engine: EngineConfig,
    front: FrontConfig,
    http_values: dict[str, Any],
    log_level: str,
    restarts: int,
    *,
    moved: bool,
) -> None:
    from tokenspeed.process import gateway, supervisor
    from tokenspeed.process.launch import LaunchPlan, private_ipc
    from tokenspeed.process.outlet import last_words

    http = gateway.GatewayConfig(**http_values)
    resolution = _resolve(engine)
    _warn(resolution, http)
    print_compact(row for row in resolution.table if row.role != "observer")  # see wired_rows
    click.echo(f"loading {front.served_model_name} on {resolution.platform.chosen}")
    where = gateway.address(http) + (f" ({_FIRST_PORT} is in use)" if moved else "")

    def announce(ready: dict[str, Any]) -> None:
        print_compact(wired_rows(ready))
        click.echo("each op's kernel and the reasons: ts explain start " + front.model)
        click.echo(
            f"TokenSpeed {version('tokenspeed-core')} serves {front.served_model_name} "
            f"at {where}; admin port {ready['admin_port']}; gRPC port {ready['grpc_port']}; "
            "Ctrl-C stops it"
        )
        click.echo(gateway.curl_line(http, front.served_model_name))

    with ExitStack() as stack:
        try:
            ipc = stack.enter_context(private_ipc())
        except OSError as error:
            raise click.ClickException(str(error)) from error
        plan = LaunchPlan(engine=engine, front=front, plugins=resolution.plan, ipc=ipc)
        try:
            supervisor.serve(plan, http, announce, log_level, restarts=restarts)
        except supervisor.ChildFailedError as error:
            last_words(f"\nts serve: {error}")
            sys.exit(1)
    last_words("stopped")


def _default_parsers(folder: str, values: dict[str, Any]) -> None:
    """Fill in what the operator does not say. What is wrong with the folder is found later."""
    from tokenspeed.cli.parsers import parsers_of
    from tokenspeed.front.chat_template import source_of, special_tokens_of
    from tokenspeed.front.model_folder import ModelFolder

    try:
        model = ModelFolder(folder)
        given = values["chat_template"]
        source = Path(given).read_text("utf-8") if given else source_of(model)
    except (OSError, ValueError):
        return
    try:
        found = parsers_of(source, special_tokens_of(model))
    except ValueError as error:
        click.echo(f"warning: {error}", err=True)
        return
    values["tool_call_parser"] = values["tool_call_parser"] or found.tool_call
    values["reasoning_parser"] = values["reasoning_parser"] or found.reasoning


def _resolve(engine: EngineConfig) -> Resolution:
    """The plugins for this model; what is missing is found before anything is started."""
    from tokenspeed.process.launch import resolve_engine

    resolution = resolve_engine(engine, read_config(engine.model)["architectures"])
    check_model(engine)
    return resolution


def _warn(resolution: Resolution, http: Any) -> None:
    for warning in resolution.warnings:
        click.echo(f"warning: {warning}", err=True)
    if http.api_key is None and http.host not in _LOOPBACK:
        click.echo(
            f"warning: whoever reaches {http.host} can use this server; set {API_KEY}",
            err=True,
        )


def _choose_port(host: str, asked: int | None) -> int:
    from tokenspeed.process.ports import is_free, next_free

    try:
        if asked is None:
            return next_free(host, _FIRST_PORT)
        if is_free(host, asked):
            return asked
    except OSError as error:
        raise click.UsageError(f"cannot listen on {host}: {error}") from error
    raise _taken("--port", host, asked)


def _choose_admin_port(asked: int, served: int) -> int:
    """0 stays: the front takes a free one."""
    from tokenspeed.process.ports import is_free

    if asked == served:
        raise click.UsageError(f"--port and --admin-port are both {asked}; choose another for one")
    if asked and not is_free(_ADMIN_HOST, asked):
        raise _taken("--admin-port", _ADMIN_HOST, asked)
    return asked


def _taken(option: str, host: str, port: int) -> click.UsageError:
    return click.UsageError(
        f"port {port} of {host} is in use or not allowed; choose another, "
        f"or leave {option} out to get a free one"
    )
