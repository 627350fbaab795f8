# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a drafter reads of a model's hidden states."""

from __future__ import annotations

import torch

from tokenspeed_sdk.modeling.layer import Layer
from tokenspeed_sdk.modeling.placement import Replicate


class Tap(Layer):
    """``x [tokens, hidden] -> a copy``: the stream itself is changed in place further on."""

    def __init__(self, name: str) -> None:
        super().__init__(name, (Replicate(),), (Replicate(),))

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()
