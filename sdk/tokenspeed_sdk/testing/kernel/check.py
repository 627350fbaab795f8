# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""One kernel in one case against the reference of its op."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tokenspeed_sdk.contracts.kernel import CallSite, Kernel
from tokenspeed_sdk.contracts.platform import Capabilities
from tokenspeed_sdk.contracts.probe import Decline
from tokenspeed_sdk.ops import OPS
from tokenspeed_sdk.testing.kernel.call_check import CallCheck
from tokenspeed_sdk.testing.kernel.cases import FACTS, Case, Inputs
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
    label = (f"{kernel.op}:{kernel.name}", case.name, dtype)
    verdict = kernel.accept(site)
    if isinstance(verdict, Decline):
        return Report(*label, declined=verdict.why)
    facts = FACTS[case.op]
    bound = _bound(facts.bounds, (bounds or {}).get(case.op, {}), dtype, case.op)
    call = case.make(Inputs(zlib.crc32(repr(label[1:]).encode()), getattr(torch, dtype), device))
    check = CallCheck(site, facts, bound, call)
    check.run(kernel)
    return Report(*label, check.error, check.bound, problems=tuple(check.problems))


def _bound(own: Mapping[str, float], given: Mapping[str, float], dtype: str, op: str) -> float:
    """The largest error allowed; 0 for an op whose results are equal."""
    if not own:
        return 0.0
    if dtype not in (known := {**own, **given}):
        raise ValueError(f"the kit has no bound for {op} in {dtype}; state one with bounds=")
    return known[dtype]


def site_of(case: Case, dtype: str, capabilities: Capabilities) -> CallSite:
    """The call site of a case. ValueError unless it states exactly the traits of its op."""
    rows = (case.rows, case.rows)
    site = CallSite(case.op, f"test.{case.name}", dtype, capabilities, case.traits, rows=rows)
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
