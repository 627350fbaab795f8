# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Attention kernels that plan a step on the host."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from tokenspeed_sdk.contracts.kernel import Binding, CallSite, HostStep
from tokenspeed_sdk.modeling import CacheView, ForwardBatch
from tokenspeed_sdk.modeling.layers import Attention
from tokenspeed_sdk.modeling.layers.attention import CachePlace
from tokenspeed_sdk.modeling.rows import split_rows
from tokenspeed_sdk.ops import ReferenceResolver
from tokenspeed_sdk.testing.model.runner import plain_context


@dataclass
class Planning:
    """The reference behind a plan, which it checks against what the call is given."""

    reference: Any
    plan_key: str
    steps: list[HostStep] = field(default_factory=list)

    def plan(self, step: HostStep, scale: float) -> int:
        self.steps.append(step)
        return int(step.kv_len.sum())

    def __call__(self, *args: Any, plan: int) -> torch.Tensor:
        assert plan == int(args[-2].sum())
        out: torch.Tensor = self.reference(*args)
        return out


class PlanningResolver(ReferenceResolver):
    """Plans attention; one kernel object per op, as sites of equal geometry have."""

    def __init__(self) -> None:
        self.kernels: dict[str, Planning] = {}

    def bind(self, site: CallSite) -> Binding:
        binding = super().bind(site)
        if not site.op.startswith("attention"):
            return binding
        kernel = self.kernels.setdefault(site.op, Planning(binding.call, site.op))
        return replace(binding, call=kernel)


def attention(resolver: ReferenceResolver, index: int) -> Attention:
    context = plain_context(kernels=resolver)
    shape = {"heads": 2, "kv_heads": 1, "head_dim": 4}
    return Attention(context, f"layer.{index}", **shape, cache=CachePlace(0, index))


def mixed_batch() -> ForwardBatch:
    """Slot 1 decodes its 6th token; slot 2 prefills 3 tokens."""
    ints = {"dtype": torch.int32}
    caches = tuple(torch.randn(4, 1, 4, 4) for _ in range(4))
    table = torch.tensor([[0, 0], [1, 2], [3, 0], [0, 0]], **ints)
    starts, kv_len = torch.tensor([0, 1, 4], **ints), torch.tensor([6, 3], **ints)
    return ForwardBatch(
        token_ids=torch.zeros(4, dtype=torch.int64),
        positions=torch.tensor([5, 0, 1, 2], **ints),
        token_slot=torch.tensor([1, 2, 2, 2], **ints),
        row_slot=torch.tensor([1, 2], **ints),
        query_start=starts,
        kv_len=kv_len,
        num_decode_rows=1,
        max_query_len=3,
        max_kv_len=6,
        caches=(CacheView(caches[:2], caches[2:], table),),
        host_query_start=starts,
        host_kv_len=kv_len,
    )


def test_one_plan_per_step_serves_all_layers() -> None:
    planned, batch = PlanningResolver(), mixed_batch()
    q, k, v = (torch.randn(4, heads, 4) for heads in (2, 1, 1))
    rows = split_rows(batch)
    for index in range(2):
        found = attention(planned, index).run(q, k, v, rows)
        wanted = attention(ReferenceResolver(), index).run(q, k, v, split_rows(batch))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    decode, prefill = (planned.kernels[f"attention_{kind}@1"] for kind in ("decode", "prefill"))
    assert [step.kv_len.tolist() for step in decode.steps] == [[6]]
    assert [step.kv_len.tolist() for step in prefill.steps] == [[3]]
    assert prefill.steps[0].query_start.tolist() == [0, 3]
    assert prefill.steps[0].row_slot.tolist() == [2]


def test_a_captured_step_cannot_be_planned() -> None:
    batch = replace(mixed_batch(), host_query_start=None, host_kv_len=None)
    q, k, v = (torch.randn(4, heads, 4) for heads in (2, 1, 1))
    with pytest.raises(RuntimeError, match="cannot be captured"):
        attention(PlanningResolver(), 0).run(q, k, v, split_rows(batch))
