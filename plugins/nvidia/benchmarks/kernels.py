# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Times every kernel at the shapes of Qwen3-8B on one GPU, next to FlashInfer where it runs.

    python benchmarks/kernels.py [--out FOLDER] [--sweep]

Each time is of one launch (sample: of its four) in a captured graph that walks over many layers'
worth of data, so neither launch gaps nor caches flatter it. bytes = what must be read and written
once. The median of 20 replays.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from tokenspeed_nvidia.catalog import kernels
from tokenspeed_nvidia.kernels import attention_decode, attention_prefill
from tokenspeed_nvidia.kernels.flashinfer import HostStep
from tokenspeed_sdk.contracts.kernel import CallSite
from tokenspeed_sdk.contracts.platform import Capabilities

LAYERS, HEADS, KV_HEADS, HEAD_DIM, PAGE = 36, 32, 8, 128, 16
HIDDEN, INTER, VOCAB = 4096, 12288, 151936
SCALE = HEAD_DIM**-0.5
TRAITS = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "page_size": PAGE}
FLASHINFER = importlib.util.find_spec("flashinfer") is not None


@dataclass(frozen=True)
class Line:
    """One measurement. rate is TB/s, or TFLOP/s where flops are given."""

    name: str
    kernel: str
    microseconds: float
    rate: float
    unit: str


def bind(op: str, name: str = "triton", **traits: Any) -> Any:
    properties = torch.cuda.get_device_properties(0)
    arch = f"sm_{properties.major}{properties.minor}"
    device = Capabilities("cuda", arch, (), frozenset(), properties.multi_processor_count)
    site = CallSite(op, "benchmark", "bfloat16", device, traits)
    (kernel,) = (k for k in kernels() if k.op == op and k.name == name)
    return kernel.bind(site)


