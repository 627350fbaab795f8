# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Rotary position embedding of queries and keys."""

from __future__ import annotations

import torch

from tokenspeed_sdk.modeling.context import BuildContext
from tokenspeed_sdk.modeling.layer import Layer
from tokenspeed_sdk.modeling.placement import Replicate, Shard
from tokenspeed_sdk.modeling.rope import RopeConfig, cos_sin_table


def rope_table(context: BuildContext, rope: RopeConfig) -> torch.Tensor:
    """The table that the rope layers of a model share: [max_model_len, rotary] float32."""
    return cos_sin_table(rope, context.max_model_len, context.torch_device)


class Rope(Layer):
    """``q [tokens, heads, head_dim], k, positions [tokens] -> q, k`` rotated in place."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        *,
        rope: RopeConfig,
        table: torch.Tensor,
        head_dim: int,
    ) -> None:
        super().__init__(name, (Shard(1), Shard(1), Replicate()), (Shard(1), Shard(1)))
        self.rotary = rope.rotary
        self.interleaved = rope.interleaved
        self._table = table
        self._rope = context.bind(
            "rope@1", name, head_dim=head_dim, rotary=rope.rotary, interleaved=rope.interleaved
        ).call

    @property
    def table(self) -> torch.Tensor:
        """As ``rope_table`` makes it."""
        return self._table

    def run(
        self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._rope(q, k, positions, self._table)
        return q, k
