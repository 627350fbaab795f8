# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts kernels: build a model's call sites without its weights, and show every choice."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tokenspeed.cli.environment import check_environment
from tokenspeed.cli.lists import list_options
from tokenspeed.cli.options import (
    AUTOTUNE,
    DRAFTER,
    DRAFTER_MODEL,
    DTYPES,
    FORMATS,
    KV_DTYPES,
    engine_config,
    model_folder,
    pins,
)
from tokenspeed.cli.table import print_table
from tokenspeed.cli.without_weights import ask_everything
from tokenspeed.plugins.errors import did_you_mean
from tokenspeed.registry.by_rows import text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.registry.contest import Contest
    from tokenspeed.registry.kernels import BoundSite


@click.group()
def kernels() -> None:
    """Which kernel serves which op, and why."""


@kernels.command()
@click.argument("words", nargs=-1, metavar="FOLDER [OP]")
@click.option("--model", metavar="FOLDER", help="Another way to name the folder.")
@click.option("--platform", metavar="NAME", help="Device type; see 'ts plugins list'.")
@click.option("--dtype", type=click.Choice(DTYPES), default="auto", show_default=True)
@click.option("--quantization", type=click.Choice(FORMATS), help="As for ts serve.")
@click.option(
    "--kv-cache-dtype", type=click.Choice(KV_DTYPES), default="auto", help="As for ts serve."
)
@click.option(
    "--pin", "pins", callback=pins, multiple=True, metavar="OP=KERNEL", help="As for ts serve."
)
@DRAFTER
@DRAFTER_MODEL
@click.option(
    "--autotune",
    type=click.Choice(AUTOTUNE),
    default="auto",
    show_default=True,
    help="As for ts serve: measures what was not measured before.",
)
@list_options
@click.option("--json", "as_json", is_flag=True, help="For programs, and for issues.")
def explain(words: tuple[str, ...], model: str | None, as_json: bool, **values: Any) -> None:
    """Every candidate for OP, or for all ops, at each distinct call site of a model."""
    check_environment()
    folder, op = _folder_and_op(words, model)
    start = ask_everything(engine_config(folder, values))
    registry = start.registry
    ops = {bound.site.op for bound in registry.bound}
    if op is not None and op not in ops:
        raise click.UsageError(f'the model never calls "{op}"; {did_you_mean(op, ops)}')
    found = registry.explain(op)
    if as_json:
        click.echo(json.dumps([_data(bound, count) for bound, count in found], indent=1))
    else:
        for bound, count in found:
            _show(bound, count)
    for row in start.refused:
        click.echo(f"{row.chosen}: {row.role} ({row.owner}): {row.why}", err=as_json)


def _folder_and_op(words: tuple[str, ...], model: str | None) -> tuple[str, str | None]:
    """FOLDER [OP], of which --model may have named the folder. UsageError, BadParameter."""
    given = words if model is None else (model, *words)
    if not given:
        raise click.UsageError("name the folder of a model: ts kernels explain FOLDER [OP]")
    if len(given) > 2:
        raise click.UsageError(f"{' '.join(given[2:])!r} is too much: FOLDER and one OP at most")
    context = click.get_current_context()
    folder = model_folder(context, context.command.params[0], given[0])
    assert folder is not None
    return folder, given[1] if len(given) == 2 else None


def _show(bound: BoundSite, count: int) -> None:
    site = bound.site
    traits = " ".join(f"{name}={value}" for name, value in site.traits.items())
    places = site.layer if count == 1 else f"{count} sites, such as {site.layer}"
    places = places if site.role == "main" else f"{site.role}: {places}"
    click.echo(f"{site.op}  {site.dtype}  {traits}  ({places})")
    for decision in bound.decisions:
        rows = f"{decision.rows} rows: " if decision.rows else ""
        click.echo(f"  * {rows}{decision.chosen} ({decision.owner}): {decision.why}")
        for runner_up in decision.runners_up:
            click.echo(f"    {runner_up.name} ({runner_up.owner}): {runner_up.why}")
    if any(contest.times for contest in bound.contests):
        _show_times(bound.contests)


def _show_times(contests: Sequence[Contest]) -> None:
    """Microseconds of every kernel that was measured, the chosen one with a star."""
    names = sorted({name for contest in contests for name in (*contest.times, contest.chosen)})
    rows = [
        (text(each.rows), *(_time(each, name) for name in names), each.source) for each in contests
    ]
    print_table(("rows", *(f"{name}, us" for name in names), "decided by"), rows)


def _time(contest: Contest, name: str) -> str:
    star = "*" if name == contest.chosen else ""
    timing = contest.times.get(name)
    if timing is None:
        return star
    if timing.us is None:
        return f"{'failed' if timing.failed else 'plans'}{star}"
    return f"{timing.us:.1f}{star}"


def _data(bound: BoundSite, count: int) -> dict[str, Any]:
    site = bound.site
    return {
        "op": site.op,
        "dtype": site.dtype,
        "role": site.role,
        "traits": dict(site.traits),
        "layer": site.layer,
        "sites": count,
        "decisions": [asdict(decision) for decision in bound.decisions],
        "contests": [
            {
                "rows": text(contest.rows),
                "decided_by": contest.source,
                "chosen": contest.chosen,
                "us": {name: timing.us for name, timing in contest.times.items()},
                "failed": {name: t.failed for name, t in contest.times.items() if t.failed},
            }
            for contest in bound.contests
        ],
    }
