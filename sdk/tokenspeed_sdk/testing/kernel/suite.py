# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The conformance suite of contract ``kernel``, as one pytest test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeAlias, TypeVar

import pytest
import torch

from tokenspeed_sdk.contracts.kernel import Kernel
from tokenspeed_sdk.contracts.platform import Capabilities
from tokenspeed_sdk.contracts.probe import Accept, Decline
from tokenspeed_sdk.ops import OPS
from tokenspeed_sdk.testing.kernel.cases import FACTS, USUAL, Case, Grid, cases_of
from tokenspeed_sdk.testing.kernel.check import (
    Bounds,
    Report,
    binding_name,
    check_binding,
    check_kernel,
    default_capabilities,
    site_of,
)
from tokenspeed_sdk.testing.kernel.steps import some_sites

Subject = TypeVar("Subject", Case, Sequence[Case])

Kernels: TypeAlias = Callable[[], Iterable[Kernel]] | Iterable[Kernel]


def kernel_conformance(
    kernels: Kernels,
    *,
    device: str = "cpu",
    capabilities: Capabilities | None = None,
    ops: Collection[str] | None = None,
    names: Collection[str] | None = None,
    dtypes: Sequence[str] | None = None,
    grid: Grid = USUAL,
    cases: Iterable[Case] = (),
    bounds: Bounds | None = None,
) -> Callable[..., None]:
    """A parametrised test: each kernel in each case of its op, and what it says to their sites.

    A case whose site a kernel declines is skipped with the reason; a kernel that declines all of
    them fails. At two sites of each op one bound kernel is also called with several numbers of
    rows in turn.

    Args:
        kernels: what the entry point in ``tokenspeed.kernel`` names, or kernels.
        device: torch device on which the tensors live; without it here, all is skipped.
        capabilities: what sites say of the device. Left out: those of ``device``, if that is a
            CPU or a GPU that torch calls "cuda".
        ops: only kernels of these, such as "linear@1".
        names: only kernels of these names.
        dtypes: instead of all that the device lists.
        grid: the sizes that cases are generated for.
        cases: further ones.
        bounds: op to dtype to largest relative error, instead of the kit's own.

    Raises:
        ValueError: no kernel is left, or one is of an op that is not public.
    """
    known = capabilities or default_capabilities(device)
    offered = _offered(kernels, ops, names)
    extra = tuple(cases)
    checks: list[_Check] = []
    for kernel in offered:
        of_op = (*cases_of(kernel.op, grid), *(case for case in extra if case.op == kernel.op))
        wanted = tuple(dtypes or known.dtypes)
        wanted = wanted[:1] if FACTS[kernel.op].any_dtype else wanted
        each = [
            _Conforms(kernel, case.name, case, dtype, device, known, bounds, check_kernel)
            for dtype in wanted
            for case in of_op
        ]
        bindings = [
            _Conforms(kernel, binding_name(site), site, dtype, device, known, bounds, check_binding)
            for dtype in wanted
            for site in some_sites(of_op)
        ]
        checks += [_Sites(kernel, each), *each, *bindings]

    @pytest.mark.parametrize("check", [pytest.param(check, id=check.id) for check in checks])
    def test_kernel(check: _Check) -> None:
        check.run()

    return test_kernel


def _offered(
    kernels: Kernels, ops: Collection[str] | None, names: Collection[str] | None
) -> list[Kernel]:
    offered = list(kernels() if callable(kernels) else kernels)
    left = [
        kernel
        for kernel in offered
        if (ops is None or kernel.op in ops) and (names is None or kernel.name in names)
    ]
    if not left:
        held = ", ".join(f"{kernel.op}:{kernel.name}" for kernel in offered) or "none"
        raise ValueError(f"no kernel is left to test with ops={ops}, names={names}; held: {held}")
    strange = sorted({kernel.op for kernel in left} - set(OPS))
    if strange:
        raise ValueError(f"no public op: {', '.join(strange)}; name those to test with ops=")
    return left


@dataclass(frozen=True)
class _Conforms(Generic[Subject]):
    """One kernel in one case, or one bound kernel in cases of one site."""

    kernel: Kernel
    name: str
    subject: Subject
    dtype: str
    device: str
    capabilities: Capabilities
    bounds: Bounds | None
    check: Callable[..., Report]

    @property
    def id(self) -> str:
        return f"{self.kernel.op}:{self.kernel.name}-{self.name}-{self.dtype}"

    def run(self) -> None:
        _require(self.device)
        _judge(
            self.check(
                self.kernel,
                self.subject,
                dtype=self.dtype,
                device=self.device,
                capabilities=self.capabilities,
                bounds=self.bounds,
            )
        )


@dataclass(frozen=True)
class _Sites:
    """What one kernel says to the sites of all its cases. Needs no device."""

    kernel: Kernel
    checks: Sequence[_Conforms[Case]]

    @property
    def id(self) -> str:
        return f"{self.kernel.op}:{self.kernel.name}-serves_a_site"

    def run(self) -> None:
        refusals: dict[str, None] = {}
        served = False
        for check in self.checks:
            site = site_of(check.subject, check.dtype, check.capabilities)
            verdict = self.kernel.accept(site)
            if not isinstance(verdict, Accept | Decline) or not verdict.why:
                pytest.fail(
                    f"{self.id}: accept returns {verdict!r}, not an Accept or Decline with why"
                )
            if self.kernel.accept(replace(site)) != verdict:
                pytest.fail(f"{self.id}: accept says different things to equal sites")
            served |= isinstance(verdict, Accept)
            refusals[verdict.why] = None
        if not served:
            pytest.fail(f"{self.id}: declines every site of its op: {'; '.join(refusals)}")


_Check: TypeAlias = _Sites | _Conforms[Case] | _Conforms[Sequence[Case]]


def _judge(report: Report) -> None:
    """Skip what was declined, fail what is wrong."""
    print(report)
    if report.declined is not None:
        pytest.skip(f"{report.kernel} declines: {report.declined}")
    if report.problems:
        pytest.fail(str(report), pytrace=False)


def _require(device: str) -> None:
    """Skip unless tensors can be made on a device."""
    if (reason := _missing(device)) is not None:
        pytest.skip(reason)


def _missing(device: str) -> str | None:
    """Why no tensor can be made on a device; None if one can."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        return f"no device {device} here: {str(error).splitlines()[0]}"
    return None
