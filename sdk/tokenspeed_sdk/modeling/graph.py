# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A model as a graph of named values."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenspeed_sdk.modeling.layer import Layer
from tokenspeed_sdk.modeling.placement import Placement, Replicate


@dataclass(frozen=True)
class Step:
    """One layer, the values that it reads and the values that it writes."""

    layer: Layer
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass
class Graph:
    """Steps in the order in which they run. A name may be written again: readers get the latest.

    Attributes:
        inputs: values that are given at the start, replicated.
        output: value that is taken at the end.
        output_placement: how it is wanted.
        taps: further values that are taken at the end, each written once.
    """

    inputs: tuple[str, ...]
    output: str
    output_placement: Placement = field(default_factory=Replicate)
    steps: list[Step] = field(default_factory=list)
    taps: tuple[str, ...] = ()

    def add(self, layer: Layer, reads: tuple[str, ...], writes: tuple[str, ...]) -> None:
        """Append a step."""
        self.steps.append(Step(layer, reads, writes))
