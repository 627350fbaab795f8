# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What is wrong with a bound kernel from one call to the next, or with what it was bound for."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import local
from typing import Any

import pytest
import torch
from mutants import Call, Mutant, caught_by, reports, right
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite, HostStep
from tokenspeed_sdk.contracts.probe import Accept, Decline, Verdict
from tokenspeed_sdk.ops import OPS
from tokenspeed_sdk.testing import TINY, USUAL
from tokenspeed_sdk.testing.kernel.cases import cases_of
from tokenspeed_sdk.testing.kernel.check import check_binding
from tokenspeed_sdk.testing.kernel.steps import some_sites

pytestmark = pytest.mark.rule("R19")


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


@pytest.mark.parametrize("op", AGAIN)
@pytest.mark.parametrize(("fault", "check", "says"), STATEFUL)
def test_a_bound_kernel_that_keeps_state_is_caught(
    op: str, fault: Any, check: str, says: str
) -> None:
    assert caught_by(check, says, reports(Mutant(op, fault)))


def test_a_kernel_that_keeps_its_result_is_caught() -> None:
    found = reports(Mutant("rms_norm@1", KeepsResult))
    assert caught_by("rows1", "two calls return the same memory", found)


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