def time_calls(calls: list[Callable[[], Any]], repeats: int = 20) -> float:
    """Median microseconds of one call, all captured in one graph."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(repeats + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times[3:])[repeats // 2] * 1e3 / len(calls)


def line(name: str, kernel: str, calls: list[Callable[[], Any]], moved: float = 0, flops: float = 0) -> Line:
    us = time_calls(calls)
    rate, unit = (flops / us / 1e6, "TFLOP/s") if flops else (moved / us / 1e6, "TB/s")
    made = Line(name, kernel, us, rate, unit)
    print(f"{name:34} {kernel:26} {us:10.1f} us {rate:8.2f} {unit}", flush=True)
    return made


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, device="cuda")


@dataclass(frozen=True)
class Context:
    """KV of equal rows, all layers, as the slab lays it out."""

    slab: torch.Tensor
    table: torch.Tensor
    row_slot: torch.Tensor
    kv_len: torch.Tensor

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.slab[:, index, 0], self.slab[:, index, 1]


def context(rows: int, length: int, layers: int) -> Context:
    count = -(-length // PAGE)
    pages = rows * count + 1
    slab = randn(pages, layers, 2, KV_HEADS, PAGE, HEAD_DIM)
    order = torch.randperm(pages - 1, device="cuda").int() + 1
    table = torch.zeros((rows + 2, count + 8), dtype=torch.int32, device="cuda")
    table[1 : rows + 1, :count] = order.view(rows, count)
    slots = torch.arange(1, rows + 1, dtype=torch.int32, device="cuda")
    return Context(slab, table, slots, torch.full_like(slots, length))


DECODE = ((1, 1152), (8, 1152), (32, 1152), (128, 1152), (8, 26000))
DECODE_TILES = [
    attention_decode.Tile(*tile)
    for tile in (
        *((64, 4, 3, 2), (64, 4, 5, 2), (64, 4, 5, 3), (128, 4, 3, 2), (128, 8, 5, 1)),
        *((32, 4, 5, 3), (32, 4, 6, 4), (64, 4, 4, 3)),
    )
]


def decode_lines(sweep: bool) -> Iterator[Line]:
    for rows, length in DECODE:
        ctx = context(rows, length, LAYERS)
        q = randn(rows, HEADS, HEAD_DIM)
        moved = 2.0 * rows * length * 2 * KV_HEADS * HEAD_DIM
        name = f"decode {rows} x {length}"

        def calls(run: Callable[..., Any]) -> list[Callable[[], Any]]:
            tail = (ctx.table, ctx.row_slot, ctx.kv_len, SCALE)
            return [lambda i=i: run(q, *ctx.layer(i), *tail) for i in range(LAYERS)]

        own = bind("attention_decode@1", **TRAITS, window=None)
        yield line(name, "triton", calls(own), moved)
        for tile in DECODE_TILES if sweep else ():
            units = torch.cuda.get_device_properties(0).multi_processor_count
            run = attention_decode.attention_decode
            tuned = lambda *a, t=tile, u=units, r=run: r(*a, window=None, units=u, tile=t)  # noqa: E731
            label = f"{tile.block_n}n {tile.warps}w {tile.stages}s {tile.programs}p"
            yield line(name, label, calls(tuned), moved)
        if FLASHINFER:
            other = bind("attention_decode@1", "flashinfer", **TRAITS, window=None)
            starts = torch.arange(rows + 1, dtype=torch.int32)
            plan = other.plan(HostStep(starts, ctx.kv_len.cpu(), ctx.table, ctx.row_slot), SCALE)
            yield line(name, "flashinfer", calls(lambda *a: other(*a, plan=plan)), moved)
        del ctx
        torch.cuda.empty_cache()


PREFILL = ((1, 2048, 2048), (1, 8192, 8192), (1, 512, 24576), (8, 512, 24576))
PREFILL_TILES = [
    attention_prefill.Tile(*tile)
    for tile in ((128, 64, 8, 3), (128, 128, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3), (128, 64, 8, 4))
]


def prefill_lines(sweep: bool) -> Iterator[Line]:
    for rows, new, length in PREFILL:
        layers = 4
        ctx = context(rows, length, layers)
        q = randn(rows * new, HEADS, HEAD_DIM)
        starts = torch.arange(0, rows * new + 1, new, dtype=torch.int32, device="cuda")
        pairs = rows * (new * (length - new) + new * (new + 1) / 2)
        flops = 4.0 * HEADS * HEAD_DIM * pairs
        name = f"prefill {rows} x {new} of {length}"

        def calls(run: Callable[..., Any]) -> list[Callable[[], Any]]:
            tail = (ctx.table, ctx.row_slot, starts, ctx.kv_len, SCALE)
            return [lambda i=i: run(q, *ctx.layer(i), *tail) for i in range(layers)]

        own = bind("attention_prefill@1", **TRAITS, window=None)
        yield line(name, "triton", calls(own), flops=flops)
        for tile in PREFILL_TILES if sweep else ():
            run = attention_prefill.attention_prefill
            tuned = lambda *a, t=tile, r=run: r(*a, window=None, tile=t)  # noqa: E731
            label = f"{tile.block_m}m {tile.block_n}n {tile.warps}w {tile.stages}s"
            yield line(name, label, calls(tuned), flops=flops)
        if FLASHINFER:
            other = bind("attention_prefill@1", "flashinfer", **TRAITS, window=None)
            step = HostStep(starts.cpu(), ctx.kv_len.cpu(), ctx.table, ctx.row_slot)
            plan = other.plan(step, SCALE)
            yield line(name, "flashinfer", calls(lambda *a: other(*a, plan=plan)), flops=flops)
        del ctx
        torch.cuda.empty_cache()


def small_lines(sweep: bool) -> Iterator[Line]:
    """The kernels that move bytes, one decode row to a prefill chunk."""
    weight, head_weight = randn(HIDDEN), randn(HEAD_DIM)
    cos_sin = randn(40960, HEAD_DIM, dtype=torch.float32)
    norm, add_norm = bind("rms_norm@1", hidden=HIDDEN), bind("add_rms_norm@1", hidden=HIDDEN)
    rope = bind("rope@1", head_dim=HEAD_DIM, rotary=HEAD_DIM, interleaved=False)
    write = bind("kv_write@1", kv_heads=KV_HEADS, head_dim=HEAD_DIM, page_size=PAGE)
    gate = bind("silu_and_mul@1", inter=INTER)
    for tokens in (1, 32, 128, 8192):
        sets = LAYERS if tokens < 1000 else 8
        ctx = context(1, max(tokens, PAGE), sets)
        xs = [randn(tokens, HIDDEN) for _ in range(sets)]
        rs = [randn(tokens, HIDDEN) for _ in range(sets)]
        qkv = [randn(tokens, HEADS + 2 * KV_HEADS, HEAD_DIM) for _ in range(sets)]
        ups = [randn(tokens, 2 * INTER) for _ in range(sets)]
        positions = torch.arange(tokens, dtype=torch.int32, device="cuda")
        slots = torch.ones_like(positions)
        row, head = 2.0 * tokens * HIDDEN, 2.0 * tokens * HEAD_DIM
        each = range(sets)
        q, k, v = ([x.split([HEADS, KV_HEADS, KV_HEADS], 1)[n] for x in qkv] for n in range(3))
        yield line(f"rms_norm {tokens}", "triton", [lambda i=i: norm(xs[i], weight, 1e-6) for i in each], 2 * row)
        yield line(f"add_rms_norm {tokens}", "triton", [lambda i=i: add_norm(xs[i], rs[i], weight, 1e-6) for i in each], 4 * row)
        yield line(f"q norm {tokens}", "triton", [lambda i=i: norm(q[i], head_weight, 1e-6) for i in each], 2 * HEADS * head)
        yield line(f"rope {tokens}", "triton", [lambda i=i: rope(q[i], k[i], positions, cos_sin) for i in each], 2 * (HEADS + KV_HEADS) * head)
        yield line(f"kv_write {tokens}", "triton", [lambda i=i: write(k[i], v[i], *ctx.layer(i), ctx.table, slots, positions) for i in each], 4 * KV_HEADS * head)
        yield line(f"silu_and_mul {tokens}", "triton", [lambda i=i: gate(ups[i]) for i in each], 6.0 * tokens * INTER)
        del xs, rs, qkv, ups, ctx
        torch.cuda.empty_cache()


def sample_lines(sweep: bool) -> Iterator[Line]:
    sample = bind("sample@1", vocab=VOCAB)
    modes = {"greedy": (0.0, 0, 1.0), "temperature": (0.8, 0, 1.0), "top-k 20, top-p 0.95": (0.6, 20, 0.95), "top-p 0.9": (1.0, 0, 0.9)}
    for rows in (1, 32, 128):
        logits = [randn(rows, VOCAB, dtype=torch.float32) * 3 for _ in range(8)]
        for mode, (temperature, top_k, top_p) in modes.items():
            floats = [torch.full((rows,), x, device="cuda") for x in (temperature, top_p, 0.0)]
            ks = torch.full((rows,), top_k, dtype=torch.int32, device="cuda")
            seeds = torch.randint(2**40, (rows,), device="cuda")
            args = (floats[0], ks, floats[1], floats[2], seeds, seeds)
            calls = [lambda x=x, a=args: sample(x, *a) for x in logits]
            yield line(f"sample {rows} {mode}", "triton", calls, 4.0 * rows * VOCAB)


PARTS: dict[str, Callable[[bool], Iterator[Line]]] = {
    "decode": decode_lines,
    "prefill": prefill_lines,
    "small": small_lines,
    "sample": sample_lines,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for kernels.json")
    parser.add_argument("--sweep", action="store_true", help="also time other tiles of attention")
    parser.add_argument("--only", nargs="*", default=list(PARTS), choices=PARTS, help="parts to time")
    args = parser.parse_args()
    torch.manual_seed(0)
    lines = [asdict(made) for part in args.only for made in PARTS[part](args.sweep)]
    facts = {
        "device": torch.cuda.get_device_name(0), "torch": torch.__version__,
        "triton": triton.__version__, "python": platform.python_version(),
    }  # fmt: skip
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "kernels.json").write_text(json.dumps({"facts": facts, "lines": lines}, indent=1))


if __name__ == "__main__":
    main()
