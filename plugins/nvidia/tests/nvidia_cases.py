# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Each kernel against the float64 reference of its op, on fresh random inputs and poisoned memory.

The same cases run under the Triton interpreter (tiny) and on a GPU (real sizes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite, Trait
from tokenspeed_sdk.contracts.platform import Capabilities
from tokenspeed_sdk.ops import OPS

from tokenspeed_nvidia.catalog import kernels

BOUNDS = {"float32": 2e-5, "float16": 3e-3, "bfloat16": 1e-2}
"""Largest ||out - ref|| / ||ref||: one rounding of the output, and of the softmax weights."""


@dataclass(frozen=True)
class Where:
    """Device and dtype that a case runs on."""

    device: str
    dtype: str
    units: int
    arch: str = "sm_90"

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self.device).to(self.torch_dtype)

    def ints(self, values: list[int] | list[list[int]], dtype: str = "int32") -> torch.Tensor:
        return torch.tensor(values, dtype=getattr(torch, dtype), device=self.device)

    def bind(self, op: str, name: str = "", **traits: Trait) -> BoundKernel:
        """The plugin's kernel for a site that states ``traits``; by name, or the best."""
        device = Capabilities("cuda", self.arch, ("bfloat16",), frozenset(), self.units)
        site = CallSite(op, "test", self.dtype, device, traits)
        OPS[op].check_site(site)
        wanted = name or ("cublas" if op == "linear@1" else "triton")
        (kernel,) = (k for k in kernels() if k.op == op and k.name == wanted)
        return kernel.bind(site)


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """||out - ref|| / ||ref||; infinite where either holds what is not a number."""
    wide, reference = out.double().cpu(), reference.double().cpu()
    assert wide.shape == reference.shape
    if not (wide.isfinite().all() and reference.isfinite().all()):
        return float("inf")
    return float((wide - reference).norm() / reference.norm().clamp_min(1e-30))


