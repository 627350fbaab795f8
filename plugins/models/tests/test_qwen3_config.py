# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What Qwen3 reads otherwise than Llama."""

from __future__ import annotations

import pytest
from tokenspeed_models.qwen3 import EntryClass

from .oracles import BASE


def test_head_dim_is_its_own() -> None:
    assert EntryClass.read_config(BASE).head_dim == 128
    assert EntryClass.read_config(BASE | {"head_dim": 64}).head_dim == 64


def test_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="use_sliding_window true is not supported"):
        EntryClass.read_config(BASE | {"use_sliding_window": True})
