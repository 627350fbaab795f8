# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A drafter with a model of its own: its folder, and what it does within a step.

In front of the target's forward it guesses, into the tokens that the forward reads; behind it, it
keeps what it will need of all tokens, in the target's pages.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenspeed_sdk.contracts.model import TappedModel
from tokenspeed_sdk.model_files import read_object
from tokenspeed_sdk.modeling import INT8, CacheView, ForwardBatch, load_dummy, load_weights
from tokenspeed_sdk.modeling.checkpoint import Checkpoint

from tokenspeed.cache.slab import Beside

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tokenspeed_sdk.contracts.drafter import DraftModel, DraftModelBackend
    from tokenspeed_sdk.contracts.model import CacheGroup, Model
    from tokenspeed_sdk.modeling import BuildContext

    from tokenspeed.cache.slab import LayerCache, Slab
    from tokenspeed.engine.buffers import StepArrays


@dataclass(frozen=True)
class DraftFolder:
    """What a drafter's folder says, before anything is built.

    Attributes:
        config: the drafter's own.
        tensors: names in its checkpoint.
        weights: False: they are made up.
    """

    backend: DraftModelBackend
    folder: str
    config: Any
    tensors: Collection[str]
    weights: bool

    @classmethod
    def read(
        cls, backend: DraftModelBackend, folder: str, target: Mapping[str, Any], *, weights: bool
    ) -> DraftFolder:
        """ValueError, WeightError: the folder is none, or not for this ``target``'s config.json."""
        path = Path(folder, "config.json")
        if not path.is_file():
            raise ValueError(
                f"{path} is missing: --drafter-model is a folder with config.json and weights"
            )
        config = backend.read_config(read_object(path), target)
        with Checkpoint(folder) if weights else nullcontext() as checkpoint:
            tensors = () if checkpoint is None else frozenset(checkpoint.entries)
        return cls(backend, folder, config, tensors, weights)

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers of the target that it reads."""
        return self.backend.taps(self.config)

    def beside(self, dtype: str) -> Beside:
        """What it keeps in the target's pages."""
        return Beside(self.backend.cache_groups(self.config), dtype)

    def build(self, context: BuildContext, target: Model) -> DraftModel:
        """The model, without weights. ``context`` is the target's."""
        if not isinstance(target, TappedModel):
            raise ValueError(
                f"--drafter {self.backend.name} reads hidden states of the model, and "
                f"{type(target).__name__} does not show them; leave it out, or take one without "
                f"a model"
            )
        own = replace(
            context,
            role="drafter",
            quantization=context.quantization if context.quantization == INT8 else None,
            kv_dtype=None,
            row_tokens=1,
            taps=(),
        )
        return self.backend.build(self.config, own, target, self.tensors)

    def load(self, model: DraftModel) -> int:
        """Fill the parameters and let the kernels pack them; the bytes that they take."""
        weights = model.weight_map()
        if self.weights:
            load_weights(weights, self.folder)
        else:
            load_dummy(weights)
        taken = sum(parameter.nbytes for parameter in weights.parameters.values())
        del weights
        model.prepare()
        return taken


@dataclass(frozen=True)
class Drafting:
    """A drafter's model with its weights, and what its groups see of the slab."""

    model: DraftModel
    caches: Sequence[LayerCache]

    @classmethod
    def of(cls, model: DraftModel | None, slab: Slab, group: CacheGroup) -> Drafting | None:
        """Beside the target's ``group``; None: there is no such drafter."""
        return None if model is None else cls(model, slab.beside(group))


class DraftStep:
    """Its part of every step."""

    def __init__(
        self, model: DraftModel, caches: Sequence[LayerCache], page_table: torch.Tensor
    ) -> None:
        """``caches``: of its groups, addressed by the target's ``page_table``."""
        self._model = model
        self._caches = tuple(CacheView(each.keys, each.values, page_table) for each in caches)

    def observe(self, batch: ForwardBatch, taps: tuple[torch.Tensor, ...]) -> None:
        """A step's tokens went through the target."""
        self._model.observe(replace(batch, caches=self._caches), taps)

    def guess(self, inputs: StepArrays, host: StepArrays, decode_rows: int) -> None:
        """Put guesses behind the first token of each decode row that has room for them, on the
        device and on the host, which will compare them with what was drawn.

        Args:
            inputs, host: the step's arrays on the device and on the host.
        """
        start = host.row_query_start[: decode_rows + 1].long()
        room = start.diff() - 1
        rows = room.nonzero().flatten()
        counts = room[rows].tolist()
        guesses = self._model.draft(self._rows(inputs, host, rows, start[rows]), counts)
        places = [int(first) + 1 for first in start[rows]]
        for row, (place, count) in enumerate(zip(places, counts, strict=True)):
            inputs.token_ids[place : place + count] = guesses[row, :count]
        end = int(start[-1])
        host.token_ids[:end].copy_(inputs.token_ids[:end], non_blocking=True)

    def _rows(
        self, inputs: StepArrays, host: StepArrays, rows: torch.Tensor, first: torch.Tensor
    ) -> ForwardBatch:
        """Some rows of the step with their first token alone; [n] int64 on the host both."""
        device, count = inputs.token_ids.device, len(rows)
        at, which = (each.to(device, non_blocking=True) for each in (first, rows))
        positions = inputs.positions.index_select(0, at)
        slots = inputs.row_slot.index_select(0, which)
        starts = torch.arange(count + 1, dtype=torch.int32)
        lengths = host.positions[first] + 1
        return ForwardBatch(
            token_ids=inputs.token_ids.index_select(0, at).long(),
            positions=positions,
            token_slot=slots,
            row_slot=slots,
            query_start=starts.to(device, non_blocking=True),
            kv_len=positions + 1,
            num_decode_rows=count,
            max_query_len=1,
            max_kv_len=int(lengths.max()),
            caches=self._caches,
            host_query_start=starts,
            host_kv_len=lengths,
        )
