# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which platform: the named one, else the best that accepts. Never another one silently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenspeed_sdk.contracts.probe import Accept, Decline

from tokenspeed.plugins.choose.decision import Decision, RunnerUp
from tokenspeed.plugins.choose.lists import DENIED
from tokenspeed.plugins.choose.suggest import DEFAULT_PLATFORM_WHEEL, DEVICE_WHEELS, PLATFORM_WHEELS
from tokenspeed.plugins.choose.usable import LeftOut, Usable
from tokenspeed.plugins.discover.metadata import printable
from tokenspeed.plugins.errors import (
    AmbiguousError,
    DeclinedError,
    ListError,
    LoadError,
    PluginError,
    UnknownNameError,
    WheelAbsentError,
    did_you_mean,
)
from tokenspeed.plugins.plan import Planned

_EMBEDDED_LAW = "embedded default: chosen only when no other platform is installed or named"


@dataclass(frozen=True)
class Probed:
    """What a platform answered. One that failed does not count as embedded: it blocks defaults."""

    platform: Planned
    embedded: bool
    outcome: Accept | Decline | LoadError


def choose_platform(
    usable: Usable, probes: Sequence[Probed], named: str | None
) -> tuple[Planned, Decision]:
    """The platform, why, and why not the others."""
    probes = sorted(probes, key=lambda probe: probe.platform)
    if named is None:
        chosen, why = _choose_best(usable, probes)
    else:
        chosen, why = _take_named(usable, probes, named)
    platform = chosen.platform
    asked = {p.platform: _why_not(p, chosen) for p in probes}
    runners_up = tuple(
        RunnerUp(p.name, p.owner, asked.get(p, f"not asked: {platform.name} is named"))
        for p in usable.provisions
        if p.contract == "platform" and p != platform
    )
    return platform, Decision("platform", platform.name, platform.owner, why, runners_up)


def _take_named(usable: Usable, probes: Sequence[Probed], named: str) -> tuple[Probed, str]:
    for refused in usable.refused:
        if ("platform", named) in refused.offers:
            raise refused.error
    probe = next((p for p in probes if p.platform.name == named), None)
    if probe is None:
        raise _no_such_platform(usable, named)
    if isinstance(probe.outcome, LoadError):
        raise probe.outcome
    if isinstance(probe.outcome, Decline):
        raise _declined([probe], "choose another one, or put right what it says")
    return probe, f"named by the operator; {_why(probe)}"


def _no_such_platform(usable: Usable, named: str) -> PluginError:
    for left in _platforms_left_out(usable):
        if left.provision.name == named:
            return ListError(
                f"platform {named} of {left.provision.owner} is {left.why}",
                where=f"--platform {named}",
                fix="name another platform, or change the list",
            )
    installed = [p for p in usable.provisions if p.contract == "platform"]
    return UnknownNameError(
        f'no installed plugin provides a platform "{named}"',
        where=f"--platform {named}",
        fix=_instead(named, installed),
    )


def _instead(named: str, installed: Sequence[Planned]) -> str:
    """What to do about a platform that is not there; people often say its device type."""
    for platform in installed:
        if named in platform.devices:
            return f"say --platform {platform.name}: it is for {named}"
    known = DEVICE_WHEELS.get(named) or PLATFORM_WHEELS.get(named)
    wheel = known or (None if installed else DEFAULT_PLATFORM_WHEEL)
    return f"pip install {wheel}" if wheel else did_you_mean(named, (p.name for p in installed))


def _choose_best(usable: Usable, probes: Sequence[Probed]) -> tuple[Probed, str]:
    others = [p for p in probes if not p.embedded]
    accepted = [p for p in others if isinstance(p.outcome, Accept)]
    if not accepted:
        _refuse_to_guess(usable, others, probes)
        accepted = [p for p in probes if p.embedded and isinstance(p.outcome, Accept)]
        if not accepted:
            raise _nothing_accepted(usable, probes)
    best = max(accepted, key=_score)
    _refuse_tie([p for p in accepted if _score(p) == _score(best)])
    law = "no other platform is installed; " if best.embedded else ""
    return best, law + _why(best)


def _refuse_to_guess(usable: Usable, others: Sequence[Probed], probes: Sequence[Probed]) -> None:
    """The embedded default does not stand in for a platform that is broken or that declines."""
    defaults = [p.platform.name for p in probes if p.embedded and isinstance(p.outcome, Accept)]
    for probe in others:
        if isinstance(probe.outcome, LoadError):
            raise _blocking(probe.outcome, probe.platform.name, defaults)
    for refused in usable.refused:
        for contract, name in refused.offers:
            if contract == "platform":
                raise _blocking(refused.error, name, defaults)
    if others:
        fix = f"put it right, or say --platform {defaults[0]}" if defaults else ""
        raise _declined(others, fix or "put right what they say")


def _blocking(error: PluginError, name: str, defaults: Sequence[str]) -> PluginError:
    what = f"no other platform accepts this machine, and {name} may be the one for it"
    deny = f"--deny platform={name}"
    fix = f"or say --platform {defaults[0]}" if defaults else ""
    if defaults and deny not in error.fix:
        fix += f", or {deny}"
    return error.with_more(what, fix)


def _nothing_accepted(usable: Usable, probes: Sequence[Probed]) -> PluginError:
    if probes:
        return _declined(probes, "put right what they say")
    if left := _platforms_left_out(usable):
        reasons = "; ".join(f"{out.provision.name}: {out.why}" for out in left)
        allowable = [out for out in left if not out.why.startswith(DENIED)]
        fix = f"take {left[0].why.removeprefix(DENIED)} off the deny list"  # it beats any other
        if allowable:
            fix = f"allow one: --allow platform={allowable[0].provision.name}"
        return ListError(
            f"the lists leave no platform to run on: {reasons}",
            where="allow and deny lists",
            fix=fix,
        )
    return WheelAbsentError(
        "no platform is installed: there is no device to run on",
        where="installed distributions",
        fix=f"pip install {DEFAULT_PLATFORM_WHEEL}",
    )


def _platforms_left_out(usable: Usable) -> list[LeftOut]:
    return [left for left in usable.left_out if left.provision.contract == "platform"]


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
    if isinstance(probe.outcome, LoadError):
        return probe.outcome.reason
    return printable(probe.outcome.why)


def _why_not(probe: Probed, chosen: Probed) -> str:
    if isinstance(probe.outcome, LoadError):
        return f"failed: {_why(probe)}"
    if isinstance(probe.outcome, Decline):
        return f"declined: {_why(probe)}"
    if probe.embedded and not chosen.embedded:
        return _EMBEDDED_LAW
    return f"score {_score(probe)} against {_score(chosen)}: {_why(probe)}"
