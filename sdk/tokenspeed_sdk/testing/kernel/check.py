# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""One kernel in one case, or in several of one site, against the reference of its op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch

from tokenspeed_sdk.contracts.kernel import CallSite, Kernel
from tokenspeed_sdk.contracts.platform import Capabilities
from tokenspeed_sdk.contracts.probe import Accept, Decline
from tokenspeed_sdk.ops import OPS
from tokenspeed_sdk.testing.kernel.binding import BindingCheck
from tokenspeed_sdk.testing.kernel.cases import FACTS, Case
from tokenspeed_sdk.testing.kernel.steps import (
    ROW_RANGES,
    RowRange,
    Step,
    repeated,
    rows_around,
    up_and_down,
)
from tokenspeed_sdk.testing.platform.fakes import CPU, H100

Bounds = Mapping[str, Mapping[str, float]]
"""Op to dtype to the largest relative error."""


@dataclass(frozen=True)
class Report:
    """What a check found.

    Attributes:
        kernel: "op:name".
        error: the largest ||out - ref|| / ||ref|| of the result and what changes in place.
        bound: what the error may be; 0 where results must be equal.
        declined: why the kernel does not serve the site; None if it does.
        problems: what is wrong, each a sentence; empty is good.
    """

    kernel: str
    case: str
    dtype: str
    error: float = 0.0
    bound: float = 0.0
    declined: str | None = None
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = f"{self.kernel}, case {self.case}, {self.dtype}: "
        if self.declined is not None:
            return f"{head}declined: {self.declined}"
        return head + ("; ".join(self.problems) or f"error {self.error:.1e} <= {self.bound:.0e}")


def check_kernel(
    kernel: Kernel,
    case: Case,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    capabilities: Capabilities | None = None,
    bounds: Bounds | None = None,
) -> Report:
    """Call a kernel and compare all that it may and may not do with the reference.

    A case of few rows is called again with other values.

    Args:
        dtype: of the site and the activations.
        device: torch device on which the tensors live.
        capabilities: what the site says of the device; left out: ``default_capabilities``.
        bounds: instead of the kit's own.

    Raises:
        ValueError: the case does not state the traits of its op, or a dtype has no bound.
        Exception: whatever the kernel raises.
    """
    site = site_of(case, dtype, capabilities or default_capabilities(device))
    report = partial(Report, f"{kernel.op}:{kernel.name}", case.name, dtype)
    verdict = kernel.accept(site)
    if isinstance(verdict, Decline):
        return report(declined=verdict.why)
    check = _called(kernel, site, repeated(case), device, bounds)
    return report(check.error, check.bound, problems=tuple(check.problems))


def check_binding(
    kernel: Kernel,
    cases: Sequence[Case],
    *,
    dtype: str = "float32",
    device: str = "cpu",
    capabilities: Capabilities | None = None,
    bounds: Bounds | None = None,
) -> Report:
    """Bind a kernel once and call it as a server does: more rows, fewer, more again, other values.

    The last call comes from another thread. The site has all the rows that the kernel accepts.

    Args:
        cases: of one op and equal traits.

    Raises:
        ValueError, Exception: as ``check_kernel``.
    """
    known = capabilities or default_capabilities(device)
    report = partial(Report, f"{kernel.op}:{kernel.name}", binding_name(cases), dtype)
    asked = [site_of(cases[0], dtype, known, rows) for rows in ROW_RANGES]
    verdicts = [kernel.accept(site) for site in asked]
    served = [s.rows for s, said in zip(asked, verdicts, strict=True) if isinstance(said, Accept)]
    if not (steps := up_and_down(case for case in cases if rows_around(case.rows) in served)):
        return report(declined=verdicts[0].why)
    site = site_of(cases[0], dtype, known, (served[0][0], served[-1][1]))
    check = _called(kernel, site, steps, device, bounds)
    return report(check.error, check.bound, problems=tuple(check.problems))


def binding_name(cases: Sequence[Case]) -> str:
    """How a check of one binding is called: by its case with the most rows."""
    return f"one_binding-{max(cases, key=lambda case: case.rows).name}"


def _called(
    kernel: Kernel, site: CallSite, steps: Sequence[Step], device: str, bounds: Bounds | None
) -> BindingCheck:
    """One bound kernel after some calls; after the first wrong one there is no other."""
    facts = FACTS[site.op]
    bound = _bound(facts.bounds, (bounds or {}).get(site.op, {}), site.dtype, site.op)
    check = BindingCheck(kernel, site, facts, bound)
    for step in steps:
        call = step.make(site.dtype, device)
        if step.thread:
            with ThreadPoolExecutor(1) as other:
                other.submit(check.run, call, f"{step.case.name} from another thread").result()
        else:
            check.run(call, step.case.name)
        if check.problems:
            break
    return check


def _bound(own: Mapping[str, float], given: Mapping[str, float], dtype: str, op: str) -> float:
    """The largest error allowed; 0 for an op whose results are equal."""
    if not own:
        return 0.0
    if dtype not in (known := {**own, **given}):
        raise ValueError(f"the kit has no bound for {op} in {dtype}; state one with bounds=")
    return known[dtype]


def site_of(
    case: Case, dtype: str, capabilities: Capabilities, rows: RowRange | None = None
) -> CallSite:
    """The call site of a case, for the engine's range around its rows or another one.

    Raises:
        ValueError: it does not state exactly the traits of its op.
    """
    layer, asked = f"test.{case.name}", rows or rows_around(case.rows)
    site = CallSite(case.op, layer, dtype, capabilities, case.traits, rows=asked)
    OPS[case.op].check_site(site)
    return site


def default_capabilities(device: str) -> Capabilities:
    """What a site says of a torch device, if a test says no more.

    Raises:
        ValueError: neither a CPU nor a CUDA device.
    """
    kind = torch.device(device).type
    if kind == "cpu":
        return CPU
    if kind != "cuda":
        raise ValueError(f"the kit does not know devices of type {kind}; pass capabilities=")
    if not torch.cuda.is_available():
        return H100
    found = torch.cuda.get_device_properties(device)
    arch = f"sm_{found.major}{found.minor}"
    if torch.version.hip is not None:
        arch = found.gcnArchName.partition(":")[0]
    return Capabilities(kind, arch, H100.dtypes, H100.features, found.multi_processor_count)
