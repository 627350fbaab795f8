# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The kernels of an op, and what each says to a call site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite, Kernel
from tokenspeed_sdk.contracts.probe import Accept, Decline, Verdict
from tokenspeed_sdk.ops import Op

from tokenspeed.plugins.activate import broken, call
from tokenspeed.plugins.claims import REFERENCE
from tokenspeed.plugins.errors import BrokenPromiseError, PluginError
from tokenspeed.plugins.plan import Planned, PluginPlan

_KERNEL_METHODS = ("accept", "bind", "pack_weight")


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
        differing = ", ".join(sorted(set(offered) ^ set(planned.claims))) or "one of them twice"
        raise broken(planned, f"offers other kernels than its manifest claims: {differing}")
    return tuple(provided)


def judge(candidate: Candidate, site: CallSite) -> Judged:
    """Ask a candidate. What it raises is fatal if it is needed, else the reason against it."""
    if isinstance(candidate.kernel, PluginError):
        return Judged(candidate, None, f"failed: {candidate.kernel.reason}")
    try:
        verdict = candidate.kernel.accept(site)
        if isinstance(verdict, Decline):
            return Judged(candidate, None, f"declined: {verdict.why}")
        if not isinstance(verdict, Accept) or not isinstance(verdict.score, int):
            wanted = "an Accept with an integer score or a Decline"
            raise broken_kernel(candidate, site, "accept", verdict, wanted)
    except Exception as error:
        return unfit(candidate, site, error)
    return Judged(candidate, verdict.score, verdict.why)


def unfit(candidate: Candidate, site: CallSite, error: Exception) -> Judged:
    """A kernel that raised does not serve the site. Raises the error if the launch needs it."""
    if not isinstance(error, PluginError):
        error.add_note(
            f"kernel {candidate.name} of {candidate.owner} for {site.op} at {site.layer}"
        )
    if candidate.needed:
        raise error
    text = f"{type(error).__name__}: {error}"
    reason = error.reason if isinstance(error, PluginError) else text
    return Judged(candidate, None, f"failed: {reason}", error)


def broken_kernel(
    candidate: Candidate, site: CallSite, method: str, answer: object, wanted: str
) -> BrokenPromiseError:
    """The error that says whose kernel does not answer as the contract says."""
    distribution = candidate.owner.split(maxsplit=1)[0]
    return BrokenPromiseError(
        f"{candidate.owner} has a kernel whose {method} returned {answer!r} instead of {wanted}",
        where=f"kernel {candidate.name} for {site.op} at {site.layer}",
        fix=f"report it to the authors of {distribution}, or remove it: "
        f"pip uninstall {distribution}",
    )


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


def no_kernel(site: CallSite, judged: Sequence[Judged], pin: str | None) -> str:
    """The text of the error when nothing serves a site: every refusal."""
    subject = f'the pinned kernel "{pin}" does not serve' if pin else "no kernel serves"
    traits = ", ".join(f"{name}={value}" for name, value in site.traits.items())
    lines = [f"{subject} {site.op} at {site.layer} ({site.dtype}; {traits})"]
    for j in sorted(judged, key=rank):
        lines.append(f"{j.candidate.name} of {j.candidate.owner}: {why_not(j, pin)}")
    if not judged:
        lines.append("no plugin and no public op has this name")
    return "\n  ".join(lines)
