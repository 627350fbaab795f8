# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The base class for authors of decoder-only language models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch

from tokenspeed_sdk.contracts.model import CacheGroup
from tokenspeed_sdk.modeling.batch import ForwardBatch
from tokenspeed_sdk.modeling.compiler import compile_graph
from tokenspeed_sdk.modeling.context import BuildContext
from tokenspeed_sdk.modeling.fusion import fuse
from tokenspeed_sdk.modeling.graph import Graph, Step
from tokenspeed_sdk.modeling.layer import Layer
from tokenspeed_sdk.modeling.layers.embedding import Embedding, Head
from tokenspeed_sdk.modeling.layers.tap import Tap
from tokenspeed_sdk.modeling.rows import split_rows
from tokenspeed_sdk.modeling.weights import WeightError, WeightMap

Config = TypeVar("Config")

INPUTS = ("token_ids", "positions", "rows")
"""Values that a graph starts with: [tokens] int64, [tokens] int32, and a ``Rows``."""

OUTPUT = "hidden"
"""The value that it ends with: normalised hidden states, [tokens, hidden]."""


class CausalLM(ABC, Generic[Config]):
    """A model built from a graph: a ModelEntry (class) and a TappedModel (instance).

    A subclass states ``architectures``, ``read_config``, ``cache_groups`` and ``define``; the
    weight map follows from the layers, whose names are those of the checkpoint.

    Attributes:
        config: what ``read_config`` returned.
        context: what the model was built for.
        program: the compiled graph.
    """

    architectures: ClassVar[Sequence[str]]
    """Names in ``architectures`` of config.json that this class serves."""

    ignored_weights: ClassVar[Sequence[str]] = ()
    """Regular expressions of checkpoint tensors that the model does not need."""

    @classmethod
    @abstractmethod
    def read_config(cls, config: Mapping[str, Any]) -> Config:
        """The family's own config from a parsed config.json. ValueError names field and value."""

    @classmethod
    @abstractmethod
    def cache_groups(cls, config: Config) -> tuple[CacheGroup, ...]:
        """The layers that keep KV, by shape and retention rule."""

    @abstractmethod
    def define(self, graph: Graph) -> Head:
        """Add every step to the graph, from INPUTS to OUTPUT; return what makes the logits."""

    @classmethod
    def build(cls, config: Config, context: BuildContext) -> Self:
        """Create the parameters, bind the kernels and compile the graph.

        Raises:
            GraphError: the graph is not well formed.
            LookupError: no kernel serves a call site.
            ValueError: a drafter wants to read what a layer reads that the family does not show.
        """
        return cls(config, context)

    def __init__(self, config: Config, context: BuildContext) -> None:
        self.config = config
        self.context = context
        graph = Graph(INPUTS, OUTPUT)
        self._head = self.define(graph)
        _name_taps(graph, context.taps, type(self).__name__)
        self.program = compile_graph(fuse(graph, context), context.mesh)
        self._run = self.program.run_tapped
        self._layers: list[Layer] = [*_layers(graph.steps), self._head]
        self._prepared = False

    def weight_map(self) -> WeightMap:
        """All parameters and where they come from. Only before ``prepare``; don't keep it.

        Raises:
            WeightError: a layer holds a parameter that its ``map_weights`` does not name.
        """
        if self._prepared:
            raise RuntimeError("the weights are packed; take the weight map before prepare()")
        weights = WeightMap(self.ignored_weights)
        for layer in self._layers:
            layer.map_weights(weights)
        _check_mapped(self._layers, weights)
        return weights

    def prepare(self) -> None:
        """Let the kernels pack their weights; once, after loading.

        A layer's plain weight is let go as soon as it is packed, so at most one weight is in memory
        twice.
        """
        if self._prepared:
            raise RuntimeError("prepare() packs the weights once; it was called before")
        self._prepared = True
        fused = [layer for layer in _layers(self.program.steps) if layer not in self._layers]
        for layer in [*fused, *self._layers]:  # fused ones want the plain weights of their parts
            layer.pack_weights()

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [tokens, hidden] of a batch; writes its KV."""
        return self.forward_tapped(batch)[0]

    def forward_tapped(self, batch: ForwardBatch) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """``forward``, and what the layers of ``context.taps`` read, [tokens, hidden] each."""
        found: tuple[torch.Tensor, tuple[torch.Tensor, ...]] = self._run(
            batch.token_ids, batch.positions, split_rows(batch)
        )
        return found

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[tokens] int64 -> [tokens, hidden], as its first layer reads them."""
        embedding = next(layer for layer in self._layers if isinstance(layer, Embedding))
        return embedding.run(token_ids)

    def tap(self, graph: Graph, layer: int, stream: str) -> None:
        """For ``define``: the value ``stream`` holds what ``layer`` reads, where a drafter wants
        it; at the number of layers, what the final norm reads. Between layers that one kernel may
        do together it keeps them apart."""
        if layer in self.context.taps:
            graph.add(Tap(_tap(layer)), reads=(stream,), writes=(_tap(layer),))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] -> [rows, vocabulary], float32."""
        return self._head.run(hidden)


def _tap(layer: int) -> str:
    return f"tap.{layer}"


def _name_taps(graph: Graph, wanted: Sequence[int], model: str) -> None:
    """Take the taps at the end. ValueError: one that no step writes."""
    there = {name for step in graph.steps for name in step.writes}
    missing = [layer for layer in wanted if _tap(layer) not in there]
    if missing:
        listed = ", ".join(map(str, missing))
        raise ValueError(
            f"the drafter reads what the layers {listed} of the model read, and {model} does not "
            f"show it; take a drafter that was made for this model"
        )
    graph.taps = tuple(_tap(layer) for layer in wanted)


def _layers(steps: Iterable[Step]) -> list[Layer]:
    """The layers of some steps, each once."""
    return list(dict.fromkeys(step.layer for step in steps))


def _check_mapped(layers: Sequence[Layer], weights: WeightMap) -> None:
    mapped = {id(parameter) for parameter in weights.parameters.values()}
    for layer in layers:
        for name, value in vars(layer).items():
            is_parameter = isinstance(value, torch.Tensor) and not name.startswith("_")
            if is_parameter and id(value) not in mapped:
                raise WeightError(
                    f"layer {layer.name!r} holds a parameter {name!r} that no checkpoint tensor "
                    f"fills; add it in map_weights, or call it _{name} if it is a constant"
                )
