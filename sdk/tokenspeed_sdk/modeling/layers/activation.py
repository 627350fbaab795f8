# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Activations between the two halves of an MLP."""

from __future__ import annotations

import torch

from tokenspeed_sdk.modeling.context import BuildContext
from tokenspeed_sdk.modeling.layer import Layer
from tokenspeed_sdk.modeling.placement import Shard


class SiluAndMul(Layer):
    """``gate and up [tokens, 2 * inter] -> silu(gate) * up [tokens, inter]``."""

    def __init__(self, context: BuildContext, name: str, *, inter: int) -> None:
        super().__init__(name, (Shard(1),), (Shard(1),))
        self._call = context.bind("silu_and_mul@1", name, inter=inter).call

    def run(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._call(x)
        return out
