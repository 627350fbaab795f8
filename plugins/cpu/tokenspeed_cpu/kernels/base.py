# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the kernels share that torch computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite
from tokenspeed_sdk.contracts.probe import Accept, Decline, Verdict


class TorchKernel(ABC):
    """A kernel for float32 on the CPU, out of torch's own functions."""

    op: ClassVar[str]
    name: ClassVar[str]
    score: ClassVar[int]
    reason: ClassVar[str]
    """Why it should be chosen."""

    def accept(self, site: CallSite) -> Verdict:
        """Whether it can serve the site."""
        if site.op != self.op:
            return Decline(f"computes {self.op}, not {site.op}")
        if site.device.device_type != "cpu":
            return Decline(f"runs on the CPU; the site is on {site.device.device_type}")
        if site.dtype != "float32":
            return Decline(f"computes in float32; the site wants {site.dtype}")
        refusal = self.refusal()
        return Decline(refusal) if refusal else Accept(self.score, self.reason)

    def refusal(self) -> str | None:
        """What this torch lacks; None if nothing."""
        return None

    @abstractmethod
    def bind(self, site: CallSite) -> BoundKernel:
        """Make it for a site that it accepted."""

    def pack_weight(self, site: CallSite, weight: Any) -> Any:
        """Takes the plain layout."""
        return weight
