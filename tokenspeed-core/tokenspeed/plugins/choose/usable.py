# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""From what is installed to what may be used: sound, allowed, and each key held once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokenspeed_sdk.contracts.manifest import CONTRACTS

from tokenspeed.plugins.choose.lists import Lists
from tokenspeed.plugins.discover.discovery import InstalledPlugin
from tokenspeed.plugins.errors import DuplicateClaimError, PluginError
from tokenspeed.plugins.plan import Planned


@dataclass(frozen=True)
class LeftOut:
    """Something sound that this launch does not use, and why."""

    provision: Planned
    why: str


@dataclass(frozen=True)
class Refused:
    """A plugin that cannot be used.

    Attributes:
        offers: (contract, name) that its distribution has entry points for, denied ones left out.
    """

    plugin: InstalledPlugin
    error: PluginError
    offers: tuple[tuple[str, str], ...]

    def offers_any(self, contract: str) -> bool:
        return any(offered == contract for offered, _ in self.offers)


@dataclass(frozen=True)
class Usable:
    """What is installed, sorted. Nothing of it was loaded."""

    provisions: tuple[Planned, ...]
    left_out: tuple[LeftOut, ...]
    refused: tuple[Refused, ...]


def sort_out(plugins: Sequence[InstalledPlugin], lists: Lists) -> Usable:
    """Apply the lists. DuplicateClaimError: two that may be used hold the same key.

    Of kernels this is asked later: it matters only among those for the platform's devices. A
    broken plugin is a value here: whether it matters depends on what is chosen.
    """
    provisions, left_out, refused = [], [], []
    for plugin in plugins:
        if plugin.error is not None:
            refused += _refused(plugin, plugin.error, lists)
            continue
        for provision in plugin.provisions:
            why = lists.refusal(provision.contract, provision.name, plugin.id)
            if why is None:
                provisions.append(provision)
            else:
                left_out.append(LeftOut(provision, why))
    refuse_conflicts(plugins, [p for p in provisions if p.contract != "kernel"], used=provisions)
    return Usable(
        tuple(sorted(provisions)),
        tuple(sorted(left_out, key=lambda left: left.provision)),
        tuple(sorted(refused, key=lambda r: (r.plugin.id, r.plugin.distribution))),
    )


def _refused(plugin: InstalledPlugin, error: PluginError, lists: Lists) -> list[Refused]:
    """Nothing if the operator denied all that it offers: then it does not matter any more."""
    offers = tuple(
        (contract, name)
        for contract, name in plugin.offers
        if lists.refusal(contract, name, plugin.id) is None
    )
    if plugin.offers:
        matters = bool(offers)
    else:  # what it meant to provide is not known: its id in any list will do
        matters = all(lists.refusal(contract, plugin.id) is None for contract in CONTRACTS)
    return [Refused(plugin, error, offers)] if matters else []


def known_names(plugins: Iterable[InstalledPlugin]) -> dict[str, set[str]]:
    """Contract -> all names that a list may say: of provisions, and ids of their plugins."""
    known: dict[str, set[str]] = {contract: set() for contract in CONTRACTS}
    for plugin in plugins:
        for contract, name in plugin.offers:
            known[contract] |= {name, plugin.id}
        if not plugin.offers:  # broken, or empty: what it meant to provide is not known
            for names in known.values():
                names.add(plugin.id)
    return known


def conflicts(
    plugins: Sequence[InstalledPlugin],
    provisions: Sequence[Planned],
    used: Sequence[Planned] | None = None,
) -> list[DuplicateClaimError]:
    """Every key that is held twice, with both owners.

    Args:
        used: provisions of the plugins whose ids count; None for these provisions.
    """
    provisions = sorted(provisions)
    named = {(p.plugin, p.distribution) for p in (provisions if used is None else used)}
    ids = [(p.id, p.owner) for p in plugins if (p.id, p.distribution) in named]
    found = _duplicates("plugin id", ids)
    for contract in CONTRACTS:
        own = [p for p in provisions if p.contract == contract]
        found += _duplicates(f"{contract} name", [(p.name, p.owner) for p in own])
        claims = [(c, p.owner) for p in own for c in p.claims]
        found += _duplicates(f"{contract} claim", claims)
    return found


def refuse_conflicts(
    plugins: Sequence[InstalledPlugin],
    provisions: Sequence[Planned],
    used: Sequence[Planned] | None = None,
) -> None:
    """The first of the conflicts, raised."""
    for conflict in conflicts(plugins, provisions, used):
        raise conflict


def _duplicates(kind: str, keys: Sequence[tuple[str, str]]) -> list[DuplicateClaimError]:
    """Each key has one owner."""
    found, owners = [], dict[str, str]()
    for key, owner in keys:
        if key in owners:
            found.append(_held_twice(kind, key, owners[key], owner))
        owners.setdefault(key, owner)
    return found


def _held_twice(kind: str, key: str, first: str, second: str) -> DuplicateClaimError:
    both = dict.fromkeys(f"pip uninstall {owner.split()[0]}" for owner in (first, second))
    error = DuplicateClaimError(
        f'the {kind} "{key}" is held twice: by {first} and by {second}',
        where="manifests of the installed distributions",
        fix=f"remove one of them: {', or '.join(both)}; or deny one by its plugin's id",
    )
    error.owners = (first, second)
    return error
