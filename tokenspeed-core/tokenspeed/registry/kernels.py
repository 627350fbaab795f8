# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which kernel serves which call site, and why.

    registry = KernelRegistry(plan.plugins, plan.engine.pins)
    model = entry.build(config, BuildContext(kernels=registry, ...))
    registry.check_pins()          # every pin met a call site

The highest score wins, ties go by name, the sdk's reference comes last. A pin is honoured or
refused, never replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenspeed_sdk.contracts.kernel import Binding, BoundKernel, CallSite, Kernel
from tokenspeed_sdk.contracts.probe import Accept, Decline, Verdict
from tokenspeed_sdk.ops import OPS, Op

from tokenspeed.plugins.activate import call
from tokenspeed.plugins.errors import BrokenPromiseError, LoadError, UnknownNameError, did_you_mean
from tokenspeed.plugins.plan import Planned, PluginPlan
from tokenspeed.plugins.resolve import REFERENCE, Decision, RunnerUp

_log = logging.getLogger(__name__)

_KERNEL_METHODS = ("accept", "bind", "pack_weight")


@dataclass(frozen=True)
class BoundSite:
    """A call site and the decision that was taken for it."""

    site: CallSite
    decision: Decision


@dataclass(frozen=True)
class _Candidate:
    """A kernel, or the error that stands for it when its plugin did not load.

    Attributes:
        needed: whether the launch stands on its plugin, so that an error in it is fatal.
    """

    name: str
    owner: str
    kernel: Kernel | LoadError
    needed: bool


@dataclass(frozen=True)
class _Judged:
    """What a candidate said to one site. ``score`` is None when it does not serve it."""

    candidate: _Candidate
    score: int | None
    reason: str


class KernelRegistry:
    """Implements the sdk's KernelResolver over the kernels of a plan and the sdk's references.

    Attributes:
        bound: every site that was asked for, in order, with its decision.
    """

    def __init__(self, plan: PluginPlan, pins: Mapping[str, str]) -> None:
        """LoadError, BrokenPromiseError: a plugin that the launch stands on is broken."""
        self.bound: list[BoundSite] = []
        self._pins = dict(pins)
        self._candidates: dict[str, list[_Candidate]] = {
            name: [_Candidate(REFERENCE, "tokenspeed-sdk", _Reference(op), True)]
            for name, op in OPS.items()
        }
        for planned in plan.of("kernel"):
            for op, candidate in _load_kernels(planned, _is_needed(planned, plan, self._pins)):
                self._candidates.setdefault(op, []).append(candidate)

    def bind(self, site: CallSite) -> Binding:
        """The kernel for a site. LookupError names the op, the site and every refusal."""
        judged = [_judge(candidate, site) for candidate in self._candidates.get(site.op, [])]
        pin = self._pins.get(site.op)
        fit = [j for j in judged if j.score is not None and pin in (None, j.candidate.name)]
        if not fit:
            raise LookupError(_no_kernel(site, judged, pin))
        chosen = min(fit, key=_rank)
        kernel = chosen.candidate.kernel
        assert not isinstance(kernel, LoadError)  # those have no score
        try:
            call_kernel = kernel.bind(site)
        except Exception as error:
            error.add_note(f"kernel {kernel.name} of {chosen.candidate.owner} at {site.layer}")
            raise
        if not callable(call_kernel):
            raise _broken_kernel(chosen.candidate, site, "bind", call_kernel, "a callable")
        self.bound.append(BoundSite(site, _decide(site, chosen, judged, pin)))
        return Binding(kernel.name, call_kernel, lambda weight: kernel.pack_weight(site, weight))

    def check_pins(self) -> None:
        """Call once the model is built. UnknownNameError: a pin whose op the model never calls."""
        ops = {bound.site.op for bound in self.bound}
        for op, kernel in self._pins.items():
            if op not in ops:
                raise UnknownNameError(
                    f'the model never calls op "{op}"',
                    where=f"pin {op}={kernel}",
                    fix=did_you_mean(op, ops),
                )

    def explain(self, op: str | None = None) -> list[tuple[BoundSite, int]]:
        """The distinct decisions, each with the number of call sites that it stands for."""
        distinct: dict[Any, list[BoundSite]] = {}
        for bound in self.bound:
            site = bound.site
            if op in (None, site.op):
                key = (site.op, site.dtype, site.role, tuple(sorted(site.traits.items())))
                distinct.setdefault((key, bound.decision), []).append(bound)
        return [(group[0], len(group)) for group in distinct.values()]


class _Reference:
    """The sdk's definition of an op as a kernel that takes every site."""

    def __init__(self, op: Op) -> None:
        self._op = op
        self.op = op.name
        self.name = REFERENCE

    def accept(self, site: CallSite) -> Verdict:
        return Accept(0, "the op's definition in plain torch; slow, chosen last")

    def bind(self, site: CallSite) -> BoundKernel:
        return self._op.bind_reference(site)

    def pack_weight(self, site: CallSite, weight: Any) -> Any:
        return weight


def _is_needed(planned: Planned, plan: PluginPlan, pins: Mapping[str, str]) -> bool:
    """Whether a broken plugin must stop the launch: it is the platform's own, or it is pinned."""
    platforms = {p.distribution for p in plan.of("platform") if p.name == plan.platform}
    pinned = {f"{op}:{kernel}" for op, kernel in pins.items()}
    return planned.distribution in platforms or bool(pinned & set(planned.claims))


