# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Resolve: from what is installed, what was probed and what was asked to one plan, with reasons.

Pure: the same arguments give the same result or the same error, whatever the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tokenspeed_sdk.contracts.manifest import CONTRACTS
from tokenspeed_sdk.contracts.probe import Accept, Decline

from tokenspeed.plugins.discovery import InstalledPlugin
from tokenspeed.plugins.errors import (
    AmbiguousError,
    DeclinedError,
    DuplicateClaimError,
    LoadError,
    UnknownNameError,
    WheelAbsentError,
    did_you_mean,
)
from tokenspeed.plugins.plan import Planned, PluginPlan
from tokenspeed.plugins.suggest import DEFAULT_PLATFORM_WHEEL, PLATFORM_WHEELS

REFERENCE = "reference"
"""Name of the sdk's own kernel of every op; no plugin may claim it."""

_EMBEDDED_LAW = "embedded default: chosen only when no other platform is installed or named"


@dataclass(frozen=True)
class Choices:
    """What the operator said. ``pins``: op -> kernel name."""

    platform: str | None = None
    pins: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Probed:
    """What a platform answered. One that failed does not count as embedded: it blocks defaults."""

    platform: Planned
    embedded: bool
    outcome: Accept | Decline | LoadError


@dataclass(frozen=True)
class RunnerUp:
    """Who was not chosen, and why."""

    name: str
    owner: str
    why: str


@dataclass(frozen=True)
class Decision:
    """One choice with its reasons."""

    role: str
    chosen: str
    owner: str
    why: str
    runners_up: tuple[RunnerUp, ...]


@dataclass(frozen=True)
class Resolution:
    """The plan, why it is so, and what the operator should see."""

    plan: PluginPlan
    platform: Decision
    warnings: tuple[str, ...]


def resolve(
    plugins: Sequence[InstalledPlugin], probes: Sequence[Probed], choices: Choices
) -> Resolution:
    """Choose. ``probes`` holds the named platform, or all of them if none is named."""
    provisions = check_plugins(plugins)
    probes = sorted(probes, key=lambda probe: probe.platform)
    _check_pins(provisions, choices.pins)
    chosen, why = _choose_platform(provisions, probes, choices.platform)
    runners_up = tuple(
        RunnerUp(p.platform.name, p.platform.owner, _why_not(p, chosen))
        for p in probes
        if p.platform != chosen.platform
    )
    plan = PluginPlan.make(chosen.platform.name, provisions)
    decision = Decision("platform", chosen.platform.name, chosen.platform.owner, why, runners_up)
    warnings = tuple(str(p.outcome) for p in probes if isinstance(p.outcome, LoadError))
    return Resolution(plan, decision, warnings)


def check_plugins(plugins: Sequence[InstalledPlugin]) -> tuple[Planned, ...]:
    """All provisions, if every plugin is sound and no key is claimed twice; nothing is loaded yet.

    A plugin whose manifest is wrong is refused even where it might not have been chosen: what it
    would have claimed is unknown.
    """
    for plugin in plugins:
        if plugin.error is not None:
            raise plugin.error
    provisions = tuple(sorted(p for plugin in plugins for p in plugin.provisions))
    _refuse_duplicates("plugin id", ((plugin.id, plugin.owner) for plugin in plugins))
    for contract in CONTRACTS:
        own = [p for p in provisions if p.contract == contract]
        _refuse_duplicates(f"{contract} name", ((p.name, p.owner) for p in own))
        _refuse_duplicates(f"{contract} claim", ((c, p.owner) for p in own for c in p.claims))
    _refuse_reserved(provisions)
    return provisions


def _refuse_duplicates(kind: str, keys: Iterable[tuple[str, str]]) -> None:
    """Each key has one owner."""
    owners: dict[str, str] = {}
    for key, owner in keys:
        if key in owners:
            first = owners[key]
            both = dict.fromkeys(f"pip uninstall {held.split()[0]}" for held in (first, owner))
            raise DuplicateClaimError(
                f'the {kind} "{key}" is held twice: by {first} and by {owner}',
                where="manifests of the installed distributions",
                fix=f"remove one of them: {', or '.join(both)}",
            )
        owners[key] = owner


def _refuse_reserved(provisions: Sequence[Planned]) -> None:
    for provision in provisions:
        for claim in provision.claims:
            if provision.contract == "kernel" and claim.endswith(f":{REFERENCE}"):
                raise DuplicateClaimError(
                    f'the kernel claim "{claim}" of {provision.owner} is held by tokenspeed-sdk',
                    where="manifests of the installed distributions",
                    fix=f"pip uninstall {provision.distribution}",
                )


