# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Compiles kernels for GPUs that are not here, and prints what the code holds, as JSON.

    python compiled.py sm_90 decode prefill ...

The launches are recorded from the plugin's own entry functions, so what is compiled is what would
run: same signature, divisibility, constants, warps and stages. Each compile is a forked process: an
instruction that a target lacks may end it. Triton's own cache makes a second run quick.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from tokenspeed_nvidia.kernels import (
    activation,
    adjust_logits,
    attention_decode,
    attention_prefill,
    attention_split,
    attention_verify,
    few_rows,
    few_rows_fp8,
    fp8_linear,
    fp8_quantize,
    kv_gather,
    kv_write,
    logprobs,
    mask_logits,
    norm,
    page_table,
    pdl,
    rope,
    rope_kv_write,
    rows,
    sample,
)

E4M3 = torch.float8_e4m3fn
Launch = tuple[JITFunction, tuple[Any, ...], dict[str, Any]]
POINTERS = {
    torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32",
    torch.float8_e4m3fn: "*fp8e4nv", torch.int32: "*i32", torch.int64: "*i64",
}  # fmt: skip
UNITS = {"sm_90": 132, "sm_100": 148, "gfx950": 256}
NOT_CONSTANTS = ("num_warps", "num_stages", "launch_pdl", "enable_fp_fusion")


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def ints(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return meta(*shape, dtype=dtype)


def paged(kv_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Keys, values and page table of one layer among 36, pages of 16."""
    slab = meta(1000, 36, 2, kv_heads, 16, head_dim, dtype=dtype)
    return slab[:, 3, 0], slab[:, 3, 1], ints(130, 2560)


def kv_scales() -> tuple[torch.Tensor, torch.Tensor]:
    return meta(1, dtype=torch.float32), meta(1, dtype=torch.float32)


def run_decode(
    arch: str, rows: int = 32, dtype: torch.dtype = torch.bfloat16, fp8: bool = False
) -> None:
    cut_evenly, by_row = attention_decode.attention_decode, attention_split.attention_split
    for attend, count in ((cut_evenly, rows), (by_row, 1), (by_row, 16)):
        q = meta(count, 48, 128, dtype=dtype)[:, :32]
        attend(
            q, *paged(8, 128, E4M3 if fp8 else dtype), ints(count), ints(count), 0.1,
            kv_scales() if fp8 else (None, None), window=None, units=UNITS[arch],
            pdl=arch == "sm_90", ptx=arch.startswith("sm_"),
        )  # fmt: skip


def run_verify(arch: str, fp8: bool = False) -> None:
    """Runs of eight, four query heads for each KV head."""
    for count in (8, 64):
        attention_verify.attention_verify(
            meta(count, 48, 128)[:, :32], *paged(8, 128, E4M3 if fp8 else torch.bfloat16),
            ints(count), ints(count), 0.1, kv_scales() if fp8 else (None, None), window=None,
            queries=8, units=UNITS[arch], pdl=arch == "sm_90", ptx=arch.startswith("sm_"),
        )  # fmt: skip


def run_prefill(
    arch: str, head_dim: int = 128, dtype: torch.dtype = torch.bfloat16, fp8: bool = False
) -> None:
    q = meta(2048, 48, head_dim, dtype=dtype)[:, :32]
    tile = attention_prefill.choose_tile(head_dim, dtype.itemsize, arch)
    attention_prefill.attention_prefill(
        q, *paged(8, head_dim, E4M3 if fp8 else dtype), ints(4), ints(5), ints(4), 0.1,
        kv_scales() if fp8 else (None, None), window=None, tile=tile, pdl=arch == "sm_90",
    )  # fmt: skip
    keys, values, table = paged(8, head_dim, E4M3 if fp8 else dtype)
    gathering = kv_gather.Gathering(table, ints(4), ints(2, 5), 2048, 32768)
    scales = kv_scales() if fp8 else (None, None)
    kv_gather.gather_kv(keys, values, gathering, scales, dtype)


def run_sample(arch: str) -> None:
    floats = [meta(32, dtype=torch.float32) for _ in range(3)]
    longs = [ints(32, dtype=torch.int64) for _ in range(2)]
    logits = meta(32, 151936, dtype=torch.float32)
    rules = (floats[0], ints(32), floats[1], floats[2])
    sample.sample(logits, *rules, *longs, pdl=arch in pdl.ARCHS)


def run_adjusted(arch: str) -> None:
    """At the strides that the engine's records have."""
    logits, kept = (meta(32, 151936, dtype=torch.float32) for _ in range(2))
    slot, position = (ints(32, dtype=torch.int64) for _ in range(2))
    record = ints(34, 4612)
    penalties = record.view(torch.float32)[:, 1:4]
    lists = record[:, 4:1540], record.view(torch.float32)[:, 1540:3076], record[:, 3076:]
    counts, pdl_here = ints(34, 151936), arch in pdl.ARCHS
    adjust_logits.adjust_logits(
        logits, kept, slot, position, record[:, :1], penalties, counts, *lists, pdl=pdl_here
    )
    adjust_logits.adjust_logits_verify(
        logits, kept, slot, position, ints(32), record[:, :1], penalties, counts, *lists,
        pdl=pdl_here,
    )  # fmt: skip
    last = ints(34, dtype=torch.int64)
    adjust_logits.record_tokens(last, counts, penalties, slot, slot, pdl=pdl_here)
    found = ints(34, 42)
    values = found.view(torch.float32)[:, 21:]
    logprobs.logprobs(kept, slot, slot, record[:, :1], found[:, :21], values, pdl=pdl_here)


def run_small(arch: str) -> None:
    """The kernels that move bytes, at one size."""
    norm.rms_norm(meta(32, 48, 128)[:, :32], meta(128), 1e-6)
    norm.add_rms_norm(meta(32, 4096), meta(32, 4096), meta(4096), 1e-6)
    activation.silu_and_mul(meta(32, 24576))
    fused = meta(32, 48, 128)
    q, k, v = fused[:, :32], fused[:, 32:40], fused[:, 40:]
    positions = ints(32)
    rope.rope(q, k, positions, meta(40960, 128, dtype=torch.float32), interleaved=False)
    kv_write.kv_write(k, v, *paged(8, 128, torch.bfloat16), ints(32), positions)
    rows.embedding(ints(32, dtype=torch.int64), meta(151936, 4096))
    mask_logits.mask_logits(meta(32, 151936, dtype=torch.float32), ints(32, 4748), ints(32))
    page_table.page_table_update(ints(34, 2560), ints(34), *(ints(600) for _ in range(4)), ints(1))


def run_few_rows(arch: str) -> None:
    """A GEMV, and tiles: gated, split and not, with the dependent launch of the real thing."""
    assert arch == "sm_90"
    wide, square = meta(24576, 4096), meta(4096, 4096)
    for count in (1, 8, 64):
        few_rows.few_rows_linear(meta(count, 4096), wide, gate=True, pdl=True)
        few_rows.few_rows_linear(meta(count, 4096), square, meta(4096), pdl=True)


def run_few_rows_fp8(arch: str) -> None:
    assert arch == "sm_90"
    wide = meta(24576, 4096, dtype=torch.float8_e4m3fn)
    scales = meta(192, 32, dtype=torch.float32)
    for count in (1, 8, 32):
        x, codes = meta(count, 4096), few_rows_fp8.quantize_rows(meta(count, 4096), pdl=True)
        few_rows_fp8.product(codes, wide, scales, None, x.dtype, gate=True, pdl=True)
        few_rows_fp8.product(codes, wide[:4096], scales[:32], meta(4096), x.dtype, pdl=True)
    few_rows_fp8.add_norm_quantize_rows(x, x, x, meta(4096), 1e-6, pdl=True)


def run_fp8_linear(arch: str) -> None:
    """Quantisation, also behind a norm and an activation, and tiles for a batch, for many requests
    and for a prompt."""
    assert arch == "sm_90"
    wide, scales = meta(24576, 4096, dtype=E4M3), meta(192, 32, dtype=torch.float32)
    for count in (64, 128, 8192):
        fp8_linear.by_tiles(meta(count, 4096), wide, scales, units=UNITS[arch], pdl=True)
    x = meta(8192, 4096)
    fp8_quantize.add_norm_quantize(x, x, x, meta(4096), 1e-6)
    fp8_quantize.quantize(meta(8192, 24576), gate=True, pdl=True)


def run_rope_kv_write(arch: str) -> None:
    fused = meta(32, 48, 128)
    rope_kv_write.rope_kv_write(
        fused[:, :32], fused[:, 32:40], fused[:, 40:], ints(32),
        meta(40960, 128, dtype=torch.float32), *paged(8, 128, torch.bfloat16), ints(32),
        meta(128), meta(128), None, None, 1e-6, interleaved=False, pdl=arch == "sm_90",
    )  # fmt: skip


RUNS: dict[str, Callable[[str], None]] = {
    "decode": run_decode,
    "decode_fp32": lambda arch: run_decode(arch, rows=1, dtype=torch.float32),
    "decode_fp8": lambda arch: run_decode(arch, fp8=True),
    "verify": run_verify,
    "verify_fp8": lambda arch: run_verify(arch, fp8=True),
    "prefill": run_prefill,
    "prefill_fp8": lambda arch: run_prefill(arch, fp8=True),
    "prefill_256": lambda arch: run_prefill(arch, head_dim=256),
    "prefill_fp32": lambda arch: run_prefill(arch, dtype=torch.float32),
    "sample": run_sample,
    "adjusted": run_adjusted,
    "small": run_small,
    "few_rows": run_few_rows,
    "few_rows_fp8": run_few_rows_fp8,
    "fp8_linear": run_fp8_linear,
    "rope_kv_write": run_rope_kv_write,
}


def record(run: Callable[[str], None], arch: str) -> list[Launch]:
    """The launches that ``run`` would make."""
    launches: list[Launch] = []

    def note(self: JITFunction, *args: Any, grid: Any, warmup: bool, **keywords: Any) -> None:
        launches.append((self, args, keywords))

    plain, JITFunction.run = JITFunction.run, note
    try:
        run(arch)
    finally:
        JITFunction.run = plain
    return launches


def source_of(kernel: JITFunction, args: tuple[Any, ...], constants: dict[str, Any]) -> ASTSource:
    """What the launcher would specialise: pointers and multiples of 16 divisible, 1 constant.

    But for what the kernel says is never specialised.
    """
    signature: dict[str, str] = {}
    constexprs = {name: value for name, value in constants.items() if name not in NOT_CONSTANTS}
    divisible: dict[tuple[int, ...], list[list[Any]]] = {}
    for index, (param, value) in enumerate(zip(kernel.params, args, strict=False)):
        name = param.name
        free = param.do_not_specialize or param.do_not_specialize_on_alignment
        if isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
        elif value is None:
            constexprs[name] = None
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value == 1 and not free:
            constexprs[name] = 1
        else:
            signature[name] = "i32" if abs(value) < 2**31 else "i64"
        if free or value is None:
            continue
        if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0):
            divisible[(index,)] = [["tt.divisibility", 16]]
    signature |= dict.fromkeys(constexprs, "constexpr")
    ordered = {name: signature[name] for name in kernel.arg_names}
    return ASTSource(kernel, ordered, constexprs, divisible)


def target_of(arch: str) -> GPUTarget:
    if arch.startswith("sm_"):
        return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    return GPUTarget("hip", arch, 64)


def facts(launch: Launch, arch: str) -> dict[str, Any]:
    """What the compiled code holds: instructions, registers, spills and shared memory."""
    kernel, args, keywords = launch
    options = {name: keywords[name] for name in NOT_CONSTANTS if name in keywords}
    made = triton.compile(source_of(kernel, args, keywords), target_of(arch), options)
    found: dict[str, Any] = {"kernel": kernel.fn.__name__, "shared": made.metadata.shared}
    if arch.startswith("sm_"):
        return found | cuda_facts(made.asm["ptx"], made.asm["cubin"])
    text = made.asm["amdgcn"]
    count = {
        name: int(re.search(rf"\.{name}:\s+(\d+)", text).group(1))  # type: ignore[union-attr]
        for name in ("vgpr_count", "vgpr_spill_count")
    }
    wide = len(re.findall(r"(?:global|buffer)_load_dwordx4", text))
    return found | {
        "registers": count["vgpr_count"],
        "spills": count["vgpr_spill_count"],
        "wide_loads": wide,
        "matrix": sorted(set(re.findall(r"v_mfma_\w+", text))),
    }


def cuda_facts(ptx: str, cubin: bytes) -> dict[str, Any]:
    tools = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run(
            [tools, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()  # type: ignore[union-attr]
    return {
        "registers": int(registers),
        "spills": int(stack),
        "wide_loads": len(
            re.findall(r"ld\.global\S*\.v4|cp\.async\S* \[[^]]*\], \[[^]]*\], 0x10", ptx)
        ),
        "matrix": sorted(set(re.findall(r"(?:wgmma|tcgen05|mma)\.(?:mma_async|mma|sync)\S*", ptx))),
    }


def forked(launch: Launch, arch: str) -> dict[str, Any]:
    """The facts, from a process of their own."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.write(write, json.dumps(facts(launch, arch)).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        name = launch[0].fn.__name__
        return {"kernel": name, "failed": f"status {os.waitstatus_to_exitcode(status)}"}
    found: dict[str, Any] = json.loads(text)
    return found


def main() -> None:
    arch, *names = sys.argv[1:]
    found = {name: [forked(launch, arch) for launch in record(RUNS[name], arch)] for name in names}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
