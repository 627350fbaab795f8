# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The plugin's kernels: what each serves and why it is chosen. Light: no torch, no triton."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite, Kernel
from tokenspeed_sdk.contracts.probe import Accept, Decline, Verdict

DTYPES = ("bfloat16", "float16", "float32")
HALF_DTYPES = ("bfloat16", "float16")
MAX_HIDDEN = 16384
"""Widest row that one program keeps in registers."""

RUN_ON = ("sm_90",)
"""Instruction sets whose kernels ran on the hardware. Others are compiled only, and say so."""

COMPILED_FOR = ("sm_80", "sm_86", "sm_89", "sm_100", "sm_103", "sm_120", "gfx942", "gfx950")

E4M3_ARCHS = ("sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "gfx950")
"""Those that convert to and from float8_e4m3fn."""

FLASHINFER_ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
FLASH_ATTENTION_3 = 120
"""Score of FlashInfer's prefill on sm_90: there it is FlashAttention-3, which was measured to be
1.3 to 1.6 times as fast as Triton."""

FLASHINFER_MISSING = "flashinfer is not installed: pip install 'tokenspeed-nvidia[flashinfer]'"

FEW_ROWS = 64
"""Most rows for which weights streamed past all of x beat cuBLAS, as measured."""

MOST_STREAMED_ROWS = 128
"""With more than FEW_ROWS they may, where weights have 8 bits: to be measured."""

SPLIT_ROWS = 16
"""Most rows for which decode attention is usually better cut by row than evenly over the GPU."""

MOST_SPLIT_ROWS = 128
"""Where rows are many and equally long it can be, too: to be measured."""

MOST_LINES = 64
"""Queries of a run times query heads of a KV head: more would not fit in a program's registers."""

Refusal = str | None
Check = Callable[[CallSite], Refusal]


@dataclass(frozen=True)
class LazyKernel:
    """A kernel whose module is imported when it is bound.

    Attributes:
        binder: "module:function" below this package; the function takes the site.
        score: of several that accept, the highest is chosen; may depend on the site.
        checks: each says why a site cannot be served, or None.
        elsewhere: score on instruction sets on which it did not run; half unless given.
    """

    op: str
    name: str
    binder: str
    score: int | Callable[[CallSite], int]
    checks: tuple[Check, ...]
    elsewhere: int | None = None

    def accept(self, site: CallSite) -> Verdict:
        """The first check that refuses gives the reason."""
        for check in self.checks:
            if (refusal := check(site)) is not None:
                return Decline(refusal)
        arch = site.device.arch
        ran = arch in RUN_ON
        score = self.score(site) if callable(self.score) else self.score
        return Accept(
            score if ran else score // 2 if self.elsewhere is None else self.elsewhere,
            f"{self.name} on {arch}" if ran else f"{self.name}, compiled for {arch}, not run on it",
        )

    def bind(self, site: CallSite) -> BoundKernel:
        """Import the kernel and make it for the site."""
        module, _, function = self.binder.partition(":")
        bound: BoundKernel = getattr(import_module(f"tokenspeed_nvidia.{module}"), function)(site)
        return bound

    def pack_weight(self, site: CallSite, weight: Any) -> Any:
        """Every kernel here takes the plain layout."""
        return weight


def kernels() -> tuple[Kernel, ...]:
    """All kernels of this plugin, in the order of the manifest's claims."""
    installed = find_spec("flashinfer") is not None
    fa3 = FLASH_ATTENTION_3
    fp8_kv = (_e4m3, _half, _head_dim, _page)
    many = (_cublas_blocks, _no_gate, partial(_at_most, "k", MAX_HIDDEN))
    return (
        _triton("embedding@1", "rows:bind_embedding"),
        _triton("gather_rows@1", "rows:bind_gather_rows"),
        LazyKernel("linear@1", "cublas", "kernels.linear:bind", 100, (_gpu, _dtype)),
        _few_rows("linear@1", "few_rows:bind_linear"),
        _fp8_linear("linear_fp8@1", "cublaslt", "bind_cublas", 110, _cublas_blocks),
        _fp8_linear("linear_fp8@1", "tiles", "bind_tiles", 100),
        _few_rows("linear_fp8@1", "few_rows_fp8:bind_linear", MOST_STREAMED_ROWS),
        _few_rows("add_norm_linear@1", "few_rows:bind_add_norm_linear"),
        _few_rows("add_norm_linear_fp8@1", "few_rows_fp8:bind_add_norm_linear"),
        _fp8_linear("add_norm_linear_fp8@1", "cublaslt", "bind_add_norm_cublas", 100, *many),
        _fp8_linear("silu_linear_fp8@1", "cublaslt", "bind_silu_cublas", 100, _cublas_blocks),
        _triton("rms_norm@1", "norm:bind_rms_norm", partial(_at_most, "hidden", MAX_HIDDEN)),
        _triton(
            "add_rms_norm@1", "norm:bind_add_rms_norm", partial(_at_most, "hidden", MAX_HIDDEN)
        ),
        _triton("rope@1", "rope:bind"),
        _triton("kv_write@1", "kv_write:bind"),
        _triton("kv_write_fp8@1", "kv_write:bind", _e4m3),
        _triton("rope_kv_write@1", "rope_kv_write:bind"),
        _triton("rope_kv_write_fp8@1", "rope_kv_write:bind_fp8", _e4m3),
        _triton("silu_and_mul@1", "activation:bind"),
        _triton("page_table_update@1", "page_table:bind"),
        _triton("mask_logits@1", "mask_logits:bind"),
        _sampling("adjust_logits@1", "adjust_logits:bind_adjust"),
        _sampling("adjust_logits_verify@1", "adjust_logits:bind_adjust_verify"),
        _sampling("sample@1", "sample:bind"),
        _sampling("record_tokens@1", "adjust_logits:bind_record"),
        _sampling("logprobs@1", "logprobs:bind"),
        _triton("attention_prefill@1", "attention_prefill:bind", _head_dim, _page),
        _flashinfer("attention_prefill@1", "flashinfer_prefill:bind", fa3, installed),
        _triton("attention_decode@1", "attention_decode:bind", _head_dim, _page),
        _split("attention_decode@1"),
        _triton("attention_prefill_fp8@1", "attention_prefill:bind", *fp8_kv),
        _flashinfer("attention_prefill_fp8@1", "flashinfer_prefill:bind", fa3, installed, _e4m3),
        _triton("attention_decode_fp8@1", "attention_decode:bind", *fp8_kv),
        _split("attention_decode_fp8@1", _e4m3, _half),
        _triton("attention_verify@1", "attention_verify:bind", _head_dim, _page, _lines),
        _triton("attention_verify_fp8@1", "attention_verify:bind", *fp8_kv, _lines),
        _flashinfer("attention_decode@1", "flashinfer:bind", 80, installed),
    )


def _triton(op: str, binder: str, *checks: Check) -> LazyKernel:
    return LazyKernel(op, "triton", f"kernels.{binder}", 100, (_gpu, _triton_arch, _dtype, *checks))


def _sampling(op: str, binder: str) -> LazyKernel:
    """Logits are float32, whatever the site's dtype."""
    return LazyKernel(op, "triton", f"kernels.{binder}", 100, (_gpu, _triton_arch))


def _split(op: str, *checks: Check) -> LazyKernel:
    few = partial(_rows_at_most, MOST_SPLIT_ROWS)
    checks = (_gpu, _triton_arch, _dtype, _head_dim, _page, few, *checks)
    return LazyKernel(op, "split", "kernels.attention_split:bind", _split_score, checks)


def _split_score(site: CallSite) -> int:
    most = site.rows[1]
    return 110 if most is not None and most <= SPLIT_ROWS else 90


def _few_rows(op: str, binder: str, limit: int = FEW_ROWS) -> LazyKernel:
    checks = (_gpu, _few_rows_arch, _half, partial(_rows_at_most, limit))
    return LazyKernel(op, "few_rows", f"kernels.{binder}", _few_rows_score, checks)


def _few_rows_score(site: CallSite) -> int:
    most = site.rows[1]
    return 120 if most is not None and most <= FEW_ROWS else 90


def _fp8_linear(op: str, name: str, binder: str, score: int, *checks: Check) -> LazyKernel:
    checks = (_gpu, _few_rows_arch, _half, *checks)
    return LazyKernel(op, name, f"kernels.fp8_linear:{binder}", score, checks)


def _flashinfer(op: str, binder: str, score: int, installed: bool, *checks: Check) -> LazyKernel:
    def present(site: CallSite) -> Refusal:
        return None if installed else FLASHINFER_MISSING

    checks = (_gpu, _flashinfer_arch, _flashinfer_site, *checks, present)
    return LazyKernel(op, "flashinfer", f"kernels.{binder}", score, checks, 40)


def _gpu(site: CallSite) -> Refusal:
    kind = site.device.device_type
    return None if kind == "cuda" else f"needs a device of type cuda; this one is {kind}"


def _triton_arch(site: CallSite) -> Refusal:
    arch = site.device.arch
    if arch in RUN_ON or arch in COMPILED_FOR:
        return None
    return f"not compiled for {arch}; it is for {', '.join(RUN_ON + COMPILED_FOR)}"


def _few_rows_arch(site: CallSite) -> Refusal:
    arch = site.device.arch
    return None if arch in RUN_ON else f"tuned for {', '.join(RUN_ON)} alone; this is {arch}"


def _e4m3(site: CallSite) -> Refusal:
    arch = site.device.arch
    if arch in E4M3_ARCHS:
        return None
    return f"{arch} does not convert to float8_e4m3fn; {', '.join(E4M3_ARCHS)} do"


def _half(site: CallSite) -> Refusal:
    if site.dtype in HALF_DTYPES:
        return None
    return f"computes in {', '.join(HALF_DTYPES)}; the site asks for {site.dtype}"


def _rows_at_most(limit: int, site: CallSite) -> Refusal:
    most = site.rows[1]
    if most is not None and most <= limit:
        return None
    return f"takes up to {limit} rows; the site may have {'any number' if most is None else most}"


def _cublas_blocks(site: CallSite) -> Refusal:
    n, k = site.traits["n"], site.traits["k"]
    if isinstance(k, int) and k % 512:
        return f"reads the scales of four blocks of 128 at once; the site has k={k}"
    if isinstance(n, int) and n % 16:
        return f"writes 16 features at once; the site has n={n}"
    return "adds no bias; the site has one" if site.traits["bias"] else None


def _no_gate(site: CallSite) -> Refusal:
    return "computes no gate; the site has one" if site.traits["gated"] else None


def _flashinfer_arch(site: CallSite) -> Refusal:
    arch = site.device.arch
    if arch in FLASHINFER_ARCHS:
        return None
    return f"FlashInfer has no code for {arch}; it has for {', '.join(FLASHINFER_ARCHS)}"


def _dtype(site: CallSite) -> Refusal:
    if site.dtype in DTYPES:
        return None
    return f"computes in {', '.join(DTYPES)}; the site asks for {site.dtype}"


def _flashinfer_site(site: CallSite) -> Refusal:
    head_dim = site.traits["head_dim"]
    if head_dim not in (64, 128, 256):
        return f"takes head_dim 64, 128 or 256; the site has {head_dim}"
    return _half(site)


def _head_dim(site: CallSite) -> Refusal:
    head_dim = site.traits["head_dim"]
    if head_dim in (16, 32, 64, 128, 256):
        return None
    return f"takes head_dim 16, 32, 64, 128 or 256; the site has {head_dim}"


def _page(site: CallSite) -> Refusal:
    page = site.traits["page_size"]
    if isinstance(page, int) and page > 0:
        return None
    return f"needs a page size in tokens; the site states {page}"


def _lines(site: CallSite) -> Refusal:
    heads, kv_heads, queries = (site.traits[name] for name in ("heads", "kv_heads", "queries"))
    assert isinstance(heads, int)
    assert isinstance(kv_heads, int)
    assert isinstance(queries, int)
    lines = heads // kv_heads * queries
    if lines <= MOST_LINES:
        return None
    return f"takes up to {MOST_LINES} queries of a KV head at once; the site has {lines}"


def _at_most(trait: str, limit: int, site: CallSite) -> Refusal:
    value = site.traits[trait]
    if isinstance(value, int) and value <= limit:
        return None
    return f"takes {trait} up to {limit}; the site has {value}"
