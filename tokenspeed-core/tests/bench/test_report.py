# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How a report writes its figures."""

from __future__ import annotations

import pytest
from tokenspeed.bench.report import per_second


@pytest.mark.parametrize(
    ("rate", "unit", "text"),
    [
        (2.2334e9, "B", "2.233 GB/s"),
        (9.994e11, "B", "999.4 GB/s"),
        (1e12, "B", "1 TB/s"),
        (4.1699e12, "B", "4.17 TB/s"),
        (5.5e7, "FLOP", "0.055 GFLOP/s"),
        (7.1e14, "FLOP", "710 TFLOP/s"),
    ],
)
def test_a_rate_has_the_prefix_of_its_size(rate: float, unit: str, text: str) -> None:
    assert per_second(rate, unit) == text
