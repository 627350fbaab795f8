# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""silu_and_mul@1 in torch's own fused activation; computes in float32 and rounds once."""

from __future__ import annotations

from typing import Any

import torch
from tokenspeed_sdk.contracts import Accept, Decline, Verdict
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """``[tokens, gate and up] -> [tokens, inter]`` in the dtype of ``x``."""
    gate, up = x.float().chunk(2, dim=1)
    return torch.nn.functional.silu(gate).mul_(up).to(x.dtype)


class AcmeSilu:
    """The kernel "acme" of silu_and_mul@1."""

    op = "silu_and_mul@1"
    name = "acme"

    def accept(self, site: CallSite) -> Verdict:
        """Any CPU, and dtypes that float32 holds exactly."""
        if site.device.device_type != "cpu":
            return Decline(f"runs on the CPU; the site is on {site.device.device_type}")
        if site.dtype == "float64":
            return Decline("computes in float32; the site is float64")
        return Accept(120, "two passes over memory")

    def bind(self, site: CallSite) -> BoundKernel:
        """The same function for every site."""
        del site
        return silu_and_mul

    def pack_weight(self, site: CallSite, weight: Any) -> Any:
        """The op takes no weight."""
        del site
        return weight


def kernels() -> tuple[AcmeSilu]:
    """What the manifest claims."""
    return (AcmeSilu(),)
