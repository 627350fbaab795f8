# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How steps are planned for FlashInfer: pages laid end to end, wrappers in turn. FlashInfer itself
is replaced; its numbers are checked on a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tokenspeed_sdk.contracts.kernel import CallSite, HostStep, PlannedKernel
from tokenspeed_sdk.contracts.platform import Capabilities

from tokenspeed_nvidia.kernels import flashinfer, flashinfer_prefill

TRAITS = {"heads": 4, "kv_heads": 2, "head_dim": 64, "page_size": 16, "window": None}
BINDERS = {
    "attention_prefill@1": flashinfer_prefill.bind,
    "attention_decode@1": flashinfer.bind,
}


class Wrapper:
    """Keeps what it is planned with; answers the queries."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.options = options

    def plan(self, *args: Any, **options: Any) -> None:
        self.planned = args

    def run(self, q: Any, *kv: Any, out: Any) -> None:
        self.kv = kv
        out.copy_(q)


class Gathered(Wrapper):
    """For keys that lie end to end."""


@pytest.fixture(autouse=True)
def replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(
        BatchPrefillWithPagedKVCacheWrapper=Wrapper,
        BatchDecodeWithPagedKVCacheWrapper=Wrapper,
        BatchPrefillWithRaggedKVCacheWrapper=Gathered,
    )
    monkeypatch.setattr(flashinfer, "load_flashinfer", lambda: library)
    monkeypatch.setattr(flashinfer_prefill, "compile_prefill", lambda geometry: None)
    monkeypatch.setattr(flashinfer, "WORKSPACE_BYTES", 16)


def bind(op: str, arch: str = "sm_90") -> Any:
    device = Capabilities("cuda", arch, (), frozenset(), 132)
    return BINDERS[op](CallSite(op, "test", "bfloat16", device, TRAITS))


def step() -> HostStep:
    """Rows of 33, 0 and 16 tokens in slots 2, 0 and 1; slot s holds the pages 8 s, 8 s + 1, ..."""
    return HostStep(
        query_start=torch.tensor([0, 3, 3, 4], dtype=torch.int32),
        kv_len=torch.tensor([33, 0, 16], dtype=torch.int32),
        page_table=torch.arange(40, dtype=torch.int32).view(5, 8),
        row_slot=torch.tensor([2, 0, 1], dtype=torch.int32),
    )


def test_pages_of_all_rows_stand_end_to_end() -> None:
    pages = flashinfer.flatten_pages(step(), 16)
    assert pages.start.tolist() == [0, 3, 3, 4]
    assert pages.index.tolist() == [16, 17, 18, 8]
    assert pages.last_len.tolist() == [1, 0, 16]


@pytest.mark.parametrize("op", BINDERS)
def test_plans_of_steps_in_flight_do_not_share_memory(op: str) -> None:
    kernel, planned = bind(op), step()
    assert isinstance(kernel, PlannedKernel)
    plans = [kernel.plan(planned, 0.1) for _ in range(flashinfer.STEPS_IN_FLIGHT + 1)]
    wrappers = [(plan.plan if "prefill" in op else plan).wrapper for plan in plans]
    assert len({id(wrapper) for wrapper in wrappers}) == flashinfer.STEPS_IN_FLIGHT
    assert wrappers[0] is wrappers[-1]


def test_sites_of_equal_geometry_share_plans() -> None:
    assert bind("attention_decode@1").plan_key == bind("attention_decode@1").plan_key
    assert bind("attention_decode@1").plan_key != bind("attention_prefill@1").plan_key


def test_padding_behind_the_last_row_stays_zero() -> None:
    kernel, planned = bind("attention_prefill@1"), step()
    q = torch.ones(6, 4, 64)
    cache = torch.zeros(2, 2, 16, 64)
    tail = (planned.page_table, planned.row_slot, planned.query_start, planned.kv_len)
    out = kernel(q, cache, cache, *tail, 0.1, plan=kernel.plan(planned, 0.1))
    assert bool((out[:4] == 1).all())
    assert not out[4:].any()


@pytest.mark.parametrize("op", BINDERS)
@pytest.mark.parametrize("rows", [0, 2], ids=["no rows", "dead rows"])
def test_flashinfer_is_not_asked_where_no_query_sees_a_key(op: str, rows: int) -> None:
    lengths = torch.zeros(rows, dtype=torch.int32)
    starts = torch.zeros(rows + 1, dtype=torch.int32)
    kernel, nothing = bind(op), HostStep(starts, lengths, torch.zeros(4, 2).int(), lengths)
    plan = kernel.plan(nothing, 0.1)
    assert (plan.plan if "prefill" in op else plan).wrapper is None
    cache, tail = torch.zeros(2, 2, 16, 64), (starts, lengths) if "prefill" in op else (lengths,)
    out = kernel(torch.ones(2, 4, 64), cache, cache, nothing.page_table, lengths, *tail, 0.1)
    assert not out.any()


def test_cache_folder_follows_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    found = flashinfer.cache_folder()
    assert str(found) == f"/somewhere/tokenspeed/flashinfer/torch-{torch.__version__}"


def fp8_plan() -> Any:
    device = Capabilities("cuda", "sm_90", (), frozenset(), 132)
    site = CallSite("attention_prefill_fp8@1", "test", "bfloat16", device, TRAITS)
    return flashinfer_prefill.bind(site).plan(step(), 0.1)


def test_eight_bit_pages_are_always_copied() -> None:
    plan = fp8_plan()
    assert (plan.gathering.pages, plan.gathering.tokens) == (3 + 1, 33 + 16)
    assert isinstance(plan.plan.wrapper, Gathered)
    query_start, key_start = plan.plan.wrapper.planned[:2]
    assert query_start.tolist() == [0, 3, 3, 4]
    assert key_start.tolist() == [0, 33, 33, 49]
    assert plan.gathering.starts.tolist() == [[0, 3, 3, 4], [0, 33, 33, 49]]


def test_too_many_eight_bit_pages_go_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = 49 * 2 * 64 * 4  # tokens, heads, numbers, bytes of a key and a value
    monkeypatch.setattr(flashinfer_prefill, "MOST_BYTES", copied)
    assert not fp8_plan().by_triton
    monkeypatch.setattr(flashinfer_prefill, "MOST_BYTES", copied - 1)
    assert fp8_plan().by_triton


def test_pages_are_copied_where_enough_queries_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step has 3 * 33 + 1 * 16 = 115 pairs of queries and 49 keys: 2.3 queries a key."""
    monkeypatch.setattr(flashinfer_prefill, "QUERIES_THAT_PAY", 2)
    assert bind("attention_prefill@1").plan(step(), 0.1).gathering.tokens == 49
    assert bind("attention_prefill@1", "sm_80").plan(step(), 0.1).gathering is None
    monkeypatch.setattr(flashinfer_prefill, "QUERIES_THAT_PAY", 3)
    plan = bind("attention_prefill@1").plan(step(), 0.1)
    assert plan.gathering is None
    assert not isinstance(plan.plan.wrapper, Gathered)


def test_a_kernel_that_cannot_be_compiled_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def no_device() -> int:
        tried.append(1)
        raise RuntimeError("first line\nnvcc: not found")

    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "current_device", no_device)
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=r"prefill kernel: RuntimeError: nvcc: not found; it"
        ):
            bind("attention_prefill@1")
    assert tried == [1]
    flashinfer_prefill.compile_prefill.cache_clear()
