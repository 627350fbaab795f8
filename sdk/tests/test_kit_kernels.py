# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The kit for kernels can fail: each deliberately wrong kernel is caught, in the case meant for it.

A wrong kernel is the reference with one fault. The reference itself must pass everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite, HostStep
from tokenspeed_sdk.contracts.probe import Accept, Verdict
from tokenspeed_sdk.ops import OPS
from tokenspeed_sdk.testing import TINY, Inputs, Report, check_kernel
from tokenspeed_sdk.testing.kernel.call_check import relative_error
from tokenspeed_sdk.testing.kernel.cases import FACTS, GENERATORS, cases_of

pytestmark = pytest.mark.rule("R19")

Call = Callable[..., Any]
NAN = float("nan")


def plain(weight: Any) -> Any:
    return weight


@dataclass(frozen=True)
class Mutant:
    """A kernel whose call is made of the reference's."""

    op: str
    fault: Callable[[Call], Call]
    name: str = "mutant"
    pack: Callable[[Any], Any] = plain

    def accept(self, site: CallSite) -> Verdict:
        return Accept(1, "for this test")

    def bind(self, site: CallSite) -> BoundKernel:
        return self.fault(OPS[self.op].bind_reference(site))

    def pack_weight(self, site: CallSite, weight: Any) -> Any:
        return self.pack(weight)


def right(call: Call) -> Call:
    return call


def ignores_row_stride(call: Call) -> Call:
    """Takes rows as if they stood side by side."""

    def packed(x: torch.Tensor, *rest: Any) -> Any:
        return call(x.as_strided(x.shape, (x.shape[1], 1)), *rest)

    return packed


def ignores_head_view(call: Call) -> Call:
    """Takes heads of a fused projection as if they were all of it."""

    def packed(x: torch.Tensor, *rest: Any) -> Any:
        if x.dim() == 3:
            x = x.as_strided(x.shape, (x.shape[1] * x.shape[2], x.shape[2], 1))
        return call(x, *rest)

    return packed


def writes_past_result(call: Call) -> Call:
    def longer(*args: Any) -> Any:
        right = call(*args)
        out = torch.empty(right.shape, dtype=right.dtype)
        out.copy_(right)
        behind = out.storage_offset() + out.numel()
        out.as_strided((8,), (1,), behind).zero_()
        return out

    return longer


def writes_past_rows(call: Call) -> Call:
    """Changes the row behind the last one in place, too."""

    def longer(x: torch.Tensor, residual: torch.Tensor, *rest: Any) -> Any:
        out = call(x, residual, *rest)
        residual.as_strided((2,), (1,), residual.storage_offset() + residual.numel()).zero_()
        return out

    return longer


def turns_values_too(call: Call) -> Call:
    """Rotates the values that lie behind the keys of a fused projection."""

    def more(q: torch.Tensor, k: torch.Tensor, *rest: Any) -> None:
        wider = k.as_strided((len(k), 2 * k.shape[1], k.shape[2]), k.stride(), k.storage_offset())
        call(q, wider, *rest)

    return more


def drops_last_of_full_page(call: Call) -> Call:
    """Counts one token too few where a row ends with its page."""

    def short(*args: Any) -> Any:
        *others, kv_len, scale = args
        new = args[5].diff() if len(args) == 8 else 1
        full = (kv_len > new) & (kv_len % args[1].shape[2] == 0)
        return call(*others, kv_len - full.int(), scale)

    return short


def reads_one_behind_page(call: Call) -> Call:
    """Counts a token too many where a row begins a new page."""

    def long(*args: Any) -> Any:
        *others, kv_len, scale = args
        begun = (kv_len > 1) & (kv_len % args[1].shape[2] == 1)
        return call(*others, kv_len + begun.int(), scale)

    return long


def writes_next_page_early(call: Call) -> Call:
    """Puts the last token of a page where the first of the next one belongs."""

    def early(k: torch.Tensor, v: torch.Tensor, *rest: Any) -> None:
        *cache, positions = rest
        last = positions % rest[0].shape[2] == rest[0].shape[2] - 1
        call(k, v, *cache, positions + last.int())

    return early


def takes_eps(value: float) -> Callable[[Call], Call]:
    def fault(call: Call) -> Call:
        return lambda *args: call(*args[:-1], value)

    return fault


def returns_float64(call: Call) -> Call:
    return lambda *args: call(*args).double()


def returns_alias(call: Call) -> Call:
    """Normalises in place: right numbers in memory that is another's."""
    return lambda x, *rest: x.copy_(call(x, *rest))


def returns_view(call: Call) -> Call:
    """A result whose rows are apart."""

    def apart(*args: Any) -> Any:
        out = call(*args)
        return torch.nn.functional.pad(out, (0, 4))[:, : out.shape[1]]

    return apart


def returns_nan(call: Call) -> Call:
    def spoilt(*args: Any) -> Any:
        out = call(*args)
        out[-1:, -1:] = NAN
        return out

    return spoilt


