# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Every kernel on the GPU: the kit's cases at tiny and at real sizes, and what only a GPU shows."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite, Trait
from tokenspeed_sdk.testing import LARGE, TINY, Inputs, kernel_conformance
from tokenspeed_sdk.testing.kernel.cases.paged import Pool, make_pool
from tokenspeed_sdk.testing.kernel.cases.tables import FILTERS, sample_args
from tokenspeed_sdk.testing.kernel.check import default_capabilities

from tokenspeed_nvidia.catalog import kernels

pytestmark = pytest.mark.gpu

DEVICE = "cuda:0"
HEADS = {"heads": 32, "kv_heads": 8, "head_dim": 128}
LENGTHS = (1, 15, 16, 17, 0, 1152, 4999, 64, 65)
VOCAB = 151936

conforms = partial(kernel_conformance, kernels, device=DEVICE)

ROUNDED_KEYS = 2e-2
"""FlashInfer gets eight-bit keys and values times their scales, rounded to bfloat16, as a bfloat16
cache would have them. The kit's later calls have scores nine times as large, which shows it."""

ONE_HEAD_SIZE = replace(LARGE, heads=((32, 8, 128),), windows=(None,))
"""FlashInfer compiles for a minute for each pair of head size and dtype; so its tests begin."""

test_flashinfer = pytest.mark.skipif(
    importlib.util.find_spec("flashinfer") is None, reason="flashinfer is not installed"
)(
    conforms(
        names=["flashinfer"],
        grid=ONE_HEAD_SIZE,
        dtypes=["bfloat16"],
        bounds={"attention_prefill_fp8@1": {"bfloat16": ROUNDED_KEYS}},
    )
)

test_tiny = conforms(names=["triton", "cublas"], grid=TINY)
test_real_sizes = conforms(names=["triton", "cublas"], grid=LARGE)

EIGHT_BITS = partial(conforms, names=["cublaslt", "tiles"], dtypes=["bfloat16"])
test_eight_bit_products = EIGHT_BITS(
    grid=replace(LARGE, rows=(0, 33, 130), matrices=((6144, 4096), (4096, 12288), (200, 1100)))
)

FEW = partial(conforms, names=["few_rows", "split"], dtypes=["bfloat16"])
test_few_rows = FEW(grid=TINY)
test_few_rows_of_real_sizes = FEW(grid=LARGE)


@pytest.fixture
def inputs() -> Inputs:
    return Inputs(5, torch.bfloat16, DEVICE)


def bind(op: str, **traits: Trait) -> BoundKernel:
    """The plugin's Triton kernel for a bf16 site."""
    site = CallSite(op, "test", "bfloat16", default_capabilities(DEVICE), traits)
    (kernel,) = (k for k in kernels() if (k.op, k.name) == (op, "triton"))
    return kernel.bind(site)


def bind_attention(phase: str) -> BoundKernel:
    return bind(f"attention_{phase}@1", **HEADS, page_size=16, window=None)


def query(inputs: Inputs, tokens: int) -> torch.Tensor:
    return inputs.fused(tokens, 32, 8, 8, head_dim=128)[0]


def drawn_from(inputs: Inputs, vocab: int, rows: int) -> tuple[torch.Tensor, ...]:
    """Arguments of sample@1, every filter in turn, all contiguous."""
    filters = [FILTERS[row % len(FILTERS)] for row in range(rows)]
    logits = inputs.random(rows, vocab, dtype=torch.float32) * 3
    return sample_args(inputs, logits, filters)


def test_sample_depends_on_its_own_row_alone(inputs: Inputs) -> None:
    call, args = bind("sample@1", vocab=VOCAB), drawn_from(inputs, VOCAB, rows=45)
    whole = call(*args)
    order = inputs.order(len(whole))
    assert call(*(value[order] for value in args)).equal(whole[order])
    alone = [int(call(*(value[row : row + 1] for value in args))) for row in range(len(whole))]
    assert alone == whole.tolist()


