# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The environment variables that we read. Any other with our prefix is a mistake and is refused."""

from __future__ import annotations

import os

import click

from tokenspeed.cli.lists import CONFIG
from tokenspeed.plugins.choose.lists import ALLOW, DENY
from tokenspeed.plugins.errors import did_you_mean

PREFIX = "TOKENSPEED_"

API_KEY = "TOKENSPEED_API_KEY"
OPERATOR_KEY = "TOKENSPEED_OPERATOR_KEY"

VARIABLES = {
    API_KEY: "key that clients of 'ts serve' must send; hidden from the process list",
    OPERATOR_KEY: "key of who may change the gateway of 'ts serve': its servers and caches",
    ALLOW: "as --allow, entries separated by ';'",
    DENY: "as --deny, entries separated by ';'",
    CONFIG: "as --config",
}

REMOVED: dict[str, str] = {}
"""Variables of earlier versions -> what to use instead."""


def check_environment() -> None:
    """UsageError for a variable that would silently do nothing."""
    for name in sorted(os.environ):
        if name in REMOVED:
            raise click.UsageError(
                f"environment variable {name} is no longer read: {REMOVED[name]}. "
                f"Then: unset {name}"
            )
        if name.startswith(PREFIX) and name not in VARIABLES:
            raise click.UsageError(
                f"unknown environment variable {name}: {did_you_mean(name, VARIABLES)} "
                f"Correct it, or: unset {name}"
            )
