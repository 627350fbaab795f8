# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts kernels: build a model's call sites without its weights, and show every choice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tokenspeed.cli.options import engine_config, model_folder, pins, read_config
from tokenspeed.plugins.errors import did_you_mean

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.platform import Device

    from tokenspeed.config import EngineConfig
    from tokenspeed.plugins.plan import PluginPlan
    from tokenspeed.registry.kernels import BoundSite, KernelRegistry


@click.group()
def kernels() -> None:
    """Which kernel serves which op, and why."""


@kernels.command()
@click.argument("words", nargs=-1, metavar="FOLDER [OP]")
@click.option("--model", metavar="FOLDER", help="Another way to name the folder.")
@click.option("--platform", metavar="NAME", help="Device type; see 'ts plugins list'.")
@click.option("--dtype", default="auto", show_default=True)
@click.option(
    "--pin", "pins", callback=pins, multiple=True, metavar="OP=KERNEL", help="As for ts serve."
)
def explain(
    words: tuple[str, ...],
    model: str | None,
    platform: str | None,
    dtype: str,
    pins: dict[str, str],
) -> None:
    """Every candidate for OP, or for all ops, at each distinct call site of a model."""
    folder, op = _folder_and_op(words, model)
    engine = engine_config(folder, {"platform": platform, "dtype": dtype, "pins": pins})
    registry = _build_without_weights(engine)
    ops = {bound.site.op for bound in registry.bound}
    if op is not None and op not in ops:
        raise click.UsageError(f'the model never calls "{op}"; {did_you_mean(op, ops)}')
    for bound, count in registry.explain(op):
        _show(bound, count)


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


def _build_without_weights(engine: EngineConfig) -> KernelRegistry:
    """The registry after every question that an engine would ask. Loads plugins and torch."""
    from tokenspeed.plugins.host import load_platform, resolve_installed

    plan = resolve_installed(engine.platform, engine.pins).plan
    platform = load_platform(plan)
    platform.prepare(engine.threads)
    from tokenspeed.registry.kernels import KernelRegistry

    registry = KernelRegistry(plan, engine.pins)
    try:
        _ask(registry, plan, platform.open(), engine)
    except KeyError as error:
        raise click.ClickException(f"the model's config.json lacks {error}") from error
    except (LookupError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    registry.check_pins()
    return registry


def _ask(registry: KernelRegistry, plan: PluginPlan, device: Device, engine: EngineConfig) -> None:
    """Bind the call sites of model and executor; parameters are made on no device."""
    from tokenspeed_sdk.modeling import BuildContext

    from tokenspeed.engine.sampling import Sampler
    from tokenspeed.registry.models import load_model

    config = read_config(engine.model)
    entry = load_model(plan, config["architectures"])
    settings = entry.read_config(config)
    context = BuildContext(
        kernels=registry,
        device=device.capabilities,
        torch_device="meta",
        dtype=device.capabilities.dtypes[0] if engine.dtype == "auto" else engine.dtype,
        max_model_len=config["max_position_embeddings"],
        page_size=engine.page_size,
    )
    entry.build(settings, context)
    Sampler(context, config["vocab_size"])
    context.bind("page_table_update@1", "executor.page_tables")  # as in engine/device_step.py


def _show(bound: BoundSite, count: int) -> None:
    site, decision = bound.site, bound.decision
    traits = " ".join(f"{name}={value}" for name, value in site.traits.items())
    places = site.layer if count == 1 else f"{count} sites, such as {site.layer}"
    click.echo(f"{site.op}  {site.dtype}  {traits}  ({places})")
    click.echo(f"  * {decision.chosen} ({decision.owner}): {decision.why}")
    for runner_up in decision.runners_up:
        click.echo(f"    {runner_up.name} ({runner_up.owner}): {runner_up.why}")