def test_decode_repeats_bit_for_bit(inputs: Inputs) -> None:
    pool = make_pool(inputs, LENGTHS, 8, 128, 16)
    args = (query(inputs, len(LENGTHS)), *pool.cache, pool.kv_len, 128**-0.5)
    call = bind_attention("decode")
    first = call(*args)
    assert all(call(*args).equal(first) for _ in range(50))


def far_pool(pool: Pool) -> Pool:
    """The pool with its pages moved behind the 2^31st element."""
    count, kv_heads, page, head_dim = pool.keys.shape
    elements = 2 * kv_heads * page * head_dim
    first = 2**31 // elements + 7
    memory = torch.empty((first + count, elements), dtype=pool.keys.dtype, device=DEVICE)
    slab = memory.view(-1, 2, kv_heads, page, head_dim)
    slab[first:, 0], slab[first:, 1] = pool.keys, pool.values
    table = torch.where(pool.table > 0, pool.table + first, 0)
    return Pool(slab[:, 0], slab[:, 1], table, pool.row_slot, pool.kv_len)


def test_offsets_have_64_bits(inputs: Inputs) -> None:
    near = make_pool(inputs, [100, 333], 8, 128, 16)
    far = far_pool(near)
    assert far.keys.stride(0) * far.keys.shape[0] > 2**31
    decode, prefill = bind_attention("decode"), bind_attention("prefill")
    write = bind("kv_write@1", kv_heads=8, head_dim=128, page_size=16)
    _, k, v = inputs.fused(2, 32, 8, 8, head_dim=128)
    q, starts = query(inputs, 12), inputs.ints([0, 4, 12])
    outs = []
    for pool in (near, far):
        write(k, v, *pool.cache, pool.kv_len - 1)
        outs.append(decode(q[:2], *pool.cache, pool.kv_len, 0.1))
        outs.append(prefill(q, *pool.cache, starts, pool.kv_len, 0.1))
    assert outs[0].equal(outs[2])
    assert outs[1].equal(outs[3])
    assert all(bool(out.isfinite().all()) for out in outs)


def test_indices_out_of_range_do_not_fault(inputs: Inputs) -> None:
    """A page table, slot or position that lies outside its tensor reads something, never faults."""
    pool = make_pool(inputs, [40, 33], 8, 128, 16)
    table, wild = torch.full_like(pool.table, 2**30), inputs.ints([-5, 10**6])
    cache, lengths = (pool.keys, pool.values, table, wild), inputs.ints([10**8, -3])
    q, k, v = inputs.fused(2, 32, 8, 8, head_dim=128)
    bind_attention("decode")(q, *cache, lengths, 0.1)
    bind_attention("prefill")(q, *cache, inputs.ints([0, 1, 2]), lengths, 0.1)
    write = bind("kv_write@1", kv_heads=8, head_dim=128, page_size=16)
    write(k, v, *cache, inputs.ints([-1, 10**7]))
    bind("embedding@1", vocab=10, hidden=128)(wild.long(), inputs.normal(10, 128))
    torch.cuda.synchronize()


def test_replayed_decode_and_sample_equal_eager(inputs: Inputs) -> None:
    """One captured launch serves any lengths: contents change, addresses do not."""
    vocab = 32 * 128
    pool = make_pool(inputs, [3000, 1, 700, 64], 8, 128, 16)
    q, kv_len = inputs.random(4, 32, 128), pool.kv_len.clone()
    decode, sample = bind_attention("decode"), bind("sample@1", vocab=vocab)
    logits, *rest = drawn_from(inputs, vocab, rows=4)

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        out = decode(q, *pool.cache, kv_len, 128**-0.5)
        return out, sample(logits + out.flatten(1).float(), *rest)

    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = work()
    for _ in range(20):
        q.normal_()
        shares = torch.rand(4, device=DEVICE)
        kv_len.copy_((shares * pool.kv_len).int())
        graph.replay()
        replayed = [value.clone() for value in held]
        assert all(a.equal(b) for a, b in zip(replayed, work(), strict=True))
