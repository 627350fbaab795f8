# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Every kernel against its float64 reference on the GPU."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import nvidia_cases as cases
from nvidia_cases import BOUNDS, TINY, Pool, Where, relative_error

pytestmark = pytest.mark.gpu

QWEN = {"heads": 32, "kv_heads": 8, "head_dim": 128}
LENGTHS = (1, 15, 16, 17, 0, 1152, 4999, 64, 65)
ROWS = ((300, 300), (1, 17), (129, 1000), (64, 64), (5, 2049))

REAL: dict[str, Callable[..., float]] = {
    "embedding": partial(cases.embedding, rows=33, vocab=5000, hidden=4096),
    "gather_rows": partial(cases.gather_rows, rows=33, hidden=4096),
    "linear": partial(cases.linear, rows=33, n=4096, k=12288, bias=False),
    "linear_one_row": partial(cases.linear, rows=1, n=6144, k=4096),
    "rms_norm": partial(cases.rms_norm, rows=300, hidden=4096),
    "rms_norm_one_row": partial(cases.rms_norm, rows=1, hidden=12288),
    "rms_norm_heads": partial(cases.rms_norm_heads, rows=129, heads=32, head_dim=128),
    "add_rms_norm": partial(cases.add_rms_norm, rows=300, hidden=4096),
    "rope": partial(cases.rope, rows=300, **QWEN, rotary=128, longest=40960),
    "rope_partial": partial(cases.rope, rows=7, **QWEN, rotary=64),
    "kv_write": partial(cases.kv_write, kv_heads=8, head_dim=128, count=16),
    "silu_and_mul": partial(cases.silu_and_mul, rows=129, inter=12288),
    "decode": partial(cases.decode, **QWEN, lengths=LENGTHS),
    "decode_batch": partial(cases.decode, **QWEN, lengths=tuple(range(1, 1281, 10))),
    "decode_one_row": partial(cases.decode, **QWEN, lengths=(20011,)),
    "decode_smollm2": partial(cases.decode, heads=9, kv_heads=3, head_dim=64, lengths=LENGTHS),
    "decode_wide": partial(cases.decode, heads=8, kv_heads=4, head_dim=256, lengths=LENGTHS),
    "decode_page_64": partial(cases.decode, **QWEN, lengths=LENGTHS, page=64),
    "decode_window": partial(cases.decode, **QWEN, lengths=LENGTHS, window=128),
    "prefill": partial(cases.prefill, **QWEN, rows=ROWS),
    "prefill_one_row": partial(cases.prefill, **QWEN, rows=((4096, 4096),), padding=0),
    "prefill_smollm2": partial(cases.prefill, heads=9, kv_heads=3, head_dim=64, rows=ROWS),
    "prefill_wide": partial(cases.prefill, heads=8, kv_heads=4, head_dim=256, rows=ROWS),
    "prefill_page_64": partial(cases.prefill, **QWEN, rows=ROWS, page=64),
    "prefill_window": partial(cases.prefill, **QWEN, rows=ROWS, window=128),
}


def here(dtype: str) -> Where:
    properties = torch.cuda.get_device_properties(0)
    arch = f"sm_{properties.major}{properties.minor}"
    return Where("cuda:0", dtype, properties.multi_processor_count, arch)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", [f"tiny_{name}" for name in TINY] + list(REAL))
