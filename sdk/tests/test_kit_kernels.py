# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The kit for kernels can fail: each deliberately wrong kernel is caught, in the case meant for it.

A wrong kernel is the reference with one fault. The reference itself must pass everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import local
from typing import Any

import pytest
import torch
from tokenspeed_sdk import ops
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite, HostStep, Kernel
from tokenspeed_sdk.contracts.probe import Accept, Decline, Verdict
from tokenspeed_sdk.ops import OPS, int8
from tokenspeed_sdk.ops.fp8 import dequantize_weight
from tokenspeed_sdk.testing import TINY, USUAL, Grid, Inputs, Report, check_kernel
from tokenspeed_sdk.testing.kernel.call_check import relative_error
from tokenspeed_sdk.testing.kernel.cases import FACTS, GENERATORS, cases_of
from tokenspeed_sdk.testing.kernel.check import check_binding
from tokenspeed_sdk.testing.kernel.steps import some_sites

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


def sums_in_place(call: Call) -> Call:
    """Changes the residual, as add_rms_norm does, and copies the sum from there."""

    def changing(x: torch.Tensor, residual: torch.Tensor, summed: torch.Tensor, *rest: Any) -> Any:
        out = call(x, residual, summed, *rest)
        residual.copy_(summed)
        return out

    return changing


def forgets_sum(call: Call) -> Call:
    """The right result, and nothing in the memory for the sum."""
    return lambda x, residual, summed, *rest: call(x, residual, summed.clone(), *rest)


def without(index: int) -> Callable[[Call], Call]:
    """Takes an optional argument for None."""

    def fault(call: Call) -> Call:
        return lambda *args: call(*args[:index], None, *args[index + 1 :])

    return fault


def flips(keyword: str) -> Callable[[Call], Call]:
    """Takes a trait for its contrary."""

    def fault(call: Call) -> Call:
        assert isinstance(call, partial)
        return partial(call, **{keyword: not call.keywords[keyword]})

    return fault


def norms_keys_with_query_weight(call: Call) -> Call:
    return lambda *args: call(*args[:10], args[9], args[11])


