# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Kernels of a C library under the kernel contract."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from tokenspeed_sdk.contracts.kernel import CallSite, Kernel
from tokenspeed_sdk.contracts.platform import HOST_MEMORY, Capabilities
from tokenspeed_sdk.contracts.probe import Accept, Decline
from tokenspeed_sdk.native import open_library
from tokenspeed_sdk.native.kernel import BoundNative, NativeKernel, load_kernels
from tokenspeed_sdk.ops import OPS, Op

CPU = Capabilities("cpu", "toaster", ("float32",), frozenset({HOST_MEMORY, "avx2"}), 3)
DECODE = {"heads": 2, "kv_heads": 1, "head_dim": 8, "page_size": 4, "window": None}

Kernels = dict[str, Kernel]


def site(op: str, **traits: Any) -> CallSite:
    return CallSite(op, "layer", "float32", CPU, traits)


def silu(inter: int) -> CallSite:
    return site("silu_and_mul@1", inter=inter)


def test_accept_reads_the_site(kernels: Kernels) -> None:
    where = replace(silu(24), rows=(2, 9))
    verdict = kernels["silu_and_mul@1"].accept(where)
    assert verdict == Accept(7, "inter 24, rows 2 to 9, 3 units, first feature avx2")
    unbound = kernels["silu_and_mul@1"].accept(silu(24))
    assert "rows 1 to -1" in unbound.why


def test_declines_keep_their_words(kernels: Kernels) -> None:
    kernel = kernels["silu_and_mul@1"]
    assert kernel.accept(replace(silu(4), dtype="bfloat16")) == Decline(
        "wants float32 on toaster, got bfloat16"
    )
    other = kernel.accept(site("gather_rows@1"))
    assert other == Decline("computes silu_and_mul@1, not gather_rows@1")


def test_bind_wants_the_traits_of_the_op(kernels: Kernels) -> None:
    with pytest.raises(ValueError, match=r"missing traits \['inter'\]"):
        kernels["silu_and_mul@1"].bind(site("silu_and_mul@1"))


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_equals_the_reference(kernels: Kernels, rows: int) -> None:
    call = kernels["silu_and_mul@1"].bind(silu(12))
    for x in (
        torch.randn(rows, 24),
        torch.randn(rows, 40)[:, 3:27],
        torch.randn(rows, 24).double(),
    ):
        if x.dtype == torch.float64:
            with pytest.raises(ValueError, match="x is no float32"):
                call(x)
            continue
        out = call(x)
        OPS["silu_and_mul@1"].check_result(silu(12), (x,), out)
        torch.testing.assert_close(out, OPS["silu_and_mul@1"].reference(x))
        assert out.is_contiguous()


def test_strides_of_a_transposed_tensor(kernels: Kernels) -> None:
    x = torch.randn(24, 5).t()
    torch.testing.assert_close(
        kernels["silu_and_mul@1"].bind(silu(12))(x),
        OPS["silu_and_mul@1"].reference(x.contiguous()),
    )


@pytest.mark.parametrize(
    ("inter", "error", "text"),
    [
        (13, ValueError, r"silu_and_mul@1: c: width 13 is unlucky \(status 1\)"),
        (14, MemoryError, "no room"),
        (15, RuntimeError, r"failed without a text \(status 77\)"),
        (16, RuntimeError, r"  \(status 3\)"),  # the text was cut to the room that it has
    ],
)
def test_a_failed_call_raises_its_text(
    kernels: Kernels, inter: int, error: type[Exception], text: str
) -> None:
    call = kernels["silu_and_mul@1"].bind(silu(inter))
    for _ in range(2):
        with pytest.raises(error, match=text):
            call(torch.ones(2, 2 * inter))


def test_arguments_that_no_kernel_may_see(kernels: Kernels) -> None:
    gather = kernels["gather_rows@1"].bind(site("gather_rows@1"))
    x, index = torch.ones(2, 3), torch.tensor([0])
    for wrong in ((x,), (x, index, index), (x, [0]), (x, None)):
        with pytest.raises((TypeError, AttributeError)):
            gather(*wrong)
    decode = kernels["attention_decode@1"].bind(site("attention_decode@1", **DECODE))
    with pytest.raises(TypeError, match=r"takes \(q, .* scale\); got \(Tensor, list"):
        decode(torch.ones(1, 2, 8), [1], *[torch.ones(1)] * 4, 0.5)
    with pytest.raises(TypeError, match="must be real number, not str"):
        decode(torch.ones(1, 2, 8), *[torch.ones(1)] * 5, "0.5")


def test_an_optional_tensor_and_a_packed_weight(kernels: Kernels) -> None:
    kernel = kernels["linear@1"]
    where = site("linear@1", n=5, k=4, bias=True)
    weight, bias, x = torch.randn(5, 4), torch.randn(5), torch.randn(3, 4)
    packed = kernel.pack_weight(where, weight)
    torch.testing.assert_close(packed, weight.t().contiguous())
    call = kernel.bind(where)
    for given in (bias, None, bias):
        wanted = torch.nn.functional.linear(x, weight, given)
        torch.testing.assert_close(call(x, packed, given), wanted)
    torch.testing.assert_close(call(x, packed), x @ weight.t())
    strided = torch.nn.Parameter(torch.randn(4, 5).t())
    torch.testing.assert_close(kernel.pack_weight(where, strided), strided.detach().t())


ROPE = {
    **{"heads": 1, "kv_heads": 1, "head_dim": 2, "page_size": 1, "rotary": 2},
    **{"interleaved": True, "head_norm": True},
}


