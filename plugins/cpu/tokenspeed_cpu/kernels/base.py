# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the kernels of this plugin share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite
from tokenspeed_sdk.contracts.probe import Accept, Decline, Verdict

RELEASE_BYTES = 1_000_000
"""A call that moves more takes over 100 us and releases the GIL; one that moves less keeps it."""


class CpuKernel(ABC):
    """A kernel for float32 on the CPU.

    Subclasses say their op, bind, and refuse the sites that they cannot serve.
    """

    op: ClassVar[str]
    name: ClassVar[str] = "cpu"
    score: ClassVar[int] = 100

    def accept(self, site: CallSite) -> Verdict:
        """Whether it can serve the site."""
        if site.op != self.op:
            return Decline(f"computes {self.op}, not {site.op}")
        if site.device.device_type != "cpu":
            return Decline(f"runs on the CPU; the site is on {site.device.device_type}")
        if site.dtype != "float32":
            return Decline(f"computes in float32; the site wants {site.dtype}")
        refusal = self.refusal(site)
        return Decline(refusal) if refusal else Accept(self.score, self.reason(site))

    def refusal(self, site: CallSite) -> str | None:
        """Why it cannot serve a float32 site on the CPU; None if it can."""
        return None

    def reason(self, site: CallSite) -> str:
        """Why it should be chosen."""
        return f"C++ compiled for {site.device.arch}"

    @abstractmethod
    def bind(self, site: CallSite) -> BoundKernel:
        """Make it for a site that it accepted."""

    def pack_weight(self, site: CallSite, weight: Any) -> Any:
        """Takes the plain layout."""
        return weight


def trait(site: CallSite, name: str) -> int:
    """A trait that is a number."""
    value = site.traits[name]
    assert isinstance(value, int)
    return value