def rotates_keys_too(call: Call) -> Call:
    """Leaves rotated keys where the plain ones were."""

    def changing(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> None:
        call(q, k, v, *rest)
        call(k.clone(), k, v, *rest)
        k += 1

    return changing


def rounds_values(call: Call) -> Call:
    """Values that are not quite those that were given."""

    def near(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> None:
        call(q, k, v * (1 + 1e-6), *rest)

    return near


def clears_pages(call: Call) -> Call:
    """Writes where nobody's tokens lie."""

    def clearing(*args: Any) -> None:
        call(*args)
        args[5].nan_to_num_(0.0)

    return clearing


def clears_pages_fp8(call: Call) -> Call:
    """Writes where nobody's tokens lie; 0 is a code."""

    def clearing(*args: Any) -> None:
        call(*args)
        codes = args[5].view(torch.uint8)
        codes[args[5].isnan()] = 0

    return clearing


def swaps(index: int) -> Callable[[Call], Call]:
    """Takes two neighbours for each other, such as the scales of keys and values."""

    def fault(call: Call) -> Call:
        return lambda *args: call(*args[:index], args[index + 1], args[index], *args[index + 2 :])

    return fault


def gates_with_up(call: Call) -> Call:
    """Takes the second half of the columns for the gate."""
    return lambda x, *rest: call(torch.cat(x.chunk(2, 1)[::-1], 1), *rest)


def keeps_activations(call: Call) -> Call:
    """Multiplies what it was given, not the codes."""
    return lambda x, codes, scale, bias: ops.linear(
        x, dequantize_weight(codes, scale, x.dtype), bias
    )


def keeps_floats(call: Call) -> Call:
    """The same of integers."""
    return lambda x, codes, scale, bias: ops.linear(
        x, int8.dequantize_weight(codes, scale, x.dtype), bias
    )


def ignores_scale_row(call: Call) -> Call:
    return lambda x, codes, scale, bias: call(x, codes, scale[:1].expand_as(scale), bias)


def wraps_around(call: Call) -> Call:
    """What is too large becomes something else."""

    def writing(k: torch.Tensor, v: torch.Tensor, *rest: Any) -> None:
        call(k, v.clamp(-10, 10), *rest)

    return writing


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


def sees_later_guesses(call: Call) -> Call:
    """All queries of a run see what its last one does."""

    def fault(
        q: Any, keys: Any, values: Any, table: Any, slot: Any, kv_len: Any, *rest: Any
    ) -> Any:
        longest = kv_len.clone()
        for row in reversed(range(len(slot) - 1)):
            if slot[row] == slot[row + 1] and kv_len[row] + 1 == kv_len[row + 1]:
                longest[row] = longest[row + 1]
        return call(q, keys, values, table, slot, longest, *rest)

    return fault


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


@dataclass
class Remembers:
    """Answers by shape: the first answer for a shape again and again."""

    call: Call
    held: dict[Any, torch.Tensor] = field(default_factory=dict)

    def __call__(self, *args: Any) -> Any:
        shape = args[0].shape
        if shape not in self.held:
            self.held[shape] = self.call(*args)
        return self.held[shape].clone()


@dataclass
class KeepsFirstScale:
    """Takes the largest value of its first call for that of all calls."""

    call: Call
    largest: list[torch.Tensor] = field(default_factory=list)

    def __call__(self, x: torch.Tensor, *rest: Any) -> Any:
        if x.numel() and not self.largest:
            self.largest.append(x.abs().max())
        return self.call(x.clamp(-self.largest[0], self.largest[0]) if x.numel() else x, *rest)


@dataclass
class KeepsFirstRows:
    """Has room for as many rows as its first call: more of them later are lost."""

    call: Call
    room: list[int] = field(default_factory=list)

    def __call__(self, x: torch.Tensor, *rest: Any) -> Any:
        self.room = self.room or [len(x)]
        out = self.call(x, *rest)
        out[self.room[0] :] = 0
        return out


@dataclass
class TakesTurns:
    """Two buffers for results, in turn."""

    call: Call
    buffers: list[torch.Tensor] = field(default_factory=list)
    calls: int = 0

    def __call__(self, *args: Any) -> Any:
        out = self.call(*args)
        if self.buffers and self.buffers[0].shape != out.shape:
            self.buffers.clear()
        if len(self.buffers) < 2:
            self.buffers.append(out)
            return out
        self.calls += 1
        return self.buffers[self.calls % 2].copy_(out)


class WorksInOneThread:
    """What it needs is there only in the thread that bound it."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.own = local()
        self.own.sign = 1

    def __call__(self, *args: Any) -> Any:
        return self.call(*args) * getattr(self.own, "sign", -1)


def room_for_256(call: Call) -> Call:
    """Wrong where a step has more rows."""

    def short(*args: Any) -> Any:
        out = call(*args)
        out[256:] = 0
        return out

    return short


def ignores_epoch(call: Call) -> Call:
    return lambda table, epochs, slot, epoch, *rest: call(
        table, epochs, slot, torch.full_like(epoch, 9), *rest
    )


def ignores_count(call: Call) -> Call:
    return lambda *args: call(*args[:-1], torch.full_like(args[-1], len(args[2])))


def ignores_seed_high(call: Call) -> Call:
    return lambda *args: call(*args[:5], args[5] & 0xFFFFFFFF, args[6])


def counts_no_guesses(call: Call) -> Call:
    """Takes every row as the first of its slot."""
    return lambda *args: call(*args[:4], torch.full_like(args[4], -1), *args[5:])


def counts_first_guess(call: Call) -> Call:
    """Counts what the first row of a run stands behind, too."""

    def more(*args: Any) -> None:
        slots, guesses, counts = args[2].tolist(), args[4].tolist(), args[7].clone()
        for s in {*slots}:
            token = guesses[slots.index(s)]
            if 0 <= token < counts.shape[1]:
                counts[s, token] += 2
        call(*args[:7], counts, *args[8:])

    return more


def is_one_guess_ahead(call: Call) -> Call:
    return lambda *args: call(*args[:4], args[4].roll(-1), *args[5:])


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
    ("add_norm_linear@1", sums_in_place, "rows5", "memory that is not its own"),
    ("add_norm_linear@1", forgets_sum, "rows1-", "argument 2, changed in place, is off by inf"),
    ("add_norm_linear@1", without(5), "-bias", "is off by"),
    ("add_norm_linear@1", takes_eps(1e-6), "rows1-", "is off by"),
    ("rope_kv_write@1", flips("interleaved"), "interleaved", "argument 0, changed in place, is"),
    ("rope_kv_write@1", norms_keys_with_query_weight, "batch1-", "argument 5, changed in place,"),
    ("rope_kv_write@1", takes_eps(1e-6), "batch1-", "argument 5, changed in place, is off by"),
    ("rope_kv_write@1", rotates_keys_too, "batch4", "memory that is not its own"),
    ("rope_kv_write@1", rounds_values, "rows1_2", "argument 6, changed in place, differs"),
    ("rope_kv_write@1", clears_pages, "rows1_2", "argument 5, changed in place, is written where"),
    ("linear_fp8@1", keeps_activations, "rows5", "is off by"),
    ("linear_int8@1", keeps_floats, "rows5", "is off by"),
    ("linear_int8@1", ignores_scale_row, "rows1-", "is off by"),
    ("add_norm_linear_fp8@1", takes_eps(1e-6), "rows1-", "is off by"),
    ("silu_linear_fp8@1", gates_with_up, "rows5", "is off by"),
    ("add_norm_linear_int8@1", takes_eps(1e-6), "rows1-", "is off by"),
    ("kv_write_fp8@1", swaps(7), "rows1-", "differs from the reference"),
    ("kv_write_fp8@1", wraps_around, "rows1-", "differs from the reference"),
    ("rope_kv_write_fp8@1", swaps(11), "batch1-", "argument 5, changed in place, is off by"),
    ("rope_kv_write_fp8@1", clears_pages_fp8, "rows1_2", "is written where"),
    ("attention_decode_fp8@1", swaps(6), "length16-", "is off by"),
    ("attention_prefill_fp8@1", swaps(7), "batch", "is off by"),
    ("attention_verify@1", sees_later_guesses, "run17-", "is off by"),
    ("attention_verify@1", answers_dead_rows, "batch", "is not zero in rows"),
    ("attention_verify@1", window_of_one_more, "window9", "is off by"),
    ("attention_verify_fp8@1", swaps(6), "run16-", "is off by"),
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
    ("adjust_logits_verify@1", counts_no_guesses, "guesses", "differs from the reference"),
    ("adjust_logits_verify@1", counts_first_guess, "guesses", "differs from the reference"),
    ("adjust_logits_verify@1", is_one_guess_ahead, "guesses", "differs from the reference"),
    ("sample@1", ignores_seed_high, "spread-rows15", "differs from the reference"),
    ("gather_rows@1", first_of_row, "rows5", "differs from the reference"),
    ("rope@1", returns_something, "rows5", "returns Tensor where the op returns nothing"),
]


AGAIN = ("silu_and_mul@1", "linear@1", "rms_norm@1")

STATEFUL = [
    # fault, a check that catches it (part of its name), what the report says
    (Remembers, "one_binding", "call 3 of one bound kernel, rows1"),
    (Remembers, "rows1", "call 2 of one bound kernel, rows1"),
    (KeepsFirstScale, "one_binding", "of one bound kernel, rows"),
    (KeepsFirstRows, "one_binding", "call 2 of one bound kernel, rows5"),
    (TakesTurns, "rows1", "call 3 of one bound kernel, rows1"),
    (WorksInOneThread, "one_binding", "from another thread: the result is off by"),
]


def reports(kernel: Kernel, dtype: str = "float32", grid: Grid = TINY) -> dict[str, Report]:
    cases = cases_of(kernel.op, grid)
    found = [check_kernel(kernel, case, dtype=dtype) for case in cases]
    found += [check_binding(kernel, s, dtype=dtype) for s in some_sites(cases)]
    return {report.case: report for report in found}


def test_blocks_of_rows_have_scales_of_their_own() -> None:
    found = reports(
        Mutant("linear_fp8@1", ignores_scale_row), grid=Grid((5,), matrices=((130, 9),))
    )
    assert all("is off by" in str(report) for report in found.values())


@pytest.mark.parametrize(
    ("op", "fault", "case", "says"),
    [pytest.param(*m, id=f"{m[0]}-{getattr(m[1], '__name__', m[1])}-{m[2]}") for m in MUTANTS],
)
def test_a_wrong_kernel_is_caught(op: str, fault: Any, case: str, says: str) -> None:
    found = reports(Mutant(op, fault))
    caught = [name for name, report in found.items() if says in str(report)]
    assert any(case in name for name in caught), "\n".join(map(str, found.values()))


@pytest.mark.parametrize("op", AGAIN)
@pytest.mark.parametrize(("fault", "check", "says"), STATEFUL)
def test_a_bound_kernel_that_keeps_state_is_caught(
    op: str, fault: Any, check: str, says: str
) -> None:
    found = reports(Mutant(op, fault))
    caught = [name for name, report in found.items() if says in str(report)]
    assert any(check in name for name in caught), "\n".join(map(str, found.values()))


@pytest.mark.parametrize("op", AGAIN)
def test_rows_of_a_large_step_are_checked(op: str) -> None:
    found = reports(Mutant(op, room_for_256), grid=USUAL)
    wrong = {name for name, report in found.items() if report.problems}
    assert wrong
    assert all("rows520" in name for name in wrong)
    assert any(name.startswith("rows520") for name in wrong)


@dataclass(frozen=True)
class OneRow(Mutant):
    """Takes the fewest rows that a site asks for as all of them."""

    def bind(self, site: CallSite) -> BoundKernel:
        call = OPS[self.op].bind_reference(site)

        def first_rows(*args: Any) -> Any:
            out = call(*args)
            out[site.rows[0] :] = 0
            return out

        return first_rows


@dataclass(frozen=True)
class MostRows(Mutant):
    """Takes for granted that a site says how many rows there are at most."""

    def bind(self, site: CallSite) -> BoundKernel:
        most = site.rows[1]
        assert most is not None, "no room for any number of rows"
        return OPS[self.op].bind_reference(site)


@pytest.mark.parametrize("op", AGAIN)
def test_the_fewest_rows_are_not_all(op: str) -> None:
    found = reports(OneRow(op, right))
    assert all("is off by" in str(r) for name, r in found.items() if "rows5" in name)


@pytest.mark.parametrize("op", AGAIN)
def test_a_site_may_have_no_most_rows(op: str) -> None:
    (*_, site) = some_sites(cases_of(op, TINY))
    with pytest.raises(AssertionError, match="no room for any number of rows"):
        check_binding(MostRows(op, right), site)


def test_one_binding_has_the_rows_that_the_kernel_accepts() -> None:
    """A kernel for few rows is bound to those, and called with no more."""
    bound: list[tuple[int, int | None]] = []

    class Few(Mutant):
        def accept(self, site: CallSite) -> Verdict:
            return Accept(1, "few") if site.rows[1] in (1, 8) else Decline("too many rows")

        def bind(self, site: CallSite) -> BoundKernel:
            bound.append(site.rows)
            return super().bind(site)

    *_, cases = some_sites(cases_of("rms_norm@1", USUAL))
    report = check_binding(Few("rms_norm@1", KeepsFirstRows), cases)
    assert bound == [(1, 8)]
    assert "call 2 of one bound kernel, rows3-" in str(report)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("op", OPS)
def test_the_reference_passes(op: str, dtype: str) -> None:
    assert not [str(r) for r in reports(Mutant(op, right), dtype).values() if r.problems]


def test_a_few_wrong_elements_do_not_hide_among_many() -> None:
    def swapped(call: Call) -> Call:
        def spoilt(*args: Any) -> Any:
            out = call(*args)
            out[-1, -1] += 1.5
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


def test_a_kernel_of_the_wrong_arity_is_told_the_arguments() -> None:
    def too_few(call: Call) -> Call:
        return lambda x, residual, weight: call(x, residual, weight, 1e-6)

    def too_many(call: Call) -> Call:
        return lambda x, residual, weight, eps, more: call(x, residual, weight, eps)

    passed = "the op passes 4 arguments: x, residual, weight, eps; the kernel takes others: "
    for fault, says in ((too_few, "takes 3 positional"), (too_many, "missing 1 required")):
        for report in reports(Mutant("add_rms_norm@1", fault)).values():
            (problem,) = report.problems
            assert problem.startswith(passed)
            assert says in problem


def test_a_type_error_inside_a_kernel_is_its_own() -> None:
    def raises(call: Call) -> Call:
        return lambda x, *rest: call(x + "not a tensor", *rest)

    with pytest.raises(TypeError, match="Tensor"):
        reports(Mutant("rms_norm@1", raises))


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
