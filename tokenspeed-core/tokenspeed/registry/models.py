# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which model family serves which architecture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tokenspeed_sdk.contracts.model import ModelEntry

from tokenspeed.plugins.activate import load
from tokenspeed.plugins.errors import BrokenPromiseError, WheelAbsentError, did_you_mean
from tokenspeed.plugins.plan import Planned, PluginPlan
from tokenspeed.plugins.suggest import ARCHITECTURE_WHEELS


def find_model(plan: PluginPlan, architectures: Sequence[str]) -> tuple[str, Planned]:
    """The first architecture of a config.json that a plugin claims, and the claim's holder.

    Loads nothing. WheelAbsentError says which wheel to install.
    """
    claims = {claim: p for p in plan.of("model") for claim in p.claims}
    for architecture in architectures:
        if architecture in claims:
            return architecture, claims[architecture]
    names = " or ".join(architectures) or "(config.json names none)"
    wheels = [ARCHITECTURE_WHEELS[a] for a in architectures if a in ARCHITECTURE_WHEELS]
    raise WheelAbsentError(
        f"no installed distribution provides a model for architecture {names}",
        where='"architectures" in the model\'s config.json',
        fix=f"pip install {wheels[0]}" if wheels else did_you_mean(names, claims),
    )


def load_model(plan: PluginPlan, architectures: Sequence[str]) -> ModelEntry:
    """The model's EntryClass; imports only the module that claims the architecture."""
    architecture, planned = find_model(plan, architectures)
    module = load(planned)
    entries = getattr(module, "EntryClass", ())
    for entry in entries if isinstance(entries, tuple) else (entries,):
        if architecture in entry.architectures:
            return cast("ModelEntry", entry)
    raise BrokenPromiseError(
        f"{planned.owner} claims architecture {architecture}, but no EntryClass of it lists that",
        where=f'model "{planned.name}" ({planned.value})',
        fix=f"report it to the authors of {planned.distribution}",
    )