def _load_kernels(planned: Planned, needed: bool) -> list[tuple[str, _Candidate]]:
    """(op, candidate) for each kernel of a plugin, exactly as its manifest claims them."""
    try:
        kernels = _kernels_of(planned, call(planned))
    except LoadError as error:
        if needed:
            raise
        _log.warning("kernels of %s are left out:\n%s", planned.owner, error)
        claims = [claim.rpartition(":") for claim in planned.claims]
        return [(op, _Candidate(name, planned.owner, error, needed)) for op, _, name in claims]
    offered = sorted(f"{kernel.op}:{kernel.name}" for kernel in kernels)
    if offered != sorted(planned.claims):
        differing = ", ".join(sorted(set(offered) ^ set(planned.claims))) or "one of them twice"
        raise _broken_provider(
            planned, f"offers other kernels than its manifest claims: {differing}"
        )
    return [(k.op, _Candidate(k.name, planned.owner, k, needed)) for k in kernels]


def _kernels_of(planned: Planned, provided: Any) -> tuple[Kernel, ...]:
    """What a provider returned, if it is what the contract says."""
    if not isinstance(provided, tuple | list):
        raise _broken_provider(planned, f"must return a tuple of kernels, not {provided!r}")
    for kernel in provided:
        named = all(isinstance(getattr(kernel, name, None), str) for name in ("op", "name"))
        whole = all(callable(getattr(kernel, name, None)) for name in _KERNEL_METHODS)
        if not (named and whole):
            raise _broken_provider(
                planned,
                f"returned {kernel!r}, which is no kernel: "
                f"that has op, name, {', '.join(_KERNEL_METHODS)}",
            )
    return tuple(provided)


def _broken_provider(planned: Planned, what: str) -> BrokenPromiseError:
    where = f'kernel "{planned.name}" ({planned.value})'
    return _broken(planned.owner, what, where)


def _broken_kernel(
    candidate: _Candidate, site: CallSite, method: str, answer: object, wanted: str
) -> BrokenPromiseError:
    what = f"has a kernel whose {method} returned {answer!r} instead of {wanted}"
    return _broken(candidate.owner, what, f"kernel {candidate.name} for {site.op} at {site.layer}")


def _broken(owner: str, what: str, where: str) -> BrokenPromiseError:
    distribution = owner.split(maxsplit=1)[0]
    return BrokenPromiseError(
        f"{owner} {what}",
        where=where,
        fix=f"report it to the authors of {distribution}, or remove it: "
        f"pip uninstall {distribution}",
    )


def _judge(candidate: _Candidate, site: CallSite) -> _Judged:
    if isinstance(candidate.kernel, LoadError):
        return _Judged(candidate, None, f"failed: {candidate.kernel.what}")
    try:
        verdict = candidate.kernel.accept(site)
    except Exception as error:
        error.add_note(f"kernel {candidate.name} of {candidate.owner} at {site.layer}")
        if candidate.needed:
            raise
        _log.warning("a kernel is left out", exc_info=error)
        return _Judged(candidate, None, f"failed: {type(error).__name__}: {error}")
    if isinstance(verdict, Decline):
        return _Judged(candidate, None, f"declined: {verdict.why}")
    if not isinstance(verdict, Accept) or not isinstance(verdict.score, int):
        wanted = "an Accept with an integer score or a Decline"
        raise _broken_kernel(candidate, site, "accept", verdict, wanted)
    return _Judged(candidate, verdict.score, verdict.why)


def _rank(judged: _Judged) -> tuple[bool, int, str]:
    """Sorts the best first: references last, then by score, then by name."""
    name = judged.candidate.name
    return name == REFERENCE, -(judged.score or 0), name


def _decide(
    site: CallSite, chosen: _Judged, judged: Sequence[_Judged], pin: str | None
) -> Decision:
    others = sorted((j for j in judged if j is not chosen), key=_rank)
    return Decision(
        role=site.op,
        chosen=chosen.candidate.name,
        owner=chosen.candidate.owner,
        why=f"pinned; {chosen.reason}" if pin else f"score {chosen.score}: {chosen.reason}",
        runners_up=tuple(
            RunnerUp(j.candidate.name, j.candidate.owner, _why_not(j, pin)) for j in others
        ),
    )


def _why_not(judged: _Judged, pin: str | None) -> str:
    if judged.score is None:
        return judged.reason
    law = f"{pin} is pinned" if pin else "outranked"
    return f"{law}; score {judged.score}: {judged.reason}"


def _no_kernel(site: CallSite, judged: Sequence[_Judged], pin: str | None) -> str:
    subject = f'the pinned kernel "{pin}" does not serve' if pin else "no kernel serves"
    traits = ", ".join(f"{name}={value}" for name, value in site.traits.items())
    lines = [f"{subject} {site.op} at {site.layer} ({site.dtype}; {traits})"]
    for j in sorted(judged, key=_rank):
        reason = _why_not(j, pin)
        lines.append(f"{j.candidate.name} of {j.candidate.owner}: {reason}")
    if not judged:
        lines.append("no plugin and no public op has this name")
    return "\n  ".join(lines)