def leaves_hole(call: Call) -> Call:
    """Does not write its last row."""

    def short(*args: Any) -> Any:
        right = call(*args)
        out = torch.empty_like(right)
        out[:-1] = right[:-1]
        return out

    return short


def one_row_at_least(call: Call) -> Call:
    """Wrong on zero rows."""

    def padded(x: torch.Tensor, *rest: Any) -> Any:
        return call(x, *rest) if len(x) else x.new_zeros(1, x.shape[-1])

    return padded


def answers_dead_rows(call: Call) -> Call:
    """Leaves a little in dead rows, too little for the norm of a batch to show."""

    def alive(q: torch.Tensor, *rest: Any) -> Any:
        out = call(q, *rest)
        dead = rest[-2] == 0
        out[dead] = 1e-6
        return out

    return alive


def ignores_group(call: Call) -> Call:
    """Query head h reads KV head h modulo their number."""

    def modulo(q: torch.Tensor, k_cache: torch.Tensor, *rest: Any) -> Any:
        kv_heads = k_cache.shape[1]
        group = q.shape[1] // kv_heads
        order = torch.arange(q.shape[1]).view(group, kv_heads).t().flatten()
        out = torch.empty_like(q)
        out[:, order] = call(q[:, order].contiguous(), k_cache, *rest)
        return out

    return modulo


def window_of_one_more(call: Call) -> Call:
    assert isinstance(call, partial)
    window = call.keywords["window"]
    return partial(call, window=None if window is None else window + 1)


@dataclass
class KeepsResult:
    """One buffer for the results of all calls."""

    call: Call
    held: dict[Any, torch.Tensor] = field(default_factory=dict)

    def __call__(self, *args: Any) -> Any:
        out = self.call(*args)
        return self.held.setdefault(out.shape, torch.zeros_like(out)).copy_(out)


def ignores_epoch(call: Call) -> Call:
    return lambda table, epochs, slot, epoch, *rest: call(
        table, epochs, slot, torch.full_like(epoch, 9), *rest
    )


def ignores_count(call: Call) -> Call:
    return lambda *args: call(*args[:-1], torch.full_like(args[-1], len(args[2])))


def ignores_seed_high(call: Call) -> Call:
    return lambda *args: call(*args[:5], args[5] & 0xFFFFFFFF, args[6])


def first_of_row(call: Call) -> Call:
    """Gathers without looking at the order."""
    return lambda x, index: call(x, index.sort().values)


def returns_something(call: Call) -> Call:
    def both(*args: Any) -> Any:
        call(*args)
        return args[0]

    return both


MUTANTS = [
    # op, fault, a case that catches it (part of its name), what the report says
    ("gather_rows@1", ignores_row_stride, "-apart", "differs from the reference"),
    ("silu_and_mul@1", ignores_row_stride, "-apart", "is off by inf"),
    ("linear@1", ignores_row_stride, "-apart", "is off by inf"),
    ("rms_norm@1", ignores_head_view, "heads", "is off by"),
    ("rms_norm@1", writes_past_result, "rows5-200", "past the end of memory"),
    ("add_rms_norm@1", writes_past_rows, "rows5-37", "memory that is not its own"),
    ("rope@1", turns_values_too, "rows5", "memory that is not its own"),
    ("attention_decode@1", drops_last_of_full_page, "length16-", "is off by"),
    ("attention_decode@1", reads_one_behind_page, "length17-", "is off by inf"),
    ("attention_prefill@1", drops_last_of_full_page, "batch", "is off by"),
    ("attention_prefill@1", reads_one_behind_page, "new17-", "is off by inf"),
    ("kv_write@1", writes_next_page_early, "rows1-", "differs from the reference"),
    ("rms_norm@1", takes_eps(1e-6), "rows1-37", "is off by"),
    ("add_rms_norm@1", takes_eps(0.0999), "rows1-200", "is off by"),
    ("linear@1", returns_float64, "rows1", "has dtype torch.float64, not torch.float32"),
    ("rms_norm@1", returns_alias, "rows5", "lies in the memory of an argument"),
    ("silu_and_mul@1", returns_view, "rows5", "is not contiguous"),
    ("linear@1", returns_nan, "rows5", "is off by inf"),
    ("attention_decode@1", leaves_hole, "length1-", "is off by inf"),
    ("embedding@1", leaves_hole, "rows5", "differs from the reference"),
    ("rms_norm@1", one_row_at_least, "rows0-37", "has shape (1, 37), not (0, 37)"),
    ("attention_decode@1", answers_dead_rows, "batch", "is not zero in rows"),
    ("attention_decode@1", answers_dead_rows, "dead_rows", "is off by"),
    ("attention_decode@1", ignores_group, "batch-6:2", "is off by"),
    ("attention_prefill@1", window_of_one_more, "window9", "is off by"),
    ("rms_norm@1", KeepsResult, "rows1", "two calls return the same memory"),
    ("page_table_update@1", ignores_epoch, "count290", "differs from the reference"),
    ("page_table_update@1", ignores_count, "count0", "differs from the reference"),
    ("sample@1", ignores_seed_high, "spread-rows15", "differs from the reference"),
    ("gather_rows@1", first_of_row, "rows5", "differs from the reference"),
    ("rope@1", returns_something, "rows5", "returns Tensor where the op returns nothing"),
]


