# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Example arguments are what their op takes, in the rows that were asked for."""

from __future__ import annotations

import pytest
import torch
from tokenspeed_sdk.contracts.kernel import CallSite
from tokenspeed_sdk.ops import OPS, examples
from tokenspeed_sdk.testing.model.runner import plain_device

NUMBERS = {"n": 24, "k": 16, "heads": 4, "kv_heads": 2, "head_dim": 8, "page_size": 4}
TUNABLE = [op for op in OPS.values() if op.example is not None]


def site_of(op, **traits):
    stated = {name: traits.get(name, NUMBERS.get(name)) for name in op.traits}
    return CallSite(op.name, "layer", "float32", plain_device(), stated)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(examples, "CONTEXTS", (6, 40))
    monkeypatch.setattr(examples, "TABLE_TOKENS", 64)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("op", TUNABLE, ids=lambda op: op.name)
def test_the_reference_takes_an_example(op, rows):
    site = site_of(op)
    for args in op.example(site, rows, "cpu"):
        assert args[0].shape[0] == rows
        returned = op.bind_reference(site)(*args)
        op.check_result(site, args, returned)
        assert torch.isfinite(returned.float()).all()


def test_linear_and_attention_offer_examples():
    assert {"linear@1", "attention_decode@1", "attention_prefill@1"} <= {op.name for op in TUNABLE}


def test_a_bias_is_there_where_the_site_has_one():
    (args,) = OPS["linear@1"].example(site_of(OPS["linear@1"], bias=True), 2, "cpu")
    assert args[2].shape == (24,)


def test_contexts_shrink_to_the_memory_that_an_example_may_take(monkeypatch):
    op = OPS["attention_decode@1"]
    token = 2 * 2 * 8 * 4
    monkeypatch.setattr(examples, "KV_BYTES", token * 5 * 10)
    short, long = op.example(site_of(op), 5, "cpu")
    assert short[5].tolist() == [6] * 5
    assert long[5].tolist() == [10] * 5
    assert short[1] is long[1]  # one cache for both


def test_no_two_tokens_of_an_example_share_a_page():
    _, k_cache, _, table, slots, *_ = OPS["attention_decode@1"].example(
        site_of(OPS["attention_decode@1"]), 3, "cpu"
    )[1]
    used = table[slots.long(), :10].flatten().tolist()
    assert sorted(used) == list(range(1, 31))
    assert k_cache.shape[0] == 31
