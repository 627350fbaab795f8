# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Other kernels for other numbers of rows at one call site."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from tokenspeed.cli import kernels
from tokenspeed.registry.by_rows import BUCKETS, Packed, buckets, text
from tokenspeed.registry.kernels import KernelRegistry
from tokenspeed_sdk.contracts import Accept, Decline
from tokenspeed_sdk.contracts.kernel import CallSite
from tokenspeed_sdk.contracts.platform import Capabilities
from tokenspeed_sdk.ops import OPS

DEVICE = Capabilities("cpu", "x86-64-v3", ("float32",), frozenset(), 4)
REST = "2-4, 5-8, 9-16, 17-32, 33-64, 65-128, 129-"
SITE = CallSite("linear@1", "model.proj", "float32", DEVICE, {"n": 3, "k": 2, "bias": False})


class Linear:
    """A correct linear that is good for some rows, lays its weight out in its own way, and counts.

    Attributes:
        bound_for: rows of the sites that it was bound for.
        rows: rows of every call.
    """

    op = "linear@1"

    def __init__(self, name, score):
        self.name, self.score = name, score
        self.bound_for, self.rows = [], []

    def accept(self, site):
        score = self.score(site.rows)
        return Decline("not for these") if score is None else Accept(score, "scores")

    def bind(self, site):
        self.bound_for.append(site.rows)

        def run(x, weight, bias=None):
            assert weight[0] == self.name
            self.rows.append(x.shape[0])
            return OPS["linear@1"].reference(x, weight[1], bias)

        return run

    def pack_weight(self, site, weight):
        return self.name, weight


def gemv(rows):
    return 90 if rows == (1, 1) else None


def gemm(rows):
    return 50


def middle(rows):
    return 80 if rows in BUCKETS[1:3] or rows == (2, 8) else 10


def registry_of(plugins, *kernels, pins=None):
    plugins.kernels("acme", *kernels)
    return KernelRegistry(plugins.plan(), pins or {})


def test_the_buckets_cover_every_number_of_rows_once():
    for rows in range(1, 200):
        holders = [b for b in BUCKETS if b[0] <= rows and (b[1] is None or rows <= b[1])]
        assert len(holders) == 1
    assert buckets((1, None)) == BUCKETS
    assert [text(b) for b in BUCKETS] == [
        "1", "2-4", "5-8", "9-16", "17-32", "33-64", "65-128", "129-",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "cut"),
    [
        ((4, 4), ((4, 4),)),
        ((1, 32), BUCKETS[:5]),
        ((3, 20), ((3, 4), (5, 8), (9, 16), (17, 20))),
        ((100, None), ((100, 128), (129, None))),
        ((200, 300), ((200, 300),)),
    ],
)
def test_a_site_with_its_own_rows_is_cut_at_the_edges(rows, cut):
    assert buckets(rows) == cut


@pytest.mark.parametrize("rows", [0, 1, 2, 8, 9, 64, 65, 300])
def test_each_call_goes_to_the_kernel_for_its_rows_with_its_own_weight(plugins, rows):
    one, many, few = Linear("gemv", gemv), Linear("gemm", gemm), Linear("middle", middle)
    binding = registry_of(plugins, one, many, few).bind(SITE)
    weight = torch.randn(3, 2)
    packed = binding.pack_weight(weight)
    x = torch.randn(rows, 2)
    torch.testing.assert_close(binding.call(x, packed, None), x @ weight.T)
    called = {kernel.name: kernel.rows for kernel in (one, many, few) if kernel.rows}
    expected = "gemv" if rows <= 1 else "middle" if rows <= 8 else "gemm"
    assert called == {expected: [rows]}


