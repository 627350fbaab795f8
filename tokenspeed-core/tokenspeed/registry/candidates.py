# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The kernels of an op, and what each says to a call site."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite, Kernel
from tokenspeed_sdk.contracts.probe import Accept, Decline, Verdict
from tokenspeed_sdk.ops import Op

from tokenspeed.plugins.choose.decision import REFUSED
from tokenspeed.plugins.discover.claims import REFERENCE
from tokenspeed.plugins.discover.metadata import printable
from tokenspeed.plugins.discover.origin import complain
from tokenspeed.plugins.errors import BrokenPromiseError, LoadError, PluginError
from tokenspeed.plugins.load.activate import broken, call
from tokenspeed.plugins.load.plugin_code import as_failure
from tokenspeed.plugins.plan import Planned, PluginPlan

_KERNEL_METHODS = ("accept", "bind", "pack_weight")
_SCORES = range(-(2**31), 2**31)
_ADDRESS = re.compile(" at 0x[0-9a-f]+")


class NoKernelError(LookupError):
    """Nothing serves a call site; ``str()`` is every refusal, and what to do."""


@dataclass(frozen=True)
class Candidate:
    """A kernel, or the error that stands for it when its plugin is broken.

    Attributes:
        needed: whether the launch stands on its plugin, so that an error in it is fatal.
    """

    name: str
    owner: str
    kernel: Kernel | PluginError
    needed: bool


@dataclass(frozen=True)
class Judged:
    """What a candidate said to one site.

    Attributes:
        score: None when it does not serve the site.
        error: what it raised instead of an answer.
    """

    candidate: Candidate
    score: int | None
    reason: str
    error: Exception | None = None


class Reference:
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


def is_needed(planned: Planned, plan: PluginPlan, pins: Mapping[str, str]) -> bool:
    """Whether a broken plugin ends the launch: the platform's own wheel, pinned, or asked for."""
    platforms = {p.distribution for p in plan.of("platform") if p.name == plan.platform}
    pinned = {f"{op}:{kernel}" for op, kernel in pins.items()}
    return (
        planned.distribution in platforms
        or bool(pinned & set(planned.claims))
        or plan.lists.names(planned.contract, planned.name, planned.plugin)
    )


def read_kernels(planned: Planned) -> tuple[Kernel, ...]:
    """Load a provider's kernels. BrokenPromiseError unless they are what its manifest claims."""
    provided = call(planned)
    if not isinstance(provided, tuple | list):
        raise broken(planned, f"must return a tuple of kernels, not {provided!r}")
    for kernel in provided:
        named = all(isinstance(getattr(kernel, name, None), str) for name in ("op", "name"))
        whole = all(callable(getattr(kernel, name, None)) for name in _KERNEL_METHODS)
        if not (named and whole):
            raise broken(
                planned,
                f"returned {kernel!r}, which is no kernel: "
                f"that has op, name, {', '.join(_KERNEL_METHODS)}",
            )
    offered = sorted(f"{kernel.op}:{kernel.name}" for kernel in provided)
    if offered != sorted(planned.claims):
        returned = ", ".join(offered) or "nothing"
        raise broken(
            planned,
            "offers other kernels than it claims: its manifest claims "
            f"{', '.join(sorted(planned.claims)) or 'nothing'}; "
            f"{planned.value.rpartition(':')[2]}() returns {returned}",
        )
    return tuple(provided)


def judge(candidate: Candidate, site: CallSite) -> Judged:
    """Ask a candidate. What it raises is fatal if it is needed, else the reason against it."""
    if isinstance(candidate.kernel, PluginError):
        ran = isinstance(candidate.kernel, LoadError | BrokenPromiseError)
        return Judged(candidate, None, f"{'failed' if ran else REFUSED}: {candidate.kernel.reason}")
    try:
        verdict = candidate.kernel.accept(own(site))
        if not _is_verdict(verdict):
            wanted = "an Accept with an integer score of 32 bits and a text, or a Decline with one"
            raise broken_kernel(candidate, site, "accept", verdict, wanted)
    except BaseException as error:
        return unfit(candidate, site, error)
    if isinstance(verdict, Decline):
        return Judged(candidate, None, f"declined: {printable(verdict.why)}")
    return Judged(candidate, verdict.score, printable(verdict.why))


def own(site: CallSite) -> CallSite:
    """The site with traits that nobody can change for others."""
    return replace(site, traits=MappingProxyType(dict(site.traits)))


def _is_verdict(verdict: object) -> bool:
    if isinstance(verdict, Accept) and not (
        type(verdict.score) is int and verdict.score in _SCORES
    ):
        return False
    return isinstance(verdict, Accept | Decline) and isinstance(verdict.why, str)


def unfit(candidate: Candidate, site: CallSite, raised: BaseException) -> Judged:
    """A kernel that raised does not serve the site. Raises the error if the launch needs it."""
    who = whose(candidate.name, candidate.owner, site)
    error = as_failure(raised, who)
    if not isinstance(error, PluginError):
        error.add_note(who)
    if candidate.needed:
        raise error
    text = printable(f"{type(error).__name__}: {error}")
    reason = error.reason if isinstance(error, PluginError) else text
    return Judged(candidate, None, f"failed: {reason}", error)


def whose(kernel: str, owner: str, site: CallSite) -> str:
    """Which kernel of whom, and where it is called."""
    return f"kernel {kernel} of {owner} for {site.op} at {site.layer}"


def broken_kernel(
    candidate: Candidate, site: CallSite, method: str, answer: object, wanted: str
) -> BrokenPromiseError:
    """The error that says whose kernel does not answer as the contract says."""
    distribution = candidate.owner.split(maxsplit=1)[0]
    return BrokenPromiseError(
        f"{candidate.owner} has a kernel whose {method} returned {_shown(answer)} "
        f"instead of {wanted}",
        where=whose(candidate.name, candidate.owner, site),
        fix=complain(distribution),
    )


def _shown(answer: object) -> str:
    """Printed, the same for every site, and not too long."""
    try:
        text = repr(answer)
    except Exception as error:  # such as a number of too many digits
        text = f"a {type(answer).__name__} that cannot be printed: {error}"
    return printable(_ADDRESS.sub("", text)[:200])


def rank(judged: Judged) -> tuple[bool, int, str]:
    """Sorts the best first: references last, then by score, then by name."""
    name = judged.candidate.name
    return name == REFERENCE, -(judged.score or 0), name


def why_not(judged: Judged, pin: str | None) -> str:
    """The reason against one that was not chosen."""
    if judged.score is None:
        return judged.reason
    law = f"{pin} is pinned" if pin else "outranked"
    return f"{law}; score {judged.score}: {judged.reason}"


def no_kernel(site: CallSite, judged: Sequence[Judged], pin: str | None) -> NoKernelError:
    """The error when nothing serves a site."""
    subject = f'the pinned kernel "{pin}" does not serve' if pin else "no kernel serves"
    traits = ", ".join(f"{name}={value}" for name, value in site.traits.items())
    lines = [f"{subject} {site.op} at {site.layer} ({site.dtype}; {traits})"]
    for j in sorted(judged, key=rank):
        lines.append(f"{j.candidate.name} of {j.candidate.owner}: {why_not(j, pin)}")
    if not judged:
        lines.append("no plugin and no public op has this name")
    if pin:
        lines.append(
            f"to do: take another kernel (--pin {site.op}=reference), or leave it unpinned"
        )
    return NoKernelError("\n  ".join(lines))