def reports(kernel: Mutant, dtype: str = "float32") -> dict[str, Report]:
    return {
        case.name: check_kernel(kernel, case, dtype=dtype) for case in cases_of(kernel.op, TINY)
    }


@pytest.mark.parametrize(
    ("op", "fault", "case", "says"),
    [pytest.param(*m, id=f"{m[0]}-{getattr(m[1], '__name__', m[1])}-{m[2]}") for m in MUTANTS],
)
def test_a_wrong_kernel_is_caught(op: str, fault: Any, case: str, says: str) -> None:
    found = reports(Mutant(op, fault))
    caught = [name for name, report in found.items() if says in str(report)]
    assert any(case in name for name in caught), "\n".join(map(str, found.values()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("op", OPS)
def test_the_reference_passes(op: str, dtype: str) -> None:
    assert not [str(r) for r in reports(Mutant(op, right), dtype).values() if r.problems]


def test_a_few_wrong_elements_do_not_hide_among_many() -> None:
    def swapped(call: Call) -> Call:
        def spoilt(*args: Any) -> Any:
            out = call(*args)
            out[-1:, -2:] = out[-1:, -2:].flip(-1)
            return out

        return spoilt

    (case,) = (case for case in cases_of("rms_norm@1") if case.name.startswith("rows130-576"))
    report = check_kernel(Mutant("rms_norm@1", swapped), case, dtype="bfloat16")
    assert report.error < report.bound
    assert "has a few elements that are far off (rows 129 of 130)" in str(report)


def test_a_packed_weight_is_what_the_call_gets() -> None:
    """A kernel that packs, and one that forgets that it did."""

    def unpacks(call: Call) -> Call:
        return lambda x, weight, *rest: call(x, weight.t(), *rest)

    packing = Mutant("linear@1", unpacks, pack=lambda weight: weight.t())
    assert not [r for r in reports(packing).values() if r.problems]
    forgetful = Mutant("linear@1", right, pack=lambda weight: weight * 2)
    assert all(r.problems for name, r in reports(forgetful).items() if "rows0" not in name)
    spoiling = Mutant("linear@1", right, pack=lambda weight: weight.mul_(2))
    assert "memory that is not its own" in str(reports(spoiling)["rows1-48x80"])


@dataclass(frozen=True)
class Planned:
    """Attention that runs only as it was planned."""

    call: Call
    plan_key: str = "key"

    def plan(self, step: HostStep, scale: float) -> list[int]:
        assert step.query_start.device.type == "cpu"
        return [*step.query_start.tolist(), *step.kv_len.tolist()]

    def __call__(self, *args: Any, plan: list[int]) -> Any:
        *starts, kv_len, _ = args[5:]
        first = starts[0].tolist() if starts else range(len(kv_len) + 1)
        assert plan == [*first, *kv_len.tolist()]
        return self.call(*args)


@pytest.mark.parametrize("op", ["attention_decode@1", "attention_prefill@1"])
def test_a_planned_kernel_is_planned(op: str) -> None:
    assert not [r for r in reports(Mutant(op, Planned)).values() if r.problems]


def test_the_error_measure_rejects_nan() -> None:
    good = torch.ones(4)
    assert relative_error(good, good) == 0
    assert relative_error(good * NAN, good) == float("inf")
    assert relative_error(good, good * NAN) == float("inf")
    assert relative_error(torch.tensor([1.0, 1.1]), torch.ones(2)) == pytest.approx(
        0.0707, rel=1e-2
    )


def test_bounds_may_be_given() -> None:
    case = cases_of("rms_norm@1", TINY)[-1]
    kernel = Mutant("rms_norm@1", takes_eps(0.1001))
    assert check_kernel(kernel, case).problems
    assert not check_kernel(kernel, case, bounds={"rms_norm@1": {"float32": 1e-3}}).problems


def test_a_dtype_without_a_bound_needs_one() -> None:
    case, kernel = cases_of("rms_norm@1", TINY)[-1], Mutant("rms_norm@1", right)
    with pytest.raises(ValueError, match="no bound for rms_norm@1 in float64; state one"):
        check_kernel(kernel, case, dtype="float64")
    wide = {"rms_norm@1": {"float64": 1e-12}}
    assert not check_kernel(kernel, case, dtype="float64", bounds=wide).problems


def test_every_public_op_has_cases_and_facts() -> None:
    assert set(GENERATORS) == set(FACTS) == set(OPS)
    for op in OPS:
        names = [case.name for case in cases_of(op)]
        assert len(names) == len(set(names))


def test_cases_are_the_same_every_time() -> None:
    case = cases_of("attention_decode@1", TINY)[-1]
    for one, other in zip(*(case.make(Inputs(3, torch.float32)).args for _ in "ab"), strict=True):
        assert torch.equal(torch.as_tensor(one).nan_to_num(), torch.as_tensor(other).nan_to_num())
