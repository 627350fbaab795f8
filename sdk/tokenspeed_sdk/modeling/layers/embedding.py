# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Token ids to hidden states, and hidden states to logits."""

from __future__ import annotations

import torch

from tokenspeed_sdk.modeling.context import BuildContext
from tokenspeed_sdk.modeling.dtypes import torch_dtype
from tokenspeed_sdk.modeling.layer import Layer
from tokenspeed_sdk.modeling.placement import Replicate
from tokenspeed_sdk.modeling.weight_formats import WEIGHT_FORMATS
from tokenspeed_sdk.modeling.weights import WeightMap


class Embedding(Layer):
    """``token ids [tokens] int64 -> [tokens, hidden]``."""

    def __init__(self, context: BuildContext, name: str, *, vocab: int, hidden: int) -> None:
        super().__init__(name, (Replicate(),), (Replicate(),))
        binding = context.bind("embedding@1", name, vocab=vocab, hidden=hidden)
        self.weight = _table(context, vocab, hidden)
        self._embedding = binding.call
        self._pack = binding.pack_weight

    def run(self, token_ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._embedding(token_ids, self.weight)
        return out

    def map_weights(self, weights: WeightMap) -> None:
        weights.add(f"{self.name}.weight", self.weight)

    def pack_weights(self) -> None:
        self.weight = self._pack(self.weight)


class Head(Layer):
    """``hidden [rows, hidden] -> logits [rows, vocab] float32``.

    Tied to an embedding, it loads nothing and starts with the same storage. Its kernel packs that
    for itself: where packing returns the plain layout the two go on sharing it, else the head owns
    one packed copy (vocab * hidden elements) beside the embedding's table. Of codes, it makes them
    of what was loaded before it packs them.
    """

    def __init__(
        self,
        context: BuildContext,
        name: str,
        *,
        vocab: int,
        hidden: int,
        tied: Embedding | None = None,
    ) -> None:
        super().__init__(name, (Replicate(),), (Replicate(),))
        found = WEIGHT_FORMATS.get(context.quantization or "")
        self._format = found if found is not None and found.codes_head else None
        op = "linear@1" if self._format is None else self._format.linear_op
        binding = context.bind(op, name, n=vocab, k=hidden, bias=False)
        self.weight = _table(context, vocab, hidden) if tied is None else tied.weight
        self._tied_to = None if tied is None else tied.name
        self.scales: tuple[torch.Tensor, ...] = ()
        self._linear = binding.call
        self._pack = binding.pack_weight

    def run(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._linear(hidden, self.weight, *self.scales, None)
        return out.float()

    def map_weights(self, weights: WeightMap) -> None:
        if self._tied_to is None:
            weights.add(f"{self.name}.weight", self.weight)
        else:
            weights.tie(f"{self.name}.weight", f"{self._tied_to}.weight")

    def pack_weights(self) -> None:
        if self._format is not None:
            self.weight, scale = self._format.quantize(self.weight)
            self.scales = (scale,)
        self.weight = self._pack(self.weight)


def _table(context: BuildContext, vocab: int, hidden: int) -> torch.Tensor:
    dtype = torch_dtype(context.dtype)
    return torch.empty(vocab, hidden, dtype=dtype, device=context.torch_device)
