# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Contract ``model``: a model family in one file.

An entry point in ``tokenspeed.model`` names a module; its attribute ``EntryClass`` is a ModelEntry
or a tuple of them. The manifest lists the architectures as claims, so that the engine finds the
module without importing the others. Most authors subclass ``tokenspeed_sdk.modeling.CausalLM``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from tokenspeed_sdk.modeling.batch import ForwardBatch
    from tokenspeed_sdk.modeling.context import BuildContext
    from tokenspeed_sdk.modeling.weights import WeightMap


@dataclass(frozen=True)
class CacheGroup:
    """Layers whose KV has one shape and one retention rule.

    KV of layer ``layers[i]`` lies in the slab as keys and values of
    [pages, kv_heads, page_size, head_dim] with the page stride of the group.
    """

    kind: str  # "full"
    layers: tuple[int, ...]
    kv_heads: int
    head_dim: int

    def bytes_per_token(self, itemsize: int) -> int:
        """Bytes of keys and values that one token needs over all layers of the group."""
        return 2 * len(self.layers) * self.kv_heads * self.head_dim * itemsize


class Model(Protocol):
    """A built model on a device."""

    def weight_map(self) -> WeightMap:
        """Which checkpoint tensor fills which part of which parameter."""

    def prepare(self) -> None:
        """Called once after loading: lets kernels pack their weights."""

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [tokens, hidden] of a batch; writes its KV."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] -> [rows, vocabulary], float32."""


@runtime_checkable
class TappedModel(Model, Protocol):
    """A model that shows what a drafter with a model reads of it; since 1.1.

    Which layers it shows, ``BuildContext.taps`` says when it is built. ``CausalLM`` is one.
    """

    def forward_tapped(self, batch: ForwardBatch) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """What ``forward`` returns, and for each tap what its layer read, [tokens, hidden] each.

        Layer i reads the sum of all that the layers before it have added to the stream; after the
        last layer, with i = number of layers, it is what the final norm reads. They are copies.
        """

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[tokens] int64 -> [tokens, hidden], as its first layer reads them."""


class ModelEntry(Protocol):
    """What an ``EntryClass``, usually a class, offers before anything is built."""

    @property
    def architectures(self) -> Sequence[str]:
        """Names in ``architectures`` of config.json that it serves."""

    def read_config(self, config: Mapping[str, Any], /) -> Any:
        """The family's own config from a parsed config.json. ValueError names field and value."""

    def cache_groups(self, config: Any, /) -> tuple[CacheGroup, ...]:
        """The layers that keep KV, by shape and retention rule."""

    def build(self, config: Any, context: BuildContext, /) -> Model:
        """Create the parameters on the context's device and bind every kernel."""
