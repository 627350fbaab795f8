# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The base of all layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from tokenspeed_sdk.modeling.placement import Placement

if TYPE_CHECKING:
    from tokenspeed_sdk.modeling.weights import WeightMap


class Layer(ABC):
    """One operation of a model, with its parameters and the kernels it bound.

    A tensor in a public attribute is a parameter, and ``map_weights`` must name it; tables and
    other constants go into attributes with a leading underscore.

    Attributes:
        name: where in the model, such as "model.layers.0.self_attn.qkv_proj".
        takes: placement of every value that ``run`` reads, in order.
        gives: placement of every value that it returns, in order.
    """

    def __init__(
        self, name: str, takes: tuple[Placement, ...], gives: tuple[Placement, ...]
    ) -> None:
        self.name = name
        self.takes = takes
        self.gives = gives

    @abstractmethod
    def run(self, *values: Any, **_: Any) -> Any:
        """The values read, in order -> the value given, or a tuple of them when there are several.

        A value may be changed in place only if it is also given back.
        """

    def map_weights(self, weights: WeightMap) -> None:
        """Add the parameters of this layer to the map; the default has none."""
        del weights

    def pack_weights(self) -> None:  # noqa: B027 - most layers have nothing to pack
        """Let the kernels lay their weights out; called once, after loading."""
