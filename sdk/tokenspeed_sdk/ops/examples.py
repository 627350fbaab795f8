# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Example arguments of ops, on which a resolver may measure kernels that compete for a call site.

Each function takes a call site, the rows of the call and a torch device, and returns the arguments
of one or more calls; what counts is the time of all of them. Data is random, since a device that is
short of power runs zeros faster; weights are as loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from tokenspeed_sdk.contracts.kernel import CallSite

Calls: TypeAlias = tuple[tuple[Any, ...], ...]
Example: TypeAlias = Callable[[CallSite, int, str], Calls]

CONTEXTS = (1024, 16384)
"""Tokens of a row that attention is measured over: a short chat, and an agent at work."""

KV_BYTES = 1 << 30
"""Most memory of an example's keys and values; contexts shrink to it where rows are many."""

TABLE_TOKENS = 32768
"""Width of page tables, in tokens: an engine's are as wide as its longest request."""

FP8 = torch.float8_e4m3fn
FP8_BLOCK = 128
INT8_GROUP = 32


def linear(site: CallSite, rows: int, device: str) -> Calls:
    """One product."""
    n, k = _number(site, "n"), _number(site, "k")
    dtype = _dtype(site)
    bias = _random((n,), dtype, device) if site.traits["bias"] else None
    return ((_random((rows, k), dtype, device), _random((n, k), dtype, device, k**-0.5), bias),)


def linear_fp8(site: CallSite, rows: int, device: str) -> Calls:
    """The same with a weight of 8 bits and a scale for each of its blocks."""
    n, k = _number(site, "n"), _number(site, "k")
    dtype = _dtype(site)
    bias = _random((n,), dtype, device) if site.traits["bias"] else None
    blocks = (-(-n // FP8_BLOCK), -(-k // FP8_BLOCK))
    scale = torch.full(blocks, k**-0.5, dtype=torch.float32, device=device)
    x, weight = _random((rows, k), dtype, device), _random((n, k), torch.bfloat16, device)
    return ((x, weight.to(FP8), scale, bias),)


def linear_int8(site: CallSite, rows: int, device: str) -> Calls:
    """The same with a weight of integers and a scale for each of its groups."""
    n, k = _number(site, "n"), _number(site, "k")
    dtype = _dtype(site)
    bias = _random((n,), dtype, device) if site.traits["bias"] else None
    weight = torch.randint(-127, 128, (n, k), dtype=torch.int8, device=device)
    scale = torch.full((-(-k // INT8_GROUP), n), k**-0.5 / 64, device=device)
    return ((_random((rows, k), dtype, device), weight, scale, bias),)


def attention_decode(site: CallSite, rows: int, device: str) -> Calls:
    """Rows with one new token each: a call at each of the contexts."""
    return _decode(site, rows, device, _dtype(site), ())


def attention_decode_fp8(site: CallSite, rows: int, device: str) -> Calls:
    """The same over caches of 8 bits."""
    return _decode(site, rows, device, FP8, _unit_scales(device))


def attention_prefill(site: CallSite, rows: int, device: str) -> Calls:
    """One prompt's last ``rows`` tokens: a call behind each of the contexts."""
    return _prefill(site, rows, device, _dtype(site), ())


def attention_prefill_fp8(site: CallSite, rows: int, device: str) -> Calls:
    """The same over caches of 8 bits."""
    return _prefill(site, rows, device, FP8, _unit_scales(device))


def _decode(
    site: CallSite, rows: int, device: str, kv_dtype: torch.dtype, scales: tuple[Any, ...]
) -> Calls:
    lengths = [_bounded(site, rows, context, kv_dtype) for context in CONTEXTS]
    q = _queries(site, rows, device)
    pages = _paged(site, rows, max(lengths), device, kv_dtype)
    return tuple(
        (q, *pages, _full(rows, length, device), *scales, _scale(site)) for length in lengths
    )


def _prefill(
    site: CallSite, rows: int, device: str, kv_dtype: torch.dtype, scales: tuple[Any, ...]
) -> Calls:
    lengths = [_bounded(site, 1, context, kv_dtype) + rows for context in CONTEXTS]
    q = _queries(site, rows, device)
    pages = _paged(site, 1, max(lengths), device, kv_dtype)
    start = torch.tensor([0, rows], dtype=torch.int32, device=device)
    return tuple(
        (q, *pages, start, _full(1, length, device), *scales, _scale(site)) for length in lengths
    )


def _queries(site: CallSite, rows: int, device: str) -> torch.Tensor:
    shape = (rows, _number(site, "heads"), _number(site, "head_dim"))
    return _random(shape, _dtype(site), device)


def _paged(
    site: CallSite, rows: int, length: int, device: str, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """k_cache, v_cache, page_table and row_slot of rows of one length, in scattered pages."""
    page = _number(site, "page_size")
    each = -(-length // page)
    shape = (rows * each + 1, _number(site, "kv_heads"), page, _number(site, "head_dim"))
    table = torch.zeros(
        (rows + 2, max(each, -(-TABLE_TOKENS // page))), dtype=torch.int32, device=device
    )
    order = torch.randperm(rows * each, device=device).to(torch.int32) + 1
    table[1 : rows + 1, :each] = order.view(rows, each)
    made_in = torch.bfloat16 if dtype is FP8 else dtype
    caches = [_random(shape, made_in, device).to(dtype) for _ in "kv"]
    return (*caches, table, torch.arange(1, rows + 1, dtype=torch.int32, device=device))


def _bounded(site: CallSite, rows: int, context: int, dtype: torch.dtype) -> int:
    """Tokens of each row, so that all rows' keys and values fit in KV_BYTES."""
    token = 2 * _number(site, "kv_heads") * _number(site, "head_dim") * dtype.itemsize
    return max(1, min(context, KV_BYTES // (token * rows)))


def _full(rows: int, value: int, device: str) -> torch.Tensor:
    return torch.full((rows,), value, dtype=torch.int32, device=device)


def _unit_scales(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(1, device=device), torch.ones(1, device=device)


def _scale(site: CallSite) -> float:
    return float(_number(site, "head_dim") ** -0.5)


def _random(
    shape: tuple[int, ...], dtype: torch.dtype, device: str, spread: float = 1.0
) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device).normal_(0.0, spread)


def _dtype(site: CallSite) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, site.dtype)
    return dtype


def _number(site: CallSite, trait: str) -> int:
    value = site.traits[trait]
    if not isinstance(value, int):
        raise ValueError(f"call site {site.layer!r} states {trait}={value!r}, which is no number")
    return value
