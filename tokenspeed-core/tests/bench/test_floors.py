# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Floors against sums worked out by hand, and against Qwen3-8B's on an H200."""

from __future__ import annotations

import pytest
from tokenspeed.bench.floors import Floors, Rates, Sizes, Turns

SMALL = Floors(
    Sizes(layer_weights=100, head_weights=10, pair_flops=4),
    Rates({2: 1.0, 8: 2.0}, read_bytes_s=50, matrix_flops_s=1000, attention_flops_s={1: 10, 9: 40}),
    kv_bytes_per_token=5,
)


def test_decode_reads_weights_and_kv() -> None:
    assert SMALL.decode(2, context=30) == pytest.approx(1 + 2 * 30 * 5 / 50)


def test_prefill_multiplies_and_attends_at_the_nearest_rate() -> None:
    products = 2 * (3 * 100 + 10) / 1000
    assert SMALL.prefill(3) == pytest.approx(products + 6 * 4 / 10)  # 3 tokens: 6 pairs


def test_turns_prefill_what_is_new_and_decode_the_rest() -> None:
    work = Turns(users=2, history=7, turns=2, added=3, output=4)
    products = 2 * (6 * 100 + 2 * 10) / 1000
    pairs = [2 * (8 + 9 + 10), 2 * (15 + 16 + 17)]  # the second turn begins after 14 tokens
    attention = [each * 4 / 40 for each in pairs]
    decode = [3 * (1 + 2 * middle * 5 / 50) for middle in (7 + 3 + 2, 14 + 3 + 2)]
    assert SMALL.agentic(work) == pytest.approx(2 * products + sum(attention) + sum(decode))
    assert work.longest == 7 + 2 * 7


def test_of_a_model_of_eight_billion() -> None:
    """With the rates that NOTES.md counts with: 4.1 to 9.9 ms, 38, 171 and 990 ms, about 10 s."""
    layer = 36 * (6144 + 4096 + 24576 + 12288) * 4096
    sizes = Sizes(layer_weights=layer, head_weights=151936 * 4096, pair_flops=36 * 4 * 32 * 128)
    linears = {1: 4.08e-3, 8: 4.20e-3, 32: 4.26e-3, 128: 4.72e-3}
    floors = Floors(sizes, Rates(linears, 4.17e12, 780e12, {8192: 780e12}), 147_456)
    steps = [floors.decode(batch, 1152) * 1e3 for batch in linears]
    assert steps == pytest.approx([4.12, 4.53, 5.56, 9.93], abs=0.01)
    prompts = [floors.prefill(tokens) * 1e3 for tokens in (2048, 8192, 32768)]
    assert prompts == pytest.approx([38, 171, 990], rel=0.01)
    assert floors.agentic(Turns(8, 24 * 1024, 6, 512, 128)) == pytest.approx(9.9, abs=0.1)
