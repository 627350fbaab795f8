# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Helpers of the kernel tests."""

from __future__ import annotations

from typing import Any

import torch
from tokenspeed_cpu.kernels import kernels
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite, Kernel
from tokenspeed_sdk.contracts.probe import Accept
from tokenspeed_sdk.ops import OPS
from tokenspeed_sdk.testing import CPU


def site(op: str, **traits: Any) -> CallSite:
    """A float32 site on the CPU."""
    return CallSite(op, "layer", "float32", CPU, traits)


def find(op: str, name: str = "cpu") -> Kernel:
    """The kernel of an op by name."""
    return next(kernel for kernel in kernels() if (kernel.op, kernel.name) == (op, name))


def bind(op: str, name: str = "cpu", **traits: Any) -> BoundKernel:
    """A kernel of this plugin, bound to a site that states the traits of the op and is accepted."""
    where = site(op, **traits)
    OPS[op].check_site(where)
    kernel = find(op, name)
    verdict = kernel.accept(where)
    assert isinstance(verdict, Accept), verdict
    return kernel.bind(where)


def randn(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator)


def embedded(x: torch.Tensor, *, before: int = 3, after: int = 5) -> torch.Tensor:
    """The same values as a view with NaN on both sides of every row: reads beyond it show."""
    wide = torch.full((*x.shape[:-1], before + x.shape[-1] + after), float("nan"))
    inner = wide[..., before : before + x.shape[-1]]
    inner.copy_(x)
    return inner


def int32(values: list[Any]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)
