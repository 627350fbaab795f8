# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Times every kernel at the shapes of Qwen3-8B on one GPU, next to FlashInfer where it runs.

    python benchmarks/kernels.py [--out FOLDER] [--sweep] [--warm 0/12]

Each time is of one launch (sample: of its six, logprobs: of its two) in a captured graph that walks
over many layers' worth of data, so neither launch gaps nor caches flatter it. bytes = what must be
read and written once. The median of 20 replays. --warm i/n only compiles, every n-th line from the
i-th on: for n processes side by side, first.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
import triton
from tokenspeed_sdk.contracts.kernel import CallSite, HostStep
from tokenspeed_sdk.contracts.platform import Capabilities

from tokenspeed_nvidia.catalog import kernels
from tokenspeed_nvidia.kernels import attention_decode, attention_prefill, attention_split

LAYERS, HEADS, KV_HEADS, HEAD_DIM, PAGE = 36, 32, 8, 128, 16
HIDDEN, INTER, VOCAB = 4096, 12288, 151936
SCALE = HEAD_DIM**-0.5
TRAITS = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "page_size": PAGE}
Run: TypeAlias = Callable[..., Any]
Call: TypeAlias = Callable[[], Any]
FLASHINFER = importlib.util.find_spec("flashinfer") is not None


class Warm:
    """Which lines are compiled only; with one of one, all are timed."""

    part, parts, seen = 0, 1, 0

    @classmethod
    def takes(cls) -> bool:
        """Whether the next line is for this process."""
        cls.seen += 1
        return cls.seen % cls.parts == cls.part


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


def time_calls(calls: list[Call], repeats: int = 20) -> float:
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


def line(name: str, kernel: str, calls: list[Call], moved: float = 0, flops: float = 0) -> Line:
    if Warm.parts > 1:
        if Warm.takes():
            calls[0]()
        return Line(name, kernel, 0, 0, "")
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


