# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A bound kernel that says whose it is when it fails, and whose results can be checked.

Costs about 0.1 us a call, and nothing in a captured graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite, HostStep, PlannedKernel
from tokenspeed_sdk.ops import OPS

from tokenspeed.plugins.discover.origin import mend
from tokenspeed.plugins.errors import BrokenPromiseError
from tokenspeed.plugins.load.plugin_code import fail
from tokenspeed.registry.candidates import Candidate, broken_kernel, whose


class ResultChecks:
    """Whether results are compared with what the op says. All guards of a registry share one."""

    def __init__(self, always: bool = False) -> None:
        self.active = [True] * always  # a list is the cheapest thing to ask: true while not empty
        self.doing: Callable[[str], None] = _tell_nobody

    @contextmanager
    def on(self, doing: Callable[[str], None]) -> Iterator[None]:
        """Shape, dtype and device of every result are checked inside; for the first steps.

        Args:
            doing: hears whose kernel will run, before each call, and "" at the end.
        """
        self.active.append(True)
        self.doing = doing
        try:
            yield
        finally:
            self.active.pop()
            self.doing = _tell_nobody
            doing("")


def _tell_nobody(what: str) -> None:
    """Outside the first steps a call costs what it must and no more."""


def guard(
    call: BoundKernel, site: CallSite, kernel: str, owner: str, checks: ResultChecks
) -> BoundKernel:
    """The same kernel; exceptions carry a note with kernel, owner, op and layer."""
    if isinstance(call, PlannedKernel):
        planned = guard(_with_plan(call), site, kernel, owner, checks)
        return _PlannedGuard(call, planned, whose(kernel, owner, site))
    place = whose(kernel, owner, site)
    active = checks.active
    doing = f"{place}; {_remedy(site, owner)}"

    def run(*args: Any) -> Any:
        if active:
            checks.doing(doing)
        try:
            result = call(*args)
        except BaseException as raised:
            fail(raised, place, _blame(place, site, owner, args, checked=bool(active)))
        if active:
            _check(site, args, result, place, owner)
        return result

    return run


def guard_packing(candidate: Candidate, site: CallSite) -> Callable[[Any], Any]:
    """The candidate's ``pack_weight`` for a site, whose failures name it."""
    who = whose(candidate.name, candidate.owner, site)
    pack = candidate.kernel.pack_weight  # type: ignore[union-attr]  # it was chosen, so it is there

    def run(weight: Any) -> Any:
        try:
            packed = pack(site, weight)
        except BaseException as raised:
            fail(raised, who, f"in pack_weight of {who}; {_remedy(site, candidate.owner)}")
        if packed is None:
            raise broken_kernel(candidate, site, "pack_weight", None, "a packed weight")
        return packed

    return run


def _remedy(site: CallSite, owner: str) -> str:
    return f"to do: --pin {site.op}=reference, and report it to {owner}"


def _blame(place: str, site: CallSite, owner: str, args: Sequence[Any], *, checked: bool) -> str:
    """Who raised, and who else may be at fault. Where results are checked, arguments were right."""
    remedy = _remedy(site, owner)
    given = f"its arguments: {_describe(site, args)}"
    if checked:
        return f"{place}; {given}; {remedy}"
    return (
        f"{place}, or the kernel that made its arguments; {given}; if one of them looks wrong, "
        "the kernel that made it is at fault: rerun with --check-kernels, which names it; "
        f"else {remedy.removeprefix('to do: ')}"
    )


def _describe(site: CallSite, args: Sequence[Any]) -> str:
    """Names, shapes and dtypes. Looks into no memory, so that it does not wait for a device."""
    names = [each.name for each in OPS[site.op].parameters] if site.op in OPS else []
    names += [f"argument {i}" for i in range(len(names), len(args))]
    texts = []
    for name, value in zip(names, args, strict=False):
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        kind = str(dtype).removeprefix("torch.") if dtype is not None else type(value).__name__
        texts.append(f"{name} {list(shape)} of {kind}" if shape is not None else f"{name} {kind}")
    return ", ".join(texts)


def _with_plan(kernel: PlannedKernel) -> BoundKernel:
    """The plan as the last argument, so that a kernel that plans is called like the others."""
    return lambda *args: kernel(*args[:-1], plan=args[-1])


class _PlannedGuard:
    """A guarded kernel that also plans."""

    def __init__(self, kernel: PlannedKernel, run: BoundKernel, place: str) -> None:
        self._kernel = kernel
        self._run = run
        self._place = place

    @property
    def plan_key(self) -> Hashable:
        return self._kernel.plan_key

    def plan(self, step: HostStep, scale: float) -> Any:
        try:
            return self._kernel.plan(step, scale)
        except BaseException as raised:
            fail(raised, self._place, f"in plan of {self._place}")

    def __call__(self, *args: Any, plan: Any) -> Any:
        return self._run(*args, plan)


def _check(site: CallSite, args: tuple[Any, ...], result: Any, place: str, owner: str) -> None:
    """BrokenPromiseError: not what the public op returns. A vendor's own op is not checked."""
    if site.op not in OPS:
        return
    try:
        OPS[site.op].check_result(site, args, result)
        if result is not None and result.device != args[0].device:
            raise ValueError(
                f"{site.op} must return a tensor on {args[0].device}; it is on {result.device}"
            )
        if result is not None and not result.is_contiguous():
            raise ValueError(
                f"{site.op} must return a contiguous tensor; one of {list(result.shape)} "
                f"has strides {list(result.stride())}"
            )
    except ValueError as error:
        distribution = owner.split(maxsplit=1)[0]
        raise BrokenPromiseError(
            f"{owner} has a kernel that does not keep to its op: {error}",
            where=place,
            fix=f"pin another kernel (--pin {site.op}=reference), and {mend(distribution)}",
        ) from error
