# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Times the chain of kernels of a decode step of Qwen3-8B, by rows and by tiling.

    python benchmarks/few_rows.py [--fp8] [--rows 1 8 32] [--sweep] [--warm 0/12]

A layer: [norm, qkv] [head norms, rotation, KV write] [attention of 1,152 tokens a row] [o]
[norm, gate and up, silu] [down]. All layers and the head stand in one captured graph, each with
weights of its own, so that every byte comes from memory. The median of 7 replays, milliseconds.
--warm i/n only compiles, every n-th variant from the i-th on: for n processes side by side, first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from kernels import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INTER,
    KV_HEADS,
    LAYERS,
    SCALE,
    TRAITS,
    VOCAB,
    bind,
    context,
    randn,
    time_calls,
)
from tokenspeed_sdk.ops.fp8 import quantize_weight

from tokenspeed_nvidia.kernels import few_rows, few_rows_fp8
from tokenspeed_nvidia.kernels.few_rows import Tiling, few_rows_linear
from tokenspeed_nvidia.kernels.norm import add_rms_norm_into
from tokenspeed_nvidia.kernels.rope_kv_write import rope_kv_write

QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
SIZES = {
    "qkv": (QKV, HIDDEN), "o": (HIDDEN, HIDDEN), "gate_up": (2 * INTER, HIDDEN),
    "down": (HIDDEN, INTER), "head": (VOCAB, HIDDEN),
}  # fmt: skip
CONTEXT = 1152


@dataclass(frozen=True)
class Variant:
    """One way to launch the step. ``tilings`` are by site; others choose their own.

    ``plain`` are the sites without dependent launch: those of SIZES, "norm", "rope", "attention",
    "codes of o", "codes of down".
    """

    name: str
    plain: Collection[str] = ()
    vector_rows: int = 1
    tilings: dict[str, Tiling] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def weights(layers: int, fp8: bool) -> dict[str, list[Any]]:
    """By site; those of the head in bf16."""
    made: dict[str, list[Any]] = {}
    for site, (n, k) in SIZES.items():
        each = [randn(n, k) * k**-0.5 for _ in range(1 if site == "head" else layers)]
        made[site] = [quantize_weight(w) for w in each] if fp8 and site != "head" else each
    return made


class Step:
    """The calls of one step at a number of rows."""

    def __init__(self, rows: int, layers: int, fp8: bool, held: dict[str, list[Any]]) -> None:
        self.rows, self.layers, self.fp8, self.weights = rows, layers, fp8, held
        self.kv = context(rows, CONTEXT, layers)
        self.positions = torch.full((rows,), CONTEXT - 1, dtype=torch.int32, device="cuda")
        self.cos_sin = randn(40960, HEAD_DIM, dtype=torch.float32)
        self.norm, self.head_norm = randn(HIDDEN), randn(HEAD_DIM)
        self.attend = bind("attention_decode@1", "split", **TRAITS, window=None)

    def multiply(self, how: Variant, site: str, layer: int, x: Any, gate: bool = False) -> Any:
        weight, tiling = self.weights[site][layer], how.tilings.get(site)
        pdl = site not in how.plain
        if isinstance(weight, torch.Tensor):
            return few_rows_linear(x, weight, gate=gate, pdl=pdl, tiling=tiling)
        if isinstance(x, torch.Tensor):
            x = few_rows_fp8.quantize_rows(x, pdl=pdl and f"codes of {site}" not in how.plain)
        return few_rows_fp8.product(
            x, *weight, None, torch.bfloat16, gate=gate, pdl=pdl, tiling=tiling,
            vector_rows=how.vector_rows, **how.options,
        )  # fmt: skip

    def add_norm(self, how: Variant, x: Any, stream: Any) -> tuple[Any, Any]:
        summed = torch.empty_like(x)
        run = few_rows_fp8.add_norm_quantize_rows if self.fp8 else add_rms_norm_into
        return run(summed, x, stream, self.norm, 1e-6, pdl="norm" not in how.plain), summed

    def layer(self, how: Variant, index: int, x: Any, stream: Any) -> tuple[Any, Any]:
        normed, stream = self.add_norm(how, x, stream)
        fused = self.multiply(how, "qkv", index, normed).view(self.rows, -1, HEAD_DIM)
        q, k, v = fused.split([HEADS, KV_HEADS, KV_HEADS], 1)
        cache, norms = self.kv.layer(index), (self.head_norm, self.head_norm)
        where = (self.kv.table, self.kv.row_slot)
        rope_kv_write(
            q, k, v, self.positions, self.cos_sin, *cache, *where, *norms, None, None, 1e-6,
            interleaved=False, pdl="rope" not in how.plain,
        )  # fmt: skip
        mixed = self.attend(
            q, *cache, *where, self.kv.kv_len, SCALE, pdl="attention" not in how.plain
        ).view(self.rows, -1)
        mixed = self.multiply(how, "o", index, mixed)
        normed, stream = self.add_norm(how, mixed, stream)
        inner = self.multiply(how, "gate_up", index, normed, gate=True)
        return self.multiply(how, "down", index, inner), stream

    def run(self, how: Variant) -> Any:
        few_rows.VECTOR_ROWS = how.vector_rows
        x = stream = randn_like_rows(self.rows)
        for index in range(self.layers):
            x, stream = self.layer(how, index, x, stream)
        normed = add_rms_norm_into(torch.empty_like(x), x, stream, self.norm, 1e-6, pdl=True)
        return self.multiply(how, "head", 0, normed)