def test_there_is_one_packed_weight_for_each_kernel_that_can_be_called(plugins):
    one, many, idle = Linear("gemv", gemv), Linear("gemm", gemm), Linear("idle", lambda rows: 1)
    registry = registry_of(plugins, one, many, idle)
    binding = registry.bind(SITE)
    packed = binding.pack_weight("w")
    assert isinstance(packed, Packed)
    assert packed.weights == (("gemv", "w"), ("gemm", "w"))
    assert (one.bound_for, many.bound_for, idle.bound_for) == ([(1, 1)], [(2, None)], [])
    assert registry.row_samples() == tuple(low for low, _ in BUCKETS)


@pytest.mark.rule("R13")
def test_every_bucket_has_a_decision_with_its_own_reasons(plugins):
    registry = registry_of(plugins, Linear("gemv", gemv), Linear("gemm", gemm))
    registry.bind(SITE)
    (bound,) = registry.bound
    assert [(d.rows, d.chosen) for d in bound.decisions] == [
        ("1", "gemv"),
        (REST, "gemm"),
    ]
    assert bound.decisions[1].runners_up[0].why == "declined: not for these"
    assert [choice.kernel for choice in registry.choices()] == ["gemm", "gemv"]


def test_explain_shows_the_buckets_where_they_differ(plugins, capsys):
    registry = registry_of(plugins, Linear("gemv", gemv), Linear("gemm", gemm))
    registry.bind(SITE)
    ((bound, count),) = registry.explain()
    kernels._show(bound, count)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("linear@1  float32  n=3 k=2 bias=False")
    assert lines[1] == "  * 1 rows: gemv (acme 1.0): score 90: scores"
    assert f"  * {REST} rows: gemm (acme 1.0): score 50: scores" in lines
    data = kernels._data(bound, count)
    assert [(d["rows"], d["chosen"]) for d in data["decisions"]] == [
        ("1", "gemv"),
        (REST, "gemm"),
    ]
    assert json.loads(json.dumps(data))["traits"] == {"n": 3, "k": 2, "bias": False}


def test_one_winner_is_bound_once_for_all_rows_and_packs_plainly(plugins):
    many = Linear("gemm", gemm)
    registry = registry_of(plugins, many)
    binding = registry.bind(SITE)
    assert many.bound_for == [(1, None)]
    assert binding.pack_weight("w") == ("gemm", "w")
    assert len(registry.bound[0].decisions) == 1
    assert registry.row_samples() == (1,)


@pytest.mark.rule("R13")
def test_a_pinned_kernel_serves_all_rows_or_is_refused(plugins):
    pins = {"linear@1": "gemv"}
    registry = registry_of(plugins, Linear("gemv", gemv), Linear("gemm", gemm), pins=pins)
    with pytest.raises(LookupError, match='pinned kernel "gemv" does not serve'):
        registry.bind(SITE)


def test_a_kernel_that_plans_serves_all_rows(plugins):
    """Its plan is made before the rows of a call are known."""

    class Planning(Linear):
        def bind(self, site):
            call = super().bind(site)

            class Planned:
                plan_key = "key"

                def plan(self, step, scale):
                    return "plan"

                def __call__(self, *args, plan):
                    return call(*args), plan

            return Planned()

    registry = registry_of(plugins, Planning("planning", gemv), Linear("gemm", gemm))
    assert registry.bind(SITE).kernel == "gemm"  # what the whole range of rows says
    assert registry.bound[0].site.rows == (1, None)


def test_a_kernel_is_not_bound_for_rows_that_it_declined(plugins):
    """It declines a bucket between those that it won, and so their hull."""
    gap = Linear("gap", lambda rows: 90 if rows == (1, 1) or rows[0] >= 9 else None)
    registry = registry_of(plugins, gap, Linear("gemm", gemm))
    binding = registry.bind(SITE)
    assert gap.bound_for == [(1, 1), (9, None)]
    assert binding.kernel == "gap+gemm"
    packed = binding.pack_weight(torch.ones(3, 2))
    for rows in (1, 2, 8, 9, 64, 65):
        binding.call(torch.ones(rows, 2), packed, None)
    assert gap.rows == [1, 9, 64, 65]
    assert [d.rows for d in registry.bound[0].decisions] == [
        "1",
        "9-16, 17-32, 33-64, 65-128, 129-",
        "2-4, 5-8",
    ]
    assert [(c.kernel, c.sites) for c in registry.choices()] == [("gap", 1), ("gemm", 1)]