def _check_pins(provisions: Sequence[Planned], pins: Mapping[str, str]) -> None:
    """Pinned kernels exist. The sdk has references for ops that no plugin has a kernel for."""
    kernels: dict[str, set[str]] = {}
    for provision in provisions:
        if provision.contract == "kernel":
            for claim in provision.claims:
                op, _, kernel = claim.rpartition(":")
                kernels.setdefault(op, {REFERENCE}).add(kernel)
    for op, kernel in pins.items():
        if kernel == REFERENCE and op not in kernels:
            continue  # the kernel registry knows the sdk's ops; asking it here would import torch
        if op not in kernels:
            raise UnknownNameError(
                f'no plugin has a kernel for op "{op}"',
                where=f"pin {op}={kernel}",
                fix=did_you_mean(op, kernels),
            )
        if kernel not in kernels[op]:
            raise UnknownNameError(
                f'op {op} has no kernel "{kernel}"',
                where=f"pin {op}={kernel}",
                fix=did_you_mean(kernel, kernels[op]),
            )


def _choose_platform(
    provisions: Sequence[Planned], probes: Sequence[Probed], named: str | None
) -> tuple[Probed, str]:
    installed = [p.name for p in provisions if p.contract == "platform"]
    if named is not None:
        _check_platform_name(named, installed)
        probe = next(p for p in probes if p.platform.name == named)
        return _accepted_or_raise(probe), f"named by the operator; {_why(probe)}"
    if not installed:
        raise WheelAbsentError(
            "no platform is installed: there is no device to run on",
            where="installed distributions",
            fix=f"pip install {DEFAULT_PLATFORM_WHEEL}",
        )
    others = [p for p in probes if not p.embedded]
    candidates = others or list(probes)
    accepted = [p for p in candidates if isinstance(p.outcome, Accept)]
    if not accepted:
        raise _nothing_accepted(candidates, probes)
    best = max(accepted, key=_score)
    _refuse_tie([p for p in accepted if _score(p) == _score(best)])
    law = "" if others else "no other platform is installed; "
    return best, law + _why(best)


def _check_platform_name(named: str, installed: Sequence[str]) -> None:
    if named in installed:
        return
    wheel = PLATFORM_WHEELS.get(named, None if installed else DEFAULT_PLATFORM_WHEEL)
    raise UnknownNameError(
        f'no installed plugin provides a platform "{named}"',
        where=f"--platform {named}",
        fix=f"pip install {wheel}" if wheel else did_you_mean(named, installed),
    )


def _accepted_or_raise(probe: Probed) -> Probed:
    if isinstance(probe.outcome, LoadError):
        raise probe.outcome
    if isinstance(probe.outcome, Decline):
        raise _declined([probe], "choose another one, or put right what it says")
    return probe


def _nothing_accepted(candidates: Sequence[Probed], probes: Sequence[Probed]) -> Exception:
    """Never another platform because the installed ones failed or declined."""
    for probe in candidates:
        if isinstance(probe.outcome, LoadError):
            return probe.outcome
    usable = [p.platform.name for p in probes if p.embedded and isinstance(p.outcome, Accept)]
    fix = f"put it right, or say --platform {usable[0]}" if usable else "put right what they say"
    return _declined(candidates, fix)


def _declined(probes: Sequence[Probed], fix: str) -> DeclinedError:
    reasons = "; ".join(f"{p.platform.name} ({p.platform.owner}) says: {_why(p)}" for p in probes)
    return DeclinedError(f"no usable device: {reasons}", where="platform probe", fix=fix)


def _refuse_tie(best: Sequence[Probed]) -> None:
    if len(best) > 1:
        names = " and ".join(f"{p.platform.name} ({p.platform.owner})" for p in best)
        raise AmbiguousError(
            f"platforms {names} fit equally well",
            where="platform probe",
            fix=f"say which: {' or '.join(f'--platform {p.platform.name}' for p in best)}",
        )


def _score(probe: Probed) -> int:
    return probe.outcome.score if isinstance(probe.outcome, Accept) else 0


def _why(probe: Probed) -> str:
    return probe.outcome.what if isinstance(probe.outcome, LoadError) else probe.outcome.why


def _why_not(probe: Probed, chosen: Probed) -> str:
    if isinstance(probe.outcome, LoadError):
        return f"failed: {_why(probe)}"
    if isinstance(probe.outcome, Decline):
        return f"declined: {_why(probe)}"
    if probe.embedded and not chosen.embedded:
        return _EMBEDDED_LAW
    return f"score {_score(probe)} against {_score(chosen)}: {_why(probe)}"
