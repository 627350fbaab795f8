# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The command "ts". Subcommands are imported when they are run, so that the command itself starts
at once and works with every plugin broken."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any, NamedTuple

import click

from tokenspeed.plugins.errors import PluginError, did_you_mean


class _Lazy(NamedTuple):
    target: str  # "module:attribute"
    help: str


COMMANDS = {
    "serve": _Lazy("tokenspeed.cli.serve:serve", "Serve a model over HTTP."),
    "chat": _Lazy("tokenspeed.cli.chat:chat", "Talk to a server."),
    "generate": _Lazy("tokenspeed.cli.generate:generate", "Generate without a server."),
    "batch": _Lazy("tokenspeed.cli.batch:batch", "Answer a file of requests."),
    "bench": _Lazy("tokenspeed.cli.bench:bench", "Measure."),
    "models": _Lazy("tokenspeed.cli.models:models", "What the installed plugins can run."),
    "plugins": _Lazy(
        "tokenspeed.cli.plugins:plugins", "What is installed, and whether it is sound."
    ),
    "kernels": _Lazy("tokenspeed.cli.kernels:kernels", "Which kernel serves which op, and why."),
    "grammar": _Lazy(
        "tokenspeed.cli.grammar:grammar", "Whether a schema or a grammar can be honoured."
    ),
    "explain": _Lazy("tokenspeed.cli.explain:explain", "What a launch would choose, and why."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f'there is no command "{args[0]}"; {did_you_mean(args[0], COMMANDS)}')
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help texts stand here: asking the commands would import them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PluginError as error:  # it says all that a person needs
            raise click.ClickException(str(error)) from error


def _print_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"ts {version('tokenspeed-core')}")
        ctx.exit()


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def main() -> None:
    """TokenSpeed: the inference engine that coding agents run on."""