def randn_like_rows(rows: int) -> torch.Tensor:
    """Hidden states that a capture may make."""
    return torch.full((rows, HIDDEN), 0.5, dtype=torch.bfloat16, device="cuda")


def variants(rows: int, fp8: bool, sweep: bool) -> Iterator[Variant]:
    """The one in use, without dependent launch, and what a sweep tries."""
    yield Variant("as chosen")
    yield Variant("no pdl", plain=(*SIZES, "norm", "rope", "attention"))
    codes = ("codes of o", "codes of down") if fp8 else ()
    for site in (*SIZES, "norm", "rope", "attention", *codes):
        yield Variant(f"no pdl in {site}", plain=(site,))
    if sweep:
        yield from (vector_variants if rows == 1 else tile_variants)(rows, fp8)


def vector_variants(rows: int, fp8: bool) -> Iterator[Variant]:
    for warps in (1, 2) if fp8 else ():
        yield Variant(f"{warps} warps", options={"warps": warps})
    yield Variant("tiles", vector_rows=0)


def tile_variants(rows: int, fp8: bool) -> Iterator[Variant]:
    """One site at a time is cut in another way."""
    for site in SIZES:
        for stages in (3, 4, 6, 8):
            changed = {site: tiling(site, rows, fp8, stages=stages)}
            yield Variant(f"{site} {stages} stages", tilings=changed)
        for used in (64, 128) if fp8 else (32, 48, 64) if site in ("qkv", "o", "down") else ():
            yield Variant(f"{site} used {used}", tilings={site: tiling(site, rows, fp8, used=used)})
        for split in (1, 2, 4) if site in ("qkv", "o", "down") else ():
            changed = {site: tiling(site, rows, fp8, split=split)}
            yield Variant(f"{site} split {split}", tilings=changed)


def tiling(site: str, rows: int, fp8: bool, **changed: int) -> Tiling:
    """The chosen one but for some numbers."""
    n, k = SIZES[site]
    gate = site == "gate_up"
    if fp8 and site != "head":
        base = few_rows_fp8.choose_tiling(rows, n, k)
    else:
        base = few_rows.choose_tiling(rows, n, k, gate, few_rows.H200_UNITS)
    return Tiling(**(vars(base) | changed))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--fp8", action="store_true", help="weights of eight bits")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--sweep", action="store_true", help="also other tilings")
    parser.add_argument("--like", nargs="*", default=[""], help="only names that hold one of these")
    parser.add_argument("--warm", help="i/n: compile only")
    args = parser.parse_args()
    torch.manual_seed(0)
    part, parts = map(int, args.warm.split("/")) if args.warm else (0, 1)
    layers = 1 if args.warm else LAYERS
    held, count = weights(layers, args.fp8), 0
    for rows in args.rows:
        step = Step(rows, layers, args.fp8, held)
        for how in variants(rows, args.fp8, args.sweep):
            if not any(text in how.name for text in args.like):
                continue
            count += 1
            if count % parts != part:
                continue
            call: Callable[[], Any] = partial(step.run, how)
            if args.warm:
                call()
                continue
            try:
                print(f"{rows:3} {how.name:22} {time_calls([call], 7) / 1e3:7.3f} ms", flush=True)
            except Exception as error:  # too much shared memory: not a variant of this GPU
                print(f"{rows:3} {how.name:22} {type(error).__name__}: {str(error)[:80]}")
        del step
        torch.cuda.empty_cache()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