def test_kernel_meets_reference(name: str, dtype: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    case = TINY[name.removeprefix("tiny_")] if name.startswith("tiny_") else REAL[name]
    error = case(here(dtype))
    print(f"relative error {error:.2e}")
    assert error <= BOUNDS[dtype]


FLASHINFER_CASES = ("decode", "decode_batch", "decode_one_row", "decode_page_64", "prefill")
"""Cases of one head size and dtype: FlashInfer compiles for a minute for each pair."""


@pytest.mark.parametrize("name", FLASHINFER_CASES)
def test_flashinfer_meets_reference(name: str) -> None:
    if importlib.util.find_spec("flashinfer") is None:
        pytest.skip("flashinfer is not installed")
    error = REAL[name](here("bfloat16"), kernel="flashinfer")
    print(f"relative error {error:.2e}")
    assert error <= BOUNDS["bfloat16"]


@pytest.mark.parametrize("vocab", [151936, 49152, 1000])
def test_sample_draws_what_the_reference_draws(vocab: int) -> None:
    assert cases.sample_mismatches(here("float32"), vocab, repeats=3) == []


def test_sample_depends_on_its_own_row_alone() -> None:
    where = here("float32")
    call = where.bind("sample@1", vocab=151936)
    args = cases.sample_args(where, 151936, repeats=3)
    whole = call(*args.rows)
    order = torch.randperm(len(whole)).tolist()
    assert call(*args.take(order).rows).equal(whole[order])
    alone = [int(call(*args.take([row]).rows)) for row in range(len(whole))]
    assert alone == whole.tolist()


def test_decode_repeats_bit_for_bit() -> None:
    where = here("bfloat16")
    pool = cases.make_pool(where, list(LENGTHS), 8, 128, 16)
    q = where.normal(len(LENGTHS), 32, 128)
    call = where.bind("attention_decode@1", **QWEN, page_size=16, window=None)
    args = (q, pool.keys, pool.values, pool.table, pool.row_slot, pool.kv_len, 128**-0.5)
    first = call(*args)
    assert all(call(*args).equal(first) for _ in range(50))


def far_pool(where: Where, pool: Pool) -> Pool:
    """The pool with its pages moved behind the 2^31st element."""
    _, kv_heads, page, head_dim = pool.keys.shape
    elements = 2 * kv_heads * page * head_dim
    first = 2**31 // elements + 7
    count = pool.keys.shape[0]
    memory = torch.empty((first + count, elements), dtype=where.torch_dtype, device=where.device)
    slab = memory.view(-1, 2, kv_heads, page, head_dim)
    slab[first:, 0], slab[first:, 1] = pool.keys, pool.values
    table = torch.where(pool.table > 0, pool.table + first, 0)
    return Pool(slab[:, 0], slab[:, 1], table, pool.row_slot, pool.kv_len)


def test_offsets_have_64_bits() -> None:
    where = here("bfloat16")
    near = cases.make_pool(where, [100, 333], 8, 128, 16)
    near.keys.nan_to_num_(), near.values.nan_to_num_()
    far = far_pool(where, near)
    assert far.keys.stride(0) * far.keys.shape[0] > 2**31
    site = QWEN | {"page_size": 16}
    decode = where.bind("attention_decode@1", **site, window=None)
    prefill = where.bind("attention_prefill@1", **site, window=None)
    write = where.bind("kv_write@1", kv_heads=8, head_dim=128, page_size=16)
    _, k, v = cases.fused_qkv(where, 2, 32, 8, 128)
    q = where.normal(12, 32, 128)
    starts, positions = where.ints([0, 4, 12]), near.kv_len - 1
    outs = []
    for pool in (near, far):
        write(k, v, pool.keys, pool.values, pool.table, pool.row_slot, positions)
        cache = (pool.keys, pool.values, pool.table, pool.row_slot)
        outs.append(decode(q[:2], *cache, pool.kv_len, 0.1))
        outs.append(prefill(q, *cache, starts, pool.kv_len, 0.1))
    assert outs[0].equal(outs[2])
    assert outs[1].equal(outs[3])
    assert all(bool(out.isfinite().all()) for out in outs)


def test_indices_out_of_range_do_not_fault() -> None:
    """A page table, slot or position that lies outside its tensor reads something, never faults."""
    where = here("bfloat16")
    pool = cases.make_pool(where, [40, 33], 8, 128, 16)
    table = torch.full_like(pool.table, 2**30)
    site = QWEN | {"page_size": 16}
    q, k, v = cases.fused_qkv(where, 2, 32, 8, 128)
    wild = where.ints([-5, 10**6])
    where.bind("attention_decode@1", **site, window=None)(
        q, pool.keys, pool.values, table, wild, where.ints([10**8, -3]), 0.1
    )
    where.bind("attention_prefill@1", **site, window=None)(
        q, pool.keys, pool.values, table, wild, where.ints([0, 1, 2]), where.ints([10**8, -3]), 0.1
    )
    where.bind("kv_write@1", kv_heads=8, head_dim=128, page_size=16)(
        k, v, pool.keys, pool.values, table, wild, where.ints([-1, 10**7])
    )
    where.bind("embedding@1", vocab=10, hidden=128)(wild.long(), where.normal(10, 128))
    torch.cuda.synchronize()


def test_replayed_decode_and_sample_equal_eager() -> None:
    """One captured launch serves any lengths: contents change, addresses do not."""
    where = here("bfloat16")
    lengths = [3000, 1, 700, 64]
    pool = cases.make_pool(where, lengths, 8, 128, 16)
    pool.keys.nan_to_num_(), pool.values.nan_to_num_()
    q, kv_len = where.normal(4, 32, 128), pool.kv_len.clone()
    decode = where.bind("attention_decode@1", **QWEN, page_size=16, window=None)
    sample = where.bind("sample@1", vocab=32 * 128)
    args = [value[:4].contiguous() for value in cases.sample_args(where, 32 * 128).rows]

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        cache = (pool.keys, pool.values, pool.table, pool.row_slot)
        out = decode(q, *cache, kv_len, 128**-0.5)
        return out, sample(args[0] + out.flatten(1).float(), *args[1:])

    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = work()
    for _ in range(20):
        q.normal_()
        shares = torch.rand(4, device=where.device)
        kv_len.copy_((shares * pool.kv_len).int())
        graph.replay()
        replayed = [value.clone() for value in held]
        assert all(a.equal(b) for a, b in zip(replayed, work(), strict=True))


def test_error_measure_rejects_nan() -> None:
    good = torch.ones(4, device="cuda:0")
    assert relative_error(good, good) == 0
    assert relative_error(good * float("nan"), good) == float("inf")