def test_several_optional_tensors_before_a_number(kernels: Kernels) -> None:
    call = kernels["rope_kv_write@1"].bind(site("rope_kv_write@1", **ROPE))
    one = torch.ones(1)
    for weights, missing in (((one, one), ""), ((one, None), " 10"), ((None, None), " 9 10")):
        with pytest.raises(ValueError, match=f"missing:{missing}, eps 0.5, interleaved 1"):
            call(*[one] * 9, *weights, 0.5)
    with pytest.raises(TypeError, match=r"takes \(q, .* eps\)"):
        call(*[one] * 8, None, one, one, 0.5)


def test_a_required_tensor_behind_an_optional_one(kernels: Kernels) -> None:
    def scaled(
        x: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor, eps: float
    ) -> None: ...

    native = cast("NativeKernel", kernels["rope_kv_write@1"])
    op = Op("scaled@1", scaled, traits=("interleaved",), keywords=("interleaved",))
    call = BoundNative(op, site(op.name, interleaved=False), native._library, native._entry)
    one = torch.ones(1)
    with pytest.raises(ValueError, match=r"missing: 1, eps 0\.5, interleaved 0"):
        call(one, None, one, 0.5)
    with pytest.raises(TypeError, match=r"takes \(x, bias, scale, eps\)"):
        call(one, one, None, 0.5)


def test_a_weight_that_cannot_be_packed(kernels: Kernels) -> None:
    with pytest.raises(ValueError, match="linear@1: c cannot pack: 13 rows are unlucky"):
        kernels["linear@1"].pack_weight(site("linear@1", n=13, k=1, bias=False), torch.ones(13, 1))
    weight = torch.ones(3, 3)
    assert kernels["silu_and_mul@1"].pack_weight(silu(1), weight) is weight


BAD_LAYOUTS = [
    # what pack says without memory, the error, its text
    ("ndim=99", ValueError, "it answers 99 dimensions; a layout has 0 to 8"),
    ("ndim=-1", ValueError, "it answers -1 dimensions"),
    ("shape=-5", ValueError, r"it answers shape \(-5, 5\); sizes are 0 or more"),
    ("shape=(int64_t)1<<58", MemoryError, r"shape \(288230376151711744, 5\) of .* no memory"),
    ("code=77", ValueError, "it answers DLPack dtype code 77"),
]


@pytest.mark.parametrize(("answer", "error", "text"), BAD_LAYOUTS)
def test_a_layout_that_cannot_be(
    compiled: Any, answer: str, error: type[Exception], text: str
) -> None:
    what, value = answer.split("=")
    library = open_library(compiled(f"-DPACK_{what.upper()}={value}"))
    (kernel,) = (k for k in load_kernels(library) if k.op == "linear@1")
    where = site("linear@1", n=5, k=4, bias=False)
    with pytest.raises(error, match=text) as raised:
        kernel.pack_weight(where, torch.ones(5, 4))
    assert f"linear@1: c of {library.path} cannot pack" in str(raised.value)


@pytest.mark.parametrize("window", [None, 5])
def test_what_a_call_carries(kernels: Kernels, window: int | None) -> None:
    where = site("attention_decode@1", **{**DECODE, "window": window})
    call = kernels["attention_decode@1"].bind(where)
    cache = torch.zeros(3, 1, 4, 8)
    table = torch.zeros(3, 2, dtype=torch.int32)
    one, length = torch.ones(1, dtype=torch.int32), torch.tensor([6], dtype=torch.int32)
    for scale in (0.25, 2):  # a whole number is a real one to the op
        out = call(torch.zeros(1, 2, 8), cache, cache, table, one, length, scale)
        seen = out.flatten()[:10].tolist()
        assert seen == [7, 2, scale, 0 if window is None else 1, 3, 0, 4, 6, 1, 1]


def test_a_long_call_runs_without_the_lock(kernels: Kernels) -> None:
    """The kernel waits for a flag that only another thread of Python can set."""
    call = kernels["gather_rows@1"].bind(site("gather_rows@1"))

    def seen(index: list[int]) -> bool:
        x = torch.zeros(1, 1)
        asked = threading.Event()

        def raise_flag() -> None:
            asked.wait(5)
            x.fill_(1)

        thread = threading.Thread(target=raise_flag)
        thread.start()
        asked.set()
        out = call(x, torch.tensor(index))
        thread.join()
        return bool(out[0, 0])

    assert seen([0, 0])


def test_a_short_call_keeps_the_lock(kernels: Kernels) -> None:
    call = kernels["gather_rows@1"].bind(site("gather_rows@1"))
    x = torch.zeros(1, 1)
    data = x.numpy()
    running, stop = threading.Event(), threading.Event()
    turns = [0]

    def count() -> None:
        running.set()
        while not stop.wait(0.001):
            turns[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    running.wait(5)
    before = turns[0]
    call(x, torch.tensor([0]))  # 0.3 s
    after = turns[0]
    stop.set()
    thread.join()
    assert data[0, 0] == 0
    assert after - before <= 2  # at most one turn on each side of the call


def test_threads_share_a_bound_kernel(kernels: Kernels) -> None:
    call = kernels["silu_and_mul@1"].bind(silu(8))
    inputs = [torch.randn(rows, 16) for rows in (1, 2, 7, 30)]
    wanted = [OPS["silu_and_mul@1"].reference(x) for x in inputs]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(200):
            if not torch.allclose(call(inputs[i]), wanted[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