def context(rows: int, length: int, layers: int, fp8: bool = False) -> Context:
    layers = 1 if Warm.parts > 1 else layers
    count = -(-length // PAGE)
    pages = rows * count + 1
    slab = randn(pages, layers, 2, KV_HEADS, PAGE, HEAD_DIM)
    if fp8:
        slab = slab.to(torch.float8_e4m3fn)
    order = torch.randperm(pages - 1, device="cuda").int() + 1
    table = torch.zeros((rows + 2, count + 8), dtype=torch.int32, device="cuda")
    table[1 : rows + 1, :count] = order.view(rows, count)
    slots = torch.arange(1, rows + 1, dtype=torch.int32, device="cuda")
    return Context(slab, table, slots, torch.full_like(slots, length))


DECODE = (
    *((rows, 1152) for rows in (1, 2, 4, 8, 16, 32, 64, 128)),
    *((rows, 26000) for rows in (1, 8)),
)
EVEN_TILES = ((32, 1, 3, 4), (32, 1, 3, 6), (64, 2, 3, 3), (64, 4, 3, 3))
SPLIT_TILES = tuple(
    (*block, splits, 128 // block[0])
    for block in ((32, 1, 3), (64, 2, 3), (64, 4, 3))
    for splits in (2, 4, 8, 16)
)
PREFILL = ((1, 2048, 2048), (1, 8192, 8192), (1, 512, 24576), (8, 512, 24576))
PREFILL_TILES = ((128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3))


def decode_lines(sweep: bool, fp8: bool = False) -> Iterator[Line]:
    """One query per row; bytes are those of keys and values."""
    for rows, length in DECODE:
        yield from decode_at(rows, length, sweep, fp8)
        torch.cuda.empty_cache()


def decode_at(rows: int, length: int, sweep: bool, fp8: bool) -> Iterator[Line]:
    made = context(rows, length, LAYERS, fp8)
    q = randn(rows, HEADS, HEAD_DIM)
    tail = (made.table, made.row_slot, made.kv_len, SCALE)
    one = torch.ones(1, device="cuda")
    scales = (one, one) if fp8 else (None, None)
    name = f"decode{'_fp8' if fp8 else ''} {rows} x {length}"
    moved = (2.0 if fp8 else 4.0) * rows * length * KV_HEADS * HEAD_DIM

    def layers(run: Run) -> list[Call]:
        return [partial(run, q, *made.layer(i), *tail) for i in range(made.slab.shape[1])]

    units = torch.cuda.get_device_properties(0).multi_processor_count
    fixed: dict[str, Any] = {"window": None, "units": units, "ptx": True, "scales": scales}
    for kernel, module, run, tiles in (
        ("even", attention_decode, attention_decode.attention_decode, EVEN_TILES),
        ("split", attention_split, attention_split.attention_split, SPLIT_TILES),
    ):
        for pdl in (False, True):
            said = f"{kernel}{', dependent launch' if pdl else ''}"
            yield line(name, said, layers(partial(run, **fixed, pdl=pdl)), moved)
        for values in tiles if sweep else ():
            tile = module.Tile(*values)  # type: ignore[attr-defined]
            try:
                made_line = line(
                    name, f"{kernel} {values}", layers(partial(run, **fixed, tile=tile)), moved
                )
            except triton.runtime.errors.OutOfResources:
                continue
            yield made_line
    if FLASHINFER and not fp8:
        other = bind("attention_decode@1", "flashinfer", **TRAITS, window=None)
        starts = torch.arange(rows + 1, dtype=torch.int32)
        step = HostStep(starts, made.kv_len.cpu(), made.table, made.row_slot)
        yield line(name, "flashinfer", layers(partial(other, plan=other.plan(step, SCALE))), moved)


def prefill_lines(sweep: bool) -> Iterator[Line]:
    """Rows of new tokens behind a cached prefix, or from the start."""
    for rows, new, length in PREFILL:
        yield from prefill_at(rows, new, length, sweep)
        torch.cuda.empty_cache()


def prefill_at(rows: int, new: int, length: int, sweep: bool) -> Iterator[Line]:
    count = 4
    made = context(rows, length, count)
    q = randn(rows * new, HEADS, HEAD_DIM)
    starts = torch.arange(0, rows * new + 1, new, dtype=torch.int32, device="cuda")
    tail = (made.table, made.row_slot, starts, made.kv_len, SCALE)
    pairs = rows * (new * (length - new) + new * (new + 1) / 2)
    name, flops = f"prefill {rows} x {new} of {length}", 4.0 * HEADS * HEAD_DIM * pairs

    def layers(run: Run) -> list[Call]:
        return [partial(run, q, *made.layer(i), *tail) for i in range(count)]

    own = bind("attention_prefill@1", **TRAITS, window=None)
    yield line(name, "triton", layers(own), flops=flops)
    for values in PREFILL_TILES if sweep else ():
        tile = attention_prefill.Tile(*values)
        run = partial(attention_prefill.attention_prefill, window=None, tile=tile)
        yield line(name, str(values), layers(run), flops=flops)
    if FLASHINFER:
        other = bind("attention_prefill@1", "flashinfer", **TRAITS, window=None)
        step = HostStep(starts.cpu(), made.kv_len.cpu(), made.table, made.row_slot)
        run = partial(other, plan=other.plan(step, SCALE))
        yield line(name, "flashinfer", layers(run), flops=flops)


def small_lines(sweep: bool) -> Iterator[Line]:
    """The kernels that move bytes, from one decode row to a prefill chunk."""
    for tokens in (1, 32, 128, 8192):
        yield from small_at(tokens, LAYERS if tokens < 1000 else 8)
        torch.cuda.empty_cache()


def small_at(tokens: int, sets: int) -> Iterator[Line]:
    xs, residuals = ([randn(tokens, HIDDEN) for _ in range(sets)] for _ in range(2))
    heads = [HEADS, KV_HEADS, KV_HEADS]
    qkv = [randn(tokens, sum(heads), HEAD_DIM).split(heads, 1) for _ in range(sets)]
    gates = [randn(tokens, 2 * INTER) for _ in range(sets)]
    made = context(1, max(tokens, PAGE), sets)
    cos_sin = randn(40960, HEAD_DIM, dtype=torch.float32)
    positions = torch.arange(tokens, dtype=torch.int32, device="cuda")
    where = (made.table, torch.ones_like(positions), positions)
    wide, narrow = randn(HIDDEN), randn(HEAD_DIM)
    norm, add_norm = bind("rms_norm@1", hidden=HIDDEN), bind("add_rms_norm@1", hidden=HIDDEN)
    rope = bind("rope@1", head_dim=HEAD_DIM, rotary=HEAD_DIM, interleaved=False)
    write = bind("kv_write@1", kv_heads=KV_HEADS, head_dim=HEAD_DIM, page_size=PAGE)
    gate = bind("silu_and_mul@1", inter=INTER)
    row, head = 2.0 * tokens * HIDDEN, 2.0 * tokens * HEAD_DIM
    both = zip(xs, residuals, strict=True)
    calls: dict[str, tuple[list[Call], float]] = {
        "rms_norm": ([partial(norm, x, wide, 1e-6) for x in xs], 2 * row),
        "add_rms_norm": ([partial(add_norm, x, r, wide, 1e-6) for x, r in both], 4 * row),
        "rms_norm of q": ([partial(norm, q, narrow, 1e-6) for q, _, _ in qkv], 2 * HEADS * head),
        "rope": (
            [partial(rope, q, k, positions, cos_sin) for q, k, _ in qkv],
            2 * (HEADS + KV_HEADS) * head,
        ),
        "kv_write": (
            [partial(write, k, v, *made.layer(i), *where) for i, (_, k, v) in enumerate(qkv)],
            4 * KV_HEADS * head,
        ),
        "silu_and_mul": ([partial(gate, x) for x in gates], 6.0 * tokens * INTER),
    }
    for name, (each, moved) in calls.items():
        yield line(f"{name} {tokens}", "triton", each, moved)


FILTERS = {
    "greedy": (0.0, 0, 1.0),
    "temperature": (0.8, 0, 1.0),
    "top-k 20, top-p 0.95": (0.6, 20, 0.95),
    "top-p 0.9": (1.0, 0, 0.9),
}


def sample_lines(sweep: bool) -> Iterator[Line]:
    """Normal logits: flatter than a model's, so the filters keep more than they usually do."""
    sample = bind("sample@1", vocab=VOCAB)
    for rows in (1, 32, 128):
        logits = [randn(rows, VOCAB, dtype=torch.float32) * 3 for _ in range(8)]
        seeds = torch.randint(2**40, (rows,), device="cuda")
        for mode, (temperature, top_k, top_p) in FILTERS.items():
            heat, mass, none = (
                torch.full((rows,), x, device="cuda") for x in (temperature, top_p, 0.0)
            )
            top = torch.full((rows,), top_k, dtype=torch.int32, device="cuda")
            calls = [partial(sample, x, heat, top, mass, none, seeds, seeds) for x in logits]
            yield line(f"sample {rows} {mode}", "triton", calls, 4.0 * rows * VOCAB)


def around_sample_lines(sweep: bool) -> Iterator[Line]:
    """What stands around a draw: for rows that ask for nothing, which is what most steps pay, and
    for rows that ask for everything."""
    adjust, record = bind("adjust_logits@1", vocab=VOCAB), bind("record_tokens@1", vocab=VOCAB)
    verify, logprobs = bind("adjust_logits_verify@1", vocab=VOCAB), bind("logprobs@1", vocab=VOCAB)
    for rows in (1, 32, 128):
        slots = rows + 2
        logits = [randn(rows, VOCAB, dtype=torch.float32) * 3 for _ in range(8)]
        slot = torch.arange(1, rows + 1, device="cuda")
        for asks in (False, True):
            records = torch.zeros((slots, 4 + 3 * 1536), dtype=torch.int32, device="cuda")
            wanted, penalties = records[:, :1], records[:, 1:4].view(torch.float32)
            lists = records[:, 4:1540], records[:, 1540:3076].view(torch.float32), records[:, 3076:]
            if asks:
                wanted.fill_(21)
                penalties.fill_(1.5)
                lists[2][:, :20] = 2**30
            counts = torch.zeros((slots, VOCAB), dtype=torch.int32, device="cuda")
            ids = torch.zeros((slots, 21), dtype=torch.int32, device="cuda")
            values = torch.zeros((slots, 21), device="cuda")
            last = torch.zeros(slots, dtype=torch.int64, device="cuda")
            settings = (wanted, penalties, counts, *lists)
            mode = f"{rows} {'everything' if asks else 'nothing'}"
            moved = 4.0 * rows * VOCAB if asks else 0.0
            kept = torch.zeros_like(logits[0])
            calls = [partial(adjust, x, kept, slot, slot, *settings) for x in logits]
            yield line(f"adjust_logits {mode}", "triton", calls, 4 * moved)
            runs, guess = 1 + slot // 8, slot.int()
            calls = [partial(verify, x, kept, runs, slot, guess, *settings) for x in logits]
            yield line(f"adjust_logits_verify {mode}", "triton", calls, 4 * moved)
            calls = [partial(logprobs, x, slot, slot, wanted, ids, values) for x in logits]
            yield line(f"logprobs {mode}", "triton", calls, moved)
            calls = [partial(record, last, counts, penalties, slot, slot)] * 8
            yield line(f"record_tokens {mode}", "triton", calls, 0.0)


PARTS: dict[str, Callable[[bool], Iterator[Line]]] = {
    "decode": decode_lines,
    "decode_fp8": partial(decode_lines, fp8=True),
    "prefill": prefill_lines,
    "small": small_lines,
    "sample": sample_lines,
    "around_sample": around_sample_lines,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="folder for kernels.json")
    parser.add_argument("--sweep", action="store_true", help="also time other tiles of attention")
    parser.add_argument(
        "--only", nargs="*", default=list(PARTS), choices=PARTS, help="parts to time"
    )
    parser.add_argument("--warm", default="0/1", help="i/n: compile only")
    args = parser.parse_args()
    Warm.part, Warm.parts = map(int, args.warm.split("/"))
    torch.manual_seed(0)
    lines = [asdict(made) for part in args.only for made in PARTS[part](args.sweep)]
    facts = {
        "device": torch.cuda.get_device_name(0), "torch": torch.__version__,
        "triton": triton.__version__, "python": platform.python_version(),
    }  # fmt: skip
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "kernels.json").write_text(
            json.dumps({"facts": facts, "lines": lines}, indent=1)
        )


if __name__ == "__main__":
    main()
