# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which model family serves which architecture."""

from __future__ import annotations

from collections.abc import Sequence

from tokenspeed_sdk.contracts.model import ModelEntry

from tokenspeed.plugins.choose.architecture import find_holder
from tokenspeed.plugins.load.activate import broken, load, read_one
from tokenspeed.plugins.plan import Planned, PluginPlan


def find_model(plan: PluginPlan, architectures: Sequence[str]) -> tuple[str, Planned]:
    """The first architecture of a config.json that a plugin claims, and the claim's holder.

    Loads nothing. WheelAbsentError says which wheel to install.
    """
    return find_holder(plan.provisions, architectures)


def load_model(plan: PluginPlan, architectures: Sequence[str]) -> ModelEntry:
    """The model's EntryClass; imports only the module that claims the architecture."""
    architecture, planned = find_model(plan, architectures)
    return read_one(planned, read_entries)[architecture]


def read_entries(planned: Planned) -> dict[str, ModelEntry]:
    """Architecture to EntryClass. BrokenPromiseError unless every claimed one is there."""
    module = load(planned)
    entries = getattr(module, "EntryClass", ())
    found: dict[str, ModelEntry] = {}
    for entry in entries if isinstance(entries, tuple) else (entries,):
        found |= dict.fromkeys(entry.architectures, entry)
    for claim in planned.claims:
        if claim not in found:
            raise broken(
                planned, f"claims architecture {claim}, but no EntryClass of it lists that"
            )
    return found
