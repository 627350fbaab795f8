# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts grammar: whether a schema or a grammar can be honoured, by which backend, at what cost."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokenspeed.cli.environment import check_environment
from tokenspeed.cli.lists import list_options
from tokenspeed.cli.options import model_folder
from tokenspeed.cli.table import print_table
from tokenspeed.plugins.choose.lists import gather
from tokenspeed.plugins.choose.usable import known_names, sort_out
from tokenspeed.plugins.discover.discovery import discover
from tokenspeed.plugins.plan import PluginPlan

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.grammar import Constraint, Vocabulary

    from tokenspeed.grammar.backends import Backends

KINDS = ("json_schema", "regex", "ebnf", "structural_tag")
_OF_JSON = ("json_schema", "structural_tag")
BY_SUFFIX = {".regex": "regex", ".re": "regex", ".ebnf": "ebnf", ".gbnf": "ebnf"}


@click.group()
def grammar() -> None:
    """Constraints on answers: schemas, regular expressions, grammars."""


@grammar.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    help="What FILE holds; else by its name: .json, .regex, .ebnf.",
)
@click.option(
    "--model",
    metavar="FOLDER",
    callback=model_folder,
    help="Compile for the tokens of this model; else for single bytes.",
)
@list_options
def check(
    file: str,
    kind: str | None,
    model: str | None,
    allow: tuple[str, ...] | None,
    deny: tuple[str, ...],
) -> None:
    """Which backend would take the constraint in FILE, and what the others do not honour.

    Ends with status 1 when none takes it.
    """
    check_environment()
    text = _read(file)
    kind = kind or _kind(file, text)
    if kind in _OF_JSON:
        _check_json(file, text)
    if kind == "regex":
        text = text.removesuffix("\n")  # an editor's
    found = discover()
    lists = gather(allow, deny)
    lists.check_names(known_names(found))
    provisions = [p for p in sort_out(found, lists).provisions if p.contract == "grammar"]
    if not provisions:
        raise click.ClickException("no grammar backend: pip install tokenspeed-llguidance")
    from tokenspeed_sdk.contracts.grammar import Constraint

    from tokenspeed.grammar.backends import Backends

    vocabulary = cache(lambda: _vocabulary(model))
    backends = Backends(PluginPlan.make("", provisions, lists), vocabulary)
    constraint = Constraint(kind, text)
    owners = {p.name: p.owner for p in provisions}
    rows = [(mark, name, owners[name], said) for mark, name, said in _ask(backends, constraint)]
    tokens = len(vocabulary().tokens)
    click.echo(f"{kind} of {len(text)} characters, for {tokens} tokens")
    print_table(("", "backend", "distribution", "what it says"), rows)
    if not any(mark for mark, *_ in rows):
        raise click.ClickException("no backend honours it: a request with it would be refused")


def _ask(backends: Backends, constraint: Constraint) -> Iterator[tuple[str, str, str]]:
    """(mark of the first that compiles it, backend, what came of it), the best first."""
    from tokenspeed_sdk.contracts.grammar import GrammarError
    from tokenspeed_sdk.contracts.probe import Decline

    mark = "*"
    for name, verdict in backends.verdicts(constraint).items():
        if isinstance(verdict, Decline):
            yield "", name, verdict.why
            continue
        try:
            compiled = backends.compile_by(name, constraint)
            start = time.perf_counter()
            backends.library(name).load(compiled.data).matcher()
        except GrammarError as error:
            yield "", name, str(error).partition("\n")[0]
        else:
            loaded = time.perf_counter() - start
            yield (
                mark,
                name,
                f"compiles in {compiled.seconds * 1e3:.1f} ms to {len(compiled.data)} bytes, "
                f"which load in {loaded * 1e3:.1f} ms",
            )
            mark = ""


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{_named(file)} is not UTF-8 text; convert it") from error


def _check_json(file: str, text: str) -> None:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"{_named(file)} is not JSON: {error}") from error


def _named(file: str) -> str:
    return "standard input" if file == "-" else file


def _kind(file: str, text: str) -> str:
    suffix = Path(file).suffix
    if suffix in BY_SUFFIX:
        return BY_SUFFIX[suffix]
    if suffix != ".json":
        raise click.UsageError(
            f"the name of {_named(file)} does not say what it holds; give --kind, one of "
            f"{', '.join(KINDS)}"
        )
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return "json_schema"
    tagged = isinstance(found, dict) and found.get("type") == "structural_tag"
    return "structural_tag" if tagged else "json_schema"


def _vocabulary(model: str | None) -> Vocabulary:
    from tokenspeed_sdk.contracts.grammar import Vocabulary

    if model is None:
        return Vocabulary((*(bytes([byte]) for byte in range(256)), b""), end_ids=(256,))
    from tokenspeed.front.model_folder import ModelFolder
    from tokenspeed.grammar.vocabulary import read_vocabulary

    folder = ModelFolder(model)
    try:
        return read_vocabulary(folder, int(folder.config["vocab_size"]))
    except (OSError, ValueError, KeyError) as error:
        raise click.ClickException(f"the tokens of {model} cannot be read: {error}") from error
