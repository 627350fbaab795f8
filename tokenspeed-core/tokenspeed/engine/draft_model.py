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
from tokenspeed.engine.drafters import guesses_with_model

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tokenspeed_sdk.contracts.drafter import DraftModel, DraftModelBackend
    from tokenspeed_sdk.contracts.model import CacheGroup, Model
    from tokenspeed_sdk.modeling import BuildContext

    from tokenspeed.cache.slab import LayerCache, Slab
    from tokenspeed.config import EngineConfig
    from tokenspeed.engine.buffers import StepArrays
    from tokenspeed.engine.drafters import Backend


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
    def of(
        cls, backend: Backend | None, config: EngineConfig, target: Mapping[str, Any]
    ) -> DraftFolder | None:
        """The folder that a config names; None: its drafter has no model. Raises as ``read``."""
        if not guesses_with_model(backend) or config.drafter_model is None:
            return None
        return cls.read(backend, config.drafter_model, target, weights=config.load != "dummy")

    @classmethod
    def read(
        cls, backend: DraftModelBackend, folder: str, target: Mapping[str, Any], *, weights: bool
    ) -> DraftFolder:
        """OSError, ValueError, WeightError: the folder is none, or not for this ``target``'s
        config.json."""
        raw = read_object(Path(folder, "config.json"))
        try:
            config = backend.read_config(raw, target)
        except ValueError as error:
            raise ValueError(f"--drafter-model {folder}: {error}") from error
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

    def __init__(self, drafting: Drafting, page_table: torch.Tensor, each: torch.Tensor) -> None:
        """Args:
        page_table: the target's.
        each: int32, 0, 1, 2, ... on the device, beyond the rows of a step and their guesses.
        """
        self._model = drafting.model
        self._caches = tuple(
            CacheView(each.keys, each.values, page_table) for each in drafting.caches
        )
        self._each = each

    def observe(self, batch: ForwardBatch, taps: tuple[torch.Tensor, ...]) -> None:
        """A step's tokens went through the target."""
        self._model.observe(replace(batch, caches=self._caches), taps)

    def guess(
        self, inputs: StepArrays, host: StepArrays | None, most: Sequence[int], max_kv_len: int
    ) -> None:
        """Put guesses behind the first token of each row that has room for them.

        Args:
            inputs, host: the step's arrays on the device and on the host; None: it is captured.
            most: guesses of each such row, the most first; of dead rows, what they may have.
            max_kv_len: upper bound over all rows, with their guesses.
        """
        rows = len(most)
        counts, first = inputs.draft_count[:rows], inputs.draft_token[:rows]
        before = inputs.token_ids.index_select(0, first)
        batch = self._rows(inputs, host, before, max_kv_len)
        guesses = self._model.draft(batch, counts.clamp(min=1), most)[:, : most[0]]
        place = self._each[: most[0]]
        wanted = place < counts[:, None]
        # What is not wanted goes where the row's first token stands, and is that token.
        at = first[:, None] + torch.where(wanted, place + 1, 0)
        inputs.token_ids[at] = torch.where(wanted, guesses, before[:, None]).int()

    def _rows(
        self, inputs: StepArrays, host: StepArrays | None, tokens: torch.Tensor, max_kv_len: int
    ) -> ForwardBatch:
        """The rows that are guessed for, with their first tokens, int32 [rows], alone."""
        rows = len(tokens)
        slots, positions = inputs.draft_slot[:rows], inputs.draft_position[:rows]
        return ForwardBatch(
            token_ids=tokens.long(),
            positions=positions,
            token_slot=slots,
            row_slot=slots,
            query_start=self._each[: rows + 1],
            kv_len=positions + 1,
            num_decode_rows=rows,
            max_query_len=1,
            max_kv_len=max_kv_len,
            caches=self._caches,
            host_query_start=None if host is None else torch.arange(rows + 1, dtype=torch.int32),
            host_kv_len=None if host is None else host.draft_position[:rows] + 1,
        )
