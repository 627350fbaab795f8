# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Helpers of the kernel tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tokenspeed_cpu.kernels import kernels
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite, Kernel
from tokenspeed_sdk.contracts.platform import Capabilities
from tokenspeed_sdk.contracts.probe import Accept
from tokenspeed_sdk.ops import OPS

CPU = Capabilities("cpu", "x86-64-v4", ("float32",), frozenset(), 2)


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


def reference(op: str, **traits: Any) -> BoundKernel:
    """The sdk's definition of an op, bound to the same site."""
    return OPS[op].bind_reference(site(op, **traits))


def randn(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator)


def embedded(x: torch.Tensor, *, before: int = 3, after: int = 5) -> torch.Tensor:
    """The same values as a view with NaN on both sides of every row: reads beyond it show."""
    wide = torch.full((*x.shape[:-1], before + x.shape[-1] + after), float("nan"))
    inner = wide[..., before : before + x.shape[-1]]
    inner.copy_(x)
    return inner


@dataclass
class Cache:
    """Caches whose unowned pages, and tokens behind a row's last, are NaN."""

    keys: torch.Tensor
    values: torch.Tensor
    table: torch.Tensor


def make_cache(
    generator: torch.Generator,
    lengths: list[int],
    *,
    kv_heads: int,
    head_dim: int,
    page: int,
    poison: bool = True,
) -> Cache:
    """Slot s + 1 holds lengths[s] tokens in shuffled pages; the caches lie in one strided slab."""
    counts = [-(-length // page) for length in lengths]
    width = max([*counts, 1]) + 1
    pages = torch.randperm(sum(counts), generator=generator) + 1
    slab = torch.full((sum(counts) + 2, 2, kv_heads, page, head_dim), float("nan"))
    if not poison:
        slab.zero_()
    table = torch.zeros(len(lengths) + 2, width, dtype=torch.int32)
    used = 0
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        mine = pages[used : used + count]
        used += count
        table[row + 1, :count] = mine.int()
        for position in range(length):
            slab[mine[position // page], :, :, position % page] = randn(
                generator, 2, kv_heads, head_dim
            )
    return Cache(slab[:, 0], slab[:, 1], table)


def int32(values: list[Any]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)
