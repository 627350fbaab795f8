# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""From one fused projection to the heads of query, key and value."""

from __future__ import annotations

import torch

from tokenspeed_sdk.modeling.layer import Layer
from tokenspeed_sdk.modeling.placement import Shard

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class SplitHeads(Layer):
    """``qkv [tokens, (heads + 2 kv_heads) * head_dim] -> q, k, v [tokens, heads, head_dim]``.

    The three are views of one tensor.
    """

    def __init__(self, name: str, *, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__(name, (Shard(1),), (Shard(1), Shard(1), Shard(1)))
        self._parts = (heads, kv_heads, kv_heads)
        self._shape = (-1, heads + 2 * kv_heads, head_dim)

    def run(self, qkv: torch.Tensor) -> Heads:
        q, k, v = qkv.view(self._shape).split_with_sizes(self._parts, 1)
        return q, k, v