def test_a_kernel_that_was_outranked_in_between_is_bound_once(plugins):
    many = Linear("gemm", gemm)
    registry_of(plugins, many, Linear("middle", middle)).bind(SITE)
    assert many.bound_for == [(1, None)]


def test_buckets_that_are_accepted_one_by_one_only_are_bound_one_by_one(plugins):
    picky = Linear("picky", lambda rows: 90 if rows in BUCKETS else None)
    registry = registry_of(plugins, picky)
    binding = registry.bind(SITE)
    assert picky.bound_for == list(BUCKETS)
    assert binding.kernel == "picky"
    packed = binding.pack_weight(torch.ones(3, 2))
    for rows in (1, 2, 9, 65, 300):
        binding.call(torch.ones(rows, 2), packed, None)
    assert picky.rows == [1, 2, 9, 65, 300]


def test_a_site_with_a_bound_takes_its_last_kernel_for_all_that_is_beyond(plugins):
    one, many = Linear("gemv", gemv), Linear("gemm", gemm)
    binding = registry_of(plugins, one, many).bind(replace(SITE, rows=(1, 32)))
    packed = binding.pack_weight(torch.ones(3, 2))
    for rows in (1, 32, 33):
        binding.call(torch.ones(rows, 2), packed, None)
    assert many.bound_for == [(2, 32)]
    assert (one.rows, many.rows) == ([1], [32, 33])


def test_a_fused_site_is_bound_where_a_kernel_serves_all_its_rows(plugins):
    registry = registry_of(plugins, Linear("gemm", gemm))
    assert registry.bind_fused(SITE, ("rms_norm@1",)).kernel == "gemm"


@pytest.mark.parametrize("pins", [{}, {"linear@1": "reference"}, {"rms_norm@1": "reference"}])
def test_a_fused_site_is_left_as_its_parts(plugins, pins):
    """The reference alone would serve some rows; it is pinned; a part is pinned."""
    kernel = Linear("gemv", gemm if pins else gemv)
    registry = registry_of(plugins, kernel, pins=pins)
    assert registry.bind_fused(SITE, ("rms_norm@1",)) is None
    assert registry.bound == []


def test_a_fused_op_that_is_pinned_to_a_misfit_is_refused(plugins):
    registry = registry_of(plugins, Linear("gemv", gemv), pins={"linear@1": "gemv"})
    with pytest.raises(LookupError, match='pinned kernel "gemv" does not serve'):
        registry.bind_fused(SITE, ("rms_norm@1",))


def test_a_pin_to_the_reference_switches_a_fused_op_off_and_met_its_call(plugins):
    registry = registry_of(plugins, Linear("gemm", gemm), pins={"linear@1": "reference"})
    assert registry.bind_fused(SITE, ("rms_norm@1",)) is None
    registry.check_pins()


def test_a_fused_op_whose_kernel_cannot_be_bound_stays_in_parts(plugins):
    class Broken(Linear):
        def bind(self, site):
            raise RuntimeError("no room")

    registry = registry_of(plugins, Broken("gemm", gemm))
    assert registry.bind_fused(SITE, ("rms_norm@1",)) is None
    assert registry.bound == []


def test_both_sides_of_a_site_with_a_bound_are_sampled(plugins):
    """Beyond its rows something else is called: the parts of a fused layer."""
    registry = registry_of(plugins, Linear("gemm", gemm))
    registry.bind_fused(replace(SITE, rows=(1, 32)), ("rms_norm@1",))
    assert {1, 33} <= set(registry.row_samples())
