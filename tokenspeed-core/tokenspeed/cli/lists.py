# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Options --allow, --deny and --config of the commands that resolve plugins."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from tokenspeed.plugins.choose.lists import ALLOW, DENY, NONE, split
from tokenspeed.plugins.discover.toml import refuse_byte_order_mark
from tokenspeed.plugins.errors import did_you_mean

CONFIG = "TOKENSPEED_CONFIG"

Command = TypeVar("Command", bound=Callable[..., Any])


def list_options(command: Command) -> Command:
    """Adds --allow and --deny, with entries for ``plugins.choose.lists.gather``, and --config."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def export_lists(allow: tuple[str, ...] | None, deny: tuple[str, ...]) -> None:
    """Puts the lists into the environment, for a command that starts others."""
    if allow is not None:
        os.environ[ALLOW] = ";".join(allow)
    os.environ[DENY] = ";".join(deny)


def _allow(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...] | None:
    """The flags, else the environment, else the config file. None when none says anything."""
    if ctx.get_parameter_source(str(param.name)) == ParameterSource.COMMANDLINE:
        return value
    return split(os.environ.get(ALLOW, "")) or value or None


def _deny(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """All of them: what any of the three denies is denied."""
    in_file = ctx.lookup_default(str(param.name)) or ()
    return tuple(dict.fromkeys((*value, *split(os.environ.get(DENY, "")), *in_file)))


def _read_config(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    """Makes the file's values the command's defaults: flags and environment beat them."""
    if value is None or ctx.resilient_parsing:
        return
    try:
        text = value.read_text("utf-8")
        refuse_byte_order_mark(text)
        table = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{value} cannot be read: {error}") from error
    options = _options(ctx.command)
    ctx.default_map = {
        **(ctx.default_map or {}),
        **dict(_entry(options, key, entry, value) for key, entry in table.items()),
    }


def _options(command: click.Command) -> dict[str, click.Option]:
    """The options of a command by their long name without dashes in front."""
    return {
        name.removeprefix("--"): option
        for option in command.params
        if isinstance(option, click.Option) and option.name not in ("config", "help")
        for name in option.opts
        if name.startswith("--")
    }


def _entry(
    options: Mapping[str, click.Option], key: str, value: Any, file: Path
) -> tuple[str, Any]:
    """The parameter that a key of the file stands for, and its value."""
    option = options.get(key.replace("_", "-"))
    if option is None:
        raise click.BadParameter(
            f'{file} has "{key}", which is no option here; {did_you_mean(key, options)}'
        )
    parts = value if option.multiple and isinstance(value, list) else [value]
    if not all(_fits(option, part) for part in parts):
        raise click.BadParameter(f'{file} has "{key}" = {value!r}, which is no value of an option')
    if option.name == "allow" and not parts:
        parts = [NONE]  # a list of what may be used, with nothing in it
    return str(option.name), tuple(map(str, parts)) if option.multiple else value


def _fits(option: click.Option, value: Any) -> bool:
    """Whether it has the option's type. A text may hold any: it is converted as a flag's is."""
    if isinstance(value, bool) or option.is_flag:
        return isinstance(value, bool) and option.is_flag
    if isinstance(option.type, click.types.IntParamType):
        return isinstance(value, int | str)
    return isinstance(value, str | int) or (isinstance(value, float) and isfinite(value))


_OPTIONS = (
    click.option(
        "--allow",
        multiple=True,
        callback=_allow,
        metavar="CONTRACT=NAME[,NAME]",
        help="Of this contract's plugins use only these; 'none' for no plugin of any contract, "
        f"CONTRACT=none for none of one. Repeatable; also {ALLOW}.",
    ),
    click.option(
        "--deny",
        multiple=True,
        callback=_deny,
        metavar="CONTRACT=NAME[,NAME]",
        help=f"Do not use these plugins, whatever is allowed. Repeatable; also {DENY}.",
    ),
    click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar=CONFIG,
        is_eager=True,
        expose_value=False,
        callback=_read_config,
        help="TOML file whose keys are options of this command; 'allow = []' is 'none'. "
        f"Also {CONFIG}.",
    ),
)
