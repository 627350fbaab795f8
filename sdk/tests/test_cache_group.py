# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a cache group costs."""

from __future__ import annotations

from tokenspeed_sdk.contracts.model import CacheGroup


def test_a_token_costs_its_keys_and_values_in_every_layer() -> None:
    """SmolLM2-135M: 30 layers of 3 heads of 64 numbers, keys and values, 4 bytes each."""
    group = CacheGroup("full", tuple(range(30)), kv_heads=3, head_dim=64)
    assert group.bytes_per_token(itemsize=4) == 46080
    assert group.bytes_per_token(itemsize=2) == 23040
