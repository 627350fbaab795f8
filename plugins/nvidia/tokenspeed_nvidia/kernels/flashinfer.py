# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""FlashInfer (Ye et al., 2025, arXiv:2501.01005): its import, its plans, attention_decode@1 by it.

FlashInfer compiles its kernels on first use and wants the lengths of all rows on the host before it
runs. ``plan`` takes them once per step; every layer of a cache group then runs with the same plan.
A call without a plan makes one from the device tensors: right, but it waits for the device, so it
neither overlaps nor can be captured.

Compiled kernels are kept in ``$XDG_CACHE_HOME/tokenspeed/flashinfer/<torch>`` (XDG_CACHE_HOME is
~/.cache unless set), or where FLASHINFER_WORKSPACE_BASE says, in a folder per FlashInfer version
and GPU architecture, and are reused by the next process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any, TypeAlias

import torch
from tokenspeed_sdk.contracts.kernel import CallSite, HostStep

WORKSPACE_BYTES = 256 << 20
STEPS_IN_FLIGHT = 3
"""A wrapper stages its plan in pinned memory, which must stay until the copy to the device ran:
as many take turns as steps can be queued."""


@dataclass(frozen=True)
class Pages:
    """The pages of all rows end to end, as FlashInfer takes them."""

    start: torch.Tensor  # [R + 1] int32 on the host
    index: torch.Tensor  # [start[R]] int32 on the device
    last_len: torch.Tensor  # [R] int32 on the host, tokens in the last page


def flatten_pages(step: HostStep, page_size: int) -> Pages:
    """Only launches; the total comes from the host."""
    lengths = step.kv_len
    counts = (lengths + page_size - 1) // page_size
    start = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    start[1:] = counts.cumsum(0)
    total = int(start[-1])
    device = step.page_table.device
    counts_there = counts.to(device, non_blocking=True)
    start_there = start.to(device, non_blocking=True)
    rows = torch.arange(len(lengths), device=device)
    row = torch.repeat_interleave(rows, counts_there, output_size=total)
    place = torch.arange(total, device=device) - start_there[row]
    index = step.page_table[step.row_slot.long()[row], place]
    last_len = torch.where(lengths > 0, (lengths - 1) % page_size + 1, 0).to(torch.int32)
    return Pages(start, index, last_len)


@dataclass(frozen=True)
class Geometry:
    """What is fixed at a call site; sites of equal geometry share plans."""

    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    window_left: int
    dtype: str
    arch: str

    @classmethod
    def of(cls, site: CallSite) -> Geometry:
        heads, kv_heads, head_dim, page_size = (
            _number(site, name) for name in ("heads", "kv_heads", "head_dim", "page_size")
        )
        window = site.traits["window"]
        left = -1 if window is None else int(window) - 1
        return cls(heads, kv_heads, head_dim, page_size, left, site.dtype, site.device.arch)


@dataclass(frozen=True)
class Plan:
    """A planned FlashInfer wrapper, and how many tokens its rows have.

    Without a query that sees a key there is no wrapper: FlashInfer divides by the number of rows,
    and describes the queries to hardware that takes no empty tensor.
    """

    wrapper: Any
    tokens: int

    def run(self, q: torch.Tensor, *kv: Any) -> torch.Tensor:
        """``kv`` as the wrapper takes them. Zeros for tokens behind the last row."""
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if self.tokens < q.shape[0]:
            out[self.tokens :].zero_()
        if self.wrapper is not None:
            self.wrapper.run(q[: self.tokens], *kv, out=out[: self.tokens])
        return out


NOTHING = Plan(None, 0)


class FlashInferDecode:
    """A bound attention_decode@1."""

    def __init__(self, geometry: Geometry) -> None:
        self.plan_key = ("attention_decode@1:flashinfer", geometry)
        self._geometry = geometry
        load_flashinfer()

    def plan(self, step: HostStep, scale: float) -> Plan:
        """What all layers of a step run with. Costs 0.1 to 0.4 ms of host time."""
        g = self._geometry
        if not step.kv_len.any():
            return NOTHING
        wrapper = next_wrapper(_decode_wrapper, g, step.page_table)
        pages = flatten_pages(step, g.page_size)
        wrapper.plan(
            pages.start, pages.index, pages.last_len,
            g.heads, g.kv_heads, g.head_dim, g.page_size, sm_scale=scale,
            window_left=g.window_left, q_data_type=g.dtype, kv_data_type=g.dtype,
        )  # fmt: skip
        return Plan(wrapper, len(step.kv_len))

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        page_table: torch.Tensor,
        row_slot: torch.Tensor,
        kv_len: torch.Tensor,
        scale: float,
        *,
        plan: Plan | None = None,
    ) -> torch.Tensor:
        if plan is None:
            starts = torch.arange(len(kv_len) + 1, dtype=torch.int32)
            plan = self.plan(HostStep(starts, kv_len.cpu(), page_table, row_slot), scale)
        return plan.run(q, (k_cache, v_cache))


def _decode_wrapper(geometry: Geometry, device: torch.device) -> Any:
    made = load_flashinfer().BatchDecodeWithPagedKVCacheWrapper
    return made(workspace(device), "HND", use_tensor_cores=True)


Maker: TypeAlias = Callable[[Geometry, torch.device], Any]


def next_wrapper(make: Maker, geometry: Geometry, page_table: torch.Tensor) -> Any:
    """The wrapper whose turn it is, of those for one geometry and one cache group's page table."""
    return next(_turns(make, geometry, page_table.device, page_table.data_ptr()))


@cache
def _turns(make: Maker, geometry: Geometry, device: torch.device, page_table: int) -> Iterator[Any]:
    return cycle([make(geometry, device) for _ in range(STEPS_IN_FLIGHT)])


def bind(site: CallSite) -> FlashInferDecode:
    return FlashInferDecode(Geometry.of(site))


def load_flashinfer() -> Any:
    """Import FlashInfer (seconds), its cache folder set first: it is read at import."""
    os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", str(cache_folder()))
    return import_module("flashinfer")


def cache_folder() -> Path:
    """Where compiled kernels are kept: of one torch, since another may come with another CUDA."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "tokenspeed" / "flashinfer" / f"torch-{torch.__version__}"


@cache
def workspace(device: torch.device) -> torch.Tensor:
    """Scratch that all plans of a device share: their launches follow each other on one stream."""
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _number(site: CallSite, name: str) -> int:
    value = site.traits[name]
    if not isinstance(value, int):
        raise ValueError(f"call site {site.layer!r} must state {name} as a number; got {value!r}")
    return value