def wide(value: Any) -> Any:
    """A float64 copy of a floating tensor; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value.clone()
    return value


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill what torch.empty returns with NaN, or the lowest integer, so that a hole shows."""
    plain = torch.empty

    def empty(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = plain(*args, **kwargs)
        low = None if made.is_floating_point() else torch.iinfo(made.dtype).min
        return made.fill_(float("nan") if low is None else low)

    torch.empty = empty  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.empty = plain


def compare(call: BoundKernel, op: str, *args: Any, **keywords: Any) -> float:
    """Relative error of what the op returns, or of all arguments that it changes in place."""
    expected = [wide(arg) for arg in args]
    if op == "rope@1":
        expected[3] = expected[3].float()
    reference = OPS[op].reference(*expected, **keywords)
    with poisoned():
        out = call(*args)
    pairs = [] if reference is None else [(out, reference)]
    pairs += [
        (arg, ref)
        for arg, ref in zip(args, expected, strict=True)
        if isinstance(arg, torch.Tensor) and arg.is_floating_point()
    ]
    return max(relative_error(out, ref) for out, ref in pairs)


@dataclass(frozen=True)
class Pool:
    """Paged KV of rows of given lengths, their pages shuffled; stale memory holds NaN."""

    keys: torch.Tensor
    values: torch.Tensor
    table: torch.Tensor
    row_slot: torch.Tensor
    kv_len: torch.Tensor


def make_pool(
    where: Where, lengths: list[int], kv_heads: int, head_dim: int, page: int, layers: int = 2
) -> Pool:
    """Keys and values as the slab lays them out: strided views with all layers in a page."""
    width = max(-(-n // page) for n in lengths) + 2
    pages = sum(-(-n // page) for n in lengths) + 1
    slab = where.normal(pages, layers, 2, kv_heads, page, head_dim)
    slots = len(lengths) + 2
    table = torch.zeros((slots, width), dtype=torch.int32)
    order = (torch.randperm(pages - 1) + 1).to(torch.int32)
    row_slot = (torch.randperm(len(lengths)) + 1).to(torch.int32)
    used = 0
    for slot, length in zip(row_slot.tolist(), lengths, strict=True):
        count = -(-length // page)
        table[slot, :count] = order[used : used + count]
        if length % page:  # what lies behind the last token of a page is nobody's
            slab[int(order[used + count - 1]), :, :, :, length % page :] = float("nan")
        used += count
    return Pool(
        keys=slab[:, layers - 1, 0],
        values=slab[:, layers - 1, 1],
        table=table.to(where.device),
        row_slot=row_slot.to(where.device),
        kv_len=where.ints(lengths),
    )


def fused_qkv(where: Where, tokens: int, heads: int, kv_heads: int, head_dim: int) -> Any:
    """q, k and v as views of one projection's output."""
    fused = where.normal(tokens, heads + 2 * kv_heads, head_dim)
    return fused.split([heads, kv_heads, kv_heads], dim=1)


def embedding(where: Where, rows: int = 5, vocab: int = 97, hidden: int = 200) -> float:
    ids = torch.randint(vocab, (rows,), device=where.device)
    call = where.bind("embedding@1", vocab=vocab, hidden=hidden)
    return compare(call, "embedding@1", ids, where.normal(vocab, hidden))


def gather_rows(where: Where, rows: int = 5, hidden: int = 200) -> float:
    x = where.normal(rows + 3, hidden + 8)[:, :hidden]
    index = torch.randint(rows + 3, (rows,), device=where.device)
    return compare(where.bind("gather_rows@1"), "gather_rows@1", x, index)


def linear(where: Where, rows: int = 5, n: int = 48, k: int = 80, bias: bool = True) -> float:
    call = where.bind("linear@1", n=n, k=k, bias=bias)
    args = [where.normal(rows, k), where.normal(n, k), where.normal(n) if bias else None]
    return compare(call, "linear@1", *args)


def rms_norm(where: Where, rows: int = 3, hidden: int = 576) -> float:
    x = where.normal(rows, hidden + 16)[:, :hidden]
    call = where.bind("rms_norm@1", hidden=hidden)
    return compare(call, "rms_norm@1", x, where.normal(hidden), 1e-6)


def rms_norm_heads(where: Where, rows: int = 3, heads: int = 5, head_dim: int = 64) -> float:
    q, _, _ = fused_qkv(where, rows, heads, 1, head_dim)
    call = where.bind("rms_norm@1", hidden=head_dim)
    return compare(call, "rms_norm@1", q, where.normal(head_dim), 1e-6)


def add_rms_norm(where: Where, rows: int = 3, hidden: int = 576) -> float:
    call = where.bind("add_rms_norm@1", hidden=hidden)
    x, residual = where.normal(rows, hidden + 8)[:, :hidden], where.normal(rows, hidden)
    return compare(call, "add_rms_norm@1", x, residual, where.normal(hidden), 1e-6)


def rope(
    where: Where, rows: int = 4, heads: int = 6, kv_heads: int = 2, head_dim: int = 64,
    rotary: int = 64, interleaved: bool = False, longest: int = 50,
) -> float:  # fmt: skip
    q, k, _ = fused_qkv(where, rows, heads, kv_heads, head_dim)
    positions = torch.randint(longest, (rows,), dtype=torch.int32, device=where.device)
    angles = torch.rand(longest, rotary // 2, device=where.device) * 6.3
    table = torch.cat([angles.cos(), angles.sin()], dim=1)
    call = where.bind("rope@1", head_dim=head_dim, rotary=rotary, interleaved=interleaved)
    return compare(call, "rope@1", q, k, positions, table, interleaved=interleaved)


def kv_write(
    where: Where, kv_heads: int = 3, head_dim: int = 64, page: int = 16, count: int = 6
) -> float:
    """The new tokens cross a page border."""
    pool = make_pool(where, [page - 2, 2 * page], kv_heads, head_dim, page)
    pool.keys.nan_to_num_(), pool.values.nan_to_num_()
    pool.table[int(pool.row_slot[0]), 1] = pool.table[int(pool.row_slot[1]), 1]  # a page more
    _, k, v = fused_qkv(where, count, 1, kv_heads, head_dim)
    positions = torch.arange(page - 3, page - 3 + count, dtype=torch.int32, device=where.device)
    call = where.bind("kv_write@1", kv_heads=kv_heads, head_dim=head_dim, page_size=page)
    slots = pool.row_slot[:1].expand(count).contiguous()
    args = (k, v, pool.keys, pool.values, pool.table, slots, positions)
    return compare(call, "kv_write@1", *args)


def silu_and_mul(where: Where, rows: int = 3, inter: int = 300) -> float:
    call = where.bind("silu_and_mul@1", inter=inter)
    return compare(call, "silu_and_mul@1", where.normal(rows, 2 * inter + 8)[:, : 2 * inter])


def decode(
    where: Where, lengths: tuple[int, ...] = (1, 16, 17, 0, 150), heads: int = 6,
    kv_heads: int = 2, head_dim: int = 64, page: int = 16, window: int | None = None,
    kernel: str = "triton",
) -> float:  # fmt: skip
    """Rows of one token, up to a page border, over it, dead, and over several blocks."""
    pool = make_pool(where, list(lengths), kv_heads, head_dim, page)
    q, _, _ = fused_qkv(where, len(lengths), heads, kv_heads, head_dim)
    traits = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "page_size": page}
    call = where.bind("attention_decode@1", kernel, **traits, window=window)
    args = (q, pool.keys, pool.values, pool.table, pool.row_slot, pool.kv_len, head_dim**-0.5)
    return _attention_error(call, "attention_decode@1", args, window)


def prefill(
    where: Where, rows: tuple[tuple[int, int], ...] = ((20, 20), (1, 33), (7, 50)),
    heads: int = 6, kv_heads: int = 2, head_dim: int = 64, page: int = 16,
    window: int | None = None, padding: int = 3, kernel: str = "triton",
) -> float:  # fmt: skip
    """(new, in the cache) tokens of rows: from the start, one token, and behind a cached prefix."""
    pool = make_pool(where, [length for _, length in rows], kv_heads, head_dim, page)
    starts = [0]
    for new, _ in rows:
        starts.append(starts[-1] + new)
    q, _, _ = fused_qkv(where, starts[-1] + padding, heads, kv_heads, head_dim)
    traits = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "page_size": page}
    call = where.bind("attention_prefill@1", kernel, **traits, window=window)
    args = (
        *(q, pool.keys, pool.values, pool.table, pool.row_slot),
        *(where.ints(starts), pool.kv_len, head_dim**-0.5),
    )
    return _attention_error(call, "attention_prefill@1", args, window)


def _attention_error(call: BoundKernel, op: str, args: Any, window: int | None) -> float:
    reference = OPS[op].reference(*(wide(arg) for arg in args), window=window)
    with poisoned():
        out = call(*args)
    return relative_error(out, reference)


@dataclass(frozen=True)
class SampleArgs:
    """Arguments of sample@1 for rows that use every filter and mixture of them."""

    rows: tuple[torch.Tensor, ...]

    def take(self, index: list[int]) -> SampleArgs:
        return SampleArgs(tuple(value[index].contiguous() for value in self.rows))


FILTERS = (
    # temperature, top_k, top_p, min_p
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.7, 20, 1.0, 0.0),
    (1.3, 0, 0.9, 0.0),
    (0.6, 20, 0.95, 0.0),
    (1.0, 0, 1.0, 0.1),
    (0.9, 50, 0.8, 0.05),
    (5.0, 0, 0.999, 0.0),
    (1.0, 1, 1.0, 0.0),
    (1.0, 0, 0.0, 0.0),
    (1e-6, 10, 0.5, 0.0),
)


def sample_args(where: Where, vocab: int, repeats: int = 1) -> SampleArgs:
    """Rows of logits with ties, -inf, and one each of NaN, +inf and all -inf at the end."""
    filters = FILTERS * repeats + (FILTERS[1], FILTERS[4], FILTERS[0])
    count = len(filters)
    logits = torch.randn(count, vocab, device=where.device) * 3
    logits[::3] = logits[::3].round()  # many ties
    logits[1::3, : vocab // 4] = float("-inf")
    logits[-3, vocab // 2] = float("nan")
    logits[-2, vocab // 3] = float("inf")
    logits[-1] = float("-inf")
    columns = list(zip(*filters, strict=True))
    floats = [torch.tensor(columns[i], dtype=torch.float32, device=where.device) for i in (0, 2, 3)]
    top_k = where.ints(list(columns[1]))
    seed = torch.randint(-(2**62), 2**62, (count,), device=where.device)
    position = torch.randint(2**34, (count,), device=where.device)
    return SampleArgs((logits, floats[0], top_k, floats[1], floats[2], seed, position))


def sample_mismatches(where: Where, vocab: int, repeats: int = 1) -> list[tuple[int, int, int]]:
    """(row, drawn, reference's) where the kernel draws another token than the reference."""
    args = sample_args(where, vocab, repeats)
    call = where.bind("sample@1", vocab=vocab)
    with poisoned():
        drawn = call(*args.rows).tolist()
    wanted = OPS["sample@1"].reference(*(value.cpu() for value in args.rows)).tolist()
    rows = enumerate(zip(drawn, wanted, strict=True))
    return [(row, got, want) for row, (got, want) in rows if got != want]


def page_table_update(where: Where, entries: int = 300, count: int = 290) -> float:
    """Stale epochs are dropped, and what lies behind the count is not read. Exact or infinite."""
    slots, width = 9, 64
    places = torch.randperm(slots * width)[:entries]
    slot = (places // width).to(torch.int32)
    wanted_epochs = torch.randint(0, 5, (slots,), dtype=torch.int32)
    columns = (slot, wanted_epochs[slot.long()], (places % width).to(torch.int32))
    page = torch.randint(1, 1000, (entries,), dtype=torch.int32)
    table = torch.randint(1, 1000, (slots, width), dtype=torch.int32)
    epochs = torch.randint(0, 5, (slots,), dtype=torch.int32)
    here = [table, epochs, *columns, page, torch.tensor([count], dtype=torch.int32)]
    there = [value.to(where.device) for value in here]
    OPS["page_table_update@1"].reference(*here)
    where.bind("page_table_update@1")(*there)
    same = all(torch.equal(a, b.cpu()) for a, b in zip(here, there, strict=True))
    return 0.0 if same else float("inf")


Case = Callable[[Where], float]

TINY: dict[str, Case] = {
    "embedding": embedding,
    "gather_rows": gather_rows,
    "linear": linear,
    "rms_norm": rms_norm,
    "rms_norm_heads": rms_norm_heads,
    "add_rms_norm": add_rms_norm,
    "rope": rope,
    "rope_partial": lambda where: rope(where, rotary=32),
    "rope_interleaved": lambda where: rope(where, interleaved=True),
    "kv_write": kv_write,
    "silu_and_mul": silu_and_mul,
    "page_table_update": page_table_update,
    "decode": decode,
    "decode_one_head_each": lambda where: decode(where, heads=2),
    "decode_window": lambda where: decode(where, window=20),
    "decode_one_row": lambda where: decode(where, lengths=(70,), head_dim=128, heads=8),
    "prefill": prefill,
    "prefill_window": lambda where: prefill(where, window=9),
    "prefill_one_row": lambda where: prefill(where, rows=((40, 90),), head_dim=32, padding=0),
}
"""Cases small enough for the interpreter."""
