# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What an engine would choose for a model, found by building it without its weights."""

from __future__ import annotations

from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from tokenspeed.cli.options import read_config
from tokenspeed.plugins.choose.decision import REFUSED
from tokenspeed.plugins.load.stdout import stdout_to_stderr

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.platform import Device

    from tokenspeed.config import EngineConfig
    from tokenspeed.plugins.choose.decision import Decision
    from tokenspeed.plugins.choose.resolve import Resolution
    from tokenspeed.registry.kernels import KernelRegistry


@dataclass(frozen=True)
class Start:
    """All choices of a launch."""

    resolution: Resolution
    registry: KernelRegistry

    @property
    def table(self) -> list[Decision]:
        """Every row: platform, model, kernels, and then what is observed, refused or left out."""
        found = self.resolution
        return [*found.chosen, *self.registry.table(), *found.others]

    @property
    def refused(self) -> list[Decision]:
        """The rows of plugins that are broken, before or after their code was loaded."""
        others = (row for row in self.resolution.others if row.chosen == REFUSED)
        return [*self.registry.refused, *others]


def ask_everything(engine: EngineConfig) -> Start:
    """Every question that an engine would ask. Loads plugins and torch.

    ClickException when the model cannot be built, PluginError when a plugin that it stands on is
    broken.
    """
    with stdout_to_stderr():
        return _ask_everything(engine)


def _ask_everything(engine: EngineConfig) -> Start:
    from tokenspeed.plugins.host import load_platform
    from tokenspeed.process.launch import resolve_engine

    config = read_config(engine.model)
    resolution = resolve_engine(engine, config["architectures"])
    platform = load_platform(resolution.plan)
    platform.prepare(engine.threads)
    from tokenspeed.registry.autotune import Autotuner
    from tokenspeed.registry.candidates import NoKernelError
    from tokenspeed.registry.kernels import KernelRegistry

    device = platform.open()
    tuner = Autotuner.on(device, engine.autotune)
    registry = KernelRegistry(resolution.plan, engine.pins, resolution.refused, tuner=tuner)
    try:
        with closing(tuner) if tuner else nullcontext():
            _bind_all(registry, resolution, device, engine)
    except KeyError as error:
        raise click.ClickException(f"the model's config.json lacks {error}") from error
    except (NoKernelError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    registry.check_pins()
    registry.check_wired()
    return Start(resolution, registry)


def _bind_all(
    registry: KernelRegistry, resolution: Resolution, device: Device, engine: EngineConfig
) -> None:
    """Bind the call sites of model, drafter and executor; parameters are made on no device."""
    from tokenspeed_sdk.modeling import BuildContext

    from tokenspeed.engine.draft_model import DraftFolder
    from tokenspeed.engine.drafters import choose_drafter
    from tokenspeed.engine.formats import Formats
    from tokenspeed.engine.step_kernels import bind_step_kernels
    from tokenspeed.registry.models import load_model

    config = read_config(engine.model)
    entry = load_model(resolution.plan, config["architectures"])
    settings = entry.read_config(config)
    drafter = choose_drafter(engine, resolution.plan.of("drafter"))
    drafts = DraftFolder.of(drafter, engine, config)
    context = BuildContext(
        kernels=registry,
        device=device.capabilities,
        torch_device="meta",
        max_model_len=config["max_position_embeddings"],
        page_size=engine.page_size,
        row_tokens=engine.row_tokens,
        taps=() if drafts is None else drafts.taps,
        **asdict(Formats.choose(engine, config, device.capabilities)),
    )
    model = entry.build(settings, context)
    if drafts is not None:
        drafts.build(context, model)
    bind_step_kernels(context, config["vocab_size"])
