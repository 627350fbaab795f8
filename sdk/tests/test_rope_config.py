# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Reading rope from a config, in both spellings, and the table made of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tokenspeed_sdk.modeling.rope import Llama3Scaling, RopeConfig, cos_sin_table, read_rope

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SCALING = Llama3Scaling(8.0, 1.0, 4.0, 64)


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, RopeConfig(8, 10000.0)),
        ({"rope_theta": 5e5, "rope_scaling": None}, RopeConfig(8, 5e5)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, RopeConfig(8, 5e5)),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            RopeConfig(8, 5e5, SCALING),
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
            RopeConfig(8, 5e5, SCALING),
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
            RopeConfig(8, 5e5, SCALING),
        ),
    ],
)
def test_read(config: dict[str, Any], wanted: RopeConfig) -> None:
    assert read_rope(config, 8) == wanted


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            r"rope_scaling: rope_type 'linear' is not supported; .* 'default' and 'llama3'",
        ),
        ({"rope_parameters": {"rope_type": "yarn"}}, r"rope_parameters: rope_type 'yarn'"),
        ({"rope_scaling": 3}, "rope_scaling must be an object; got 3"),
        ({"rope_theta": -1}, "rope_theta must be a positive number; got -1"),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "factor": None}},
            r"rope_scaling: factor is missing; state a positive number",
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}},
            "low_freq_factor must be below high_freq_factor",
        ),
    ],
)
def test_errors(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_rope(config, 8)


def test_odd_rotary() -> None:
    with pytest.raises(ValueError, match="must be even; got 7"):
        read_rope({}, 7)


def test_table() -> None:
    table = cos_sin_table(RopeConfig(8, 100.0), 12, "cpu")
    assert table.shape == (12, 8)
    assert table.dtype == torch.float32
    for position in (0, 1, 11):
        for i in range(4):
            angle = position * 100.0 ** (-2 * i / 8)
            assert table[position, i].item() == pytest.approx(math.cos(angle), abs=1e-5)
            assert table[position, 4 + i].item() == pytest.approx(math.sin(angle), abs=1e-5)


def test_llama3_keeps_short_waves_and_slows_long_ones() -> None:
    turns = torch.tensor([8.0, 4.0, 2.5, 1.0, 0.5])
    frequencies = turns * 2 * math.pi / 64
    factors = SCALING.apply(frequencies) / frequencies
    torch.testing.assert_close(factors, torch.tensor([1.0, 1.0, 0.5 + 0.5 / 8, 1 / 8, 1 / 8]))
