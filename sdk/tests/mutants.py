# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Deliberately wrong kernels, each the reference with one fault, and what is reported of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite, Kernel
from tokenspeed_sdk.contracts.probe import Accept, Verdict
from tokenspeed_sdk.ops import OPS
from tokenspeed_sdk.testing import TINY, Grid, Report, check_kernel
from tokenspeed_sdk.testing.kernel.cases import cases_of
from tokenspeed_sdk.testing.kernel.check import check_binding
from tokenspeed_sdk.testing.kernel.steps import some_sites

Call = Callable[..., Any]


NAN = float("nan")


def plain(weight: Any) -> Any:
    return weight


@dataclass(frozen=True)
class Mutant:
    """A kernel whose call is made of the reference's."""

    op: str
    fault: Callable[[Call], Call]
    name: str = "mutant"
    pack: Callable[[Any], Any] = plain

    def accept(self, site: CallSite) -> Verdict:
        return Accept(1, "for this test")

    def bind(self, site: CallSite) -> BoundKernel:
        return self.fault(OPS[self.op].bind_reference(site))

    def pack_weight(self, site: CallSite, weight: Any) -> Any:
        return self.pack(weight)


def right(call: Call) -> Call:
    return call


def takes_eps(value: float) -> Callable[[Call], Call]:
    def fault(call: Call) -> Call:
        return lambda *args: call(*args[:-1], value)

    return fault


def reports(kernel: Kernel, dtype: str = "float32", grid: Grid = TINY) -> dict[str, Report]:
    cases = cases_of(kernel.op, grid)
    found = [check_kernel(kernel, case, dtype=dtype) for case in cases]
    found += [check_binding(kernel, s, dtype=dtype) for s in some_sites(cases)]
    return {report.case: report for report in found}


def wrong(mutants: list[tuple[str, Any, str, str]]) -> pytest.MarkDecorator:
    """Rows of (op, fault, a case that catches it, what the report says) as parameters of a test."""
    named = [(*m, f"{m[0]}-{getattr(m[1], '__name__', m[1])}-{m[2]}") for m in mutants]
    return pytest.mark.parametrize(
        ("op", "fault", "case", "says"), [pytest.param(*m, id=name) for *m, name in named]
    )


def caught_by(case: str, says: str, found: dict[str, Report]) -> bool:
    """Whether a report of such a case says so; those of all cases are printed."""
    print(*found.values(), sep="\n")
    return any(case in name and says in str(report) for name, report in found.items())
