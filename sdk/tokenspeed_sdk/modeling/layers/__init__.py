# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The layers that model files are written in."""

from tokenspeed_sdk.modeling.layers.activation import SiluAndMul
from tokenspeed_sdk.modeling.layers.attention import Attention, CachePlace, cache_place
from tokenspeed_sdk.modeling.layers.embedding import Embedding, Head
from tokenspeed_sdk.modeling.layers.heads import SplitHeads
from tokenspeed_sdk.modeling.layers.linear import ColumnLinear, Linear, RowLinear
from tokenspeed_sdk.modeling.layers.norm import AddRMSNorm, RMSNorm
from tokenspeed_sdk.modeling.layers.rope import Rope, rope_table
from tokenspeed_sdk.modeling.layers.tap import Tap

__all__ = [
    "AddRMSNorm",
    "Attention",
    "CachePlace",
    "ColumnLinear",
    "Embedding",
    "Head",
    "Linear",
    "RMSNorm",
    "Rope",
    "RowLinear",
    "SiluAndMul",
    "SplitHeads",
    "Tap",
    "cache_place",
    "rope_table",
]
