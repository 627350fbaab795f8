# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Matrix products, with the weights of several checkpoint tensors fused where inputs are shared."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tokenspeed_sdk.contracts.kernel import Trait
from tokenspeed_sdk.modeling.context import BuildContext
from tokenspeed_sdk.modeling.dtypes import torch_dtype
from tokenspeed_sdk.modeling.layer import Layer
from tokenspeed_sdk.modeling.placement import Partial, Placement, Replicate, Shard
from tokenspeed_sdk.modeling.weight_formats import WEIGHT_FORMATS
from tokenspeed_sdk.modeling.weights import WeightMap


class Linear(Layer):
    """``x [tokens, k] -> x W^T + b [tokens, n]``, whole on every rank.

    With a quantization the weight is of codes, ``weight_scale`` holds their scales, and the op
    quantises ``x``.

    Args:
        name: name of the layer in the model.
        k: input features.
        n: output features. A mapping fuses several checkpoint modules that lie beside ``name``:
            the last part of their names -> their output features, in order. Layer
            "mlp.gate_up_proj" with {"gate_proj": i, "up_proj": i} is filled by "mlp.gate_proj"
            and "mlp.up_proj"; a plain number by "mlp.gate_up_proj".
        bias: whether there is one.
    """

    takes_placement: Placement = Replicate()
    gives_placement: Placement = Replicate()

    def __init__(
        self,
        context: BuildContext,
        name: str,
        *,
        k: int,
        n: int | Mapping[str, int],
        bias: bool = False,
    ) -> None:
        super().__init__(name, (self.takes_placement,), (self.gives_placement,))
        self._sources = {name: n} if isinstance(n, int) else _beside(name, n)
        n = sum(self._sources.values())
        self._format = WEIGHT_FORMATS.get(context.quantization or "")
        self.op = "linear@1" if self._format is None else self._format.linear_op
        self.traits: Mapping[str, Trait] = {"n": n, "k": k, "bias": bias}
        binding = context.bind(self.op, name, **self.traits)
        dtype, device = torch_dtype(context.dtype), context.torch_device
        self.weight_scale: torch.Tensor | None = None
        if self._format is None:
            self.weight = torch.empty(n, k, dtype=dtype, device=device)
        else:
            self.weight, self.weight_scale = self._format.empty(n, k, device)
        self.bias = torch.empty(n, dtype=dtype, device=device) if bias else None
        self._linear = binding.call
        self._pack = binding.pack_weight

    @property
    def weights(self) -> tuple[torch.Tensor, ...]:
        """What its op takes between the input and the bias; the first is what kernels pack."""
        return (self.weight,) if self.weight_scale is None else (self.weight, self.weight_scale)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._linear(x, *self.weights, self.bias)
        return out

    def map_weights(self, weights: WeightMap) -> None:
        name, sources = self._filled_by("weight")
        if self._format is None or self.weight_scale is None:
            weights.add(name, self.weight, sources)
        else:
            weights.add_coded(name, self.weight, self.weight_scale, self._format, sources)
        if self.bias is not None:
            name, sources = self._filled_by("bias")
            weights.add(name, self.bias, sources)

    def pack_weights(self) -> None:
        self.weight = self._pack(self.weight)

    def _filled_by(self, kind: str) -> tuple[str, dict[str, int]]:
        """Name of a parameter, and the checkpoint tensors that fill it."""
        sources = {f"{module}.{kind}": rows for module, rows in self._sources.items()}
        return f"{self.name}.{kind}", sources


def _beside(name: str, parts: Mapping[str, int]) -> dict[str, int]:
    """Full checkpoint module names of the parts of a fused weight."""
    parent = name.rpartition(".")[0]
    return {f"{parent}.{part}".lstrip("."): rows for part, rows in parts.items()}


class ColumnLinear(Linear):
    """A linear whose output features are spread over the ranks."""

    gives_placement = Shard(1)


class RowLinear(Linear):
    """A linear whose input features are spread over the ranks; their outputs add up."""

    takes_placement = Shard(1)
    gives_placement = Partial()
