# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The device work of one step, from page-table deltas to sampled tokens. It only launches.

State that outlives a step stays on the device, by slot: page tables, epochs, last tokens. Slot 0 is
nobody's; the last slot is the sentinel of padded rows, whose page table is the null page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from tokenspeed_sdk.contracts.model import TappedModel
from tokenspeed_sdk.modeling.batch import CacheView, ForwardBatch

from tokenspeed.engine.adjustments import Adjustments
from tokenspeed.engine.buffers import DeviceInputs, Limits, StepArrays, StepBuffers, StepLayout
from tokenspeed.engine.draft_model import DraftStep
from tokenspeed.engine.prompt_logprobs import PromptWish, find_prompt_logprobs
from tokenspeed.engine.sampling import Sampler
from tokenspeed.engine.step_kernels import bind_step_kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed_sdk.contracts.model import Model
    from tokenspeed_sdk.contracts.platform import Device
    from tokenspeed_sdk.modeling.context import BuildContext

    from tokenspeed.cache.slab import LayerCache
    from tokenspeed.engine.draft_model import Drafting


@dataclass(frozen=True)
class StepShape:
    """Host-side facts that the launches of a step depend on; all else is read on the device.

    Attributes:
        rows, decode_rows, tokens, emits: counts; decode rows come first, emitting rows sample.
        verifies: whether some tokens of decode rows are guesses.
        flat: every token is a decode row of its own, as in captured steps that verify guesses: one
            graph serves any number of rows, with any number of guesses each.
        drafted: guesses of each row that a model guesses for, falling; while captured, the most.
        has_deltas: whether page tables may change.
        max_query_len, max_kv_len: upper bounds over all rows.
    """

    rows: int
    decode_rows: int
    tokens: int
    emits: int
    has_deltas: bool
    max_query_len: int
    max_kv_len: int
    verifies: bool = False
    flat: bool = False
    drafted: tuple[int, ...] = ()


class DeviceStep:
    """Inputs, resident state and model of one device; ``run`` is the same eager and captured.

    Attributes:
        adjustments: what tenants ask of their logits.
    """

    def __init__(
        self,
        model: Model,
        device: Device,
        context: BuildContext,
        caches: Sequence[LayerCache],
        limits: Limits,
        vocab_size: int,
        drafting: Drafting | None = None,
    ) -> None:
        slots = limits.sequences + 2
        self._each = torch.arange(limits.emits + 1, dtype=torch.int32, device=device.torch_device)
        self._model = model
        self._inputs = DeviceInputs(device, StepLayout(limits), limits)
        kernels = bind_step_kernels(context, vocab_size)
        self._update = kernels.update_page_tables
        self._gather_rows = kernels.gather_rows
        self._logprobs = kernels.logprobs
        self._last_token = device.allocate((slots,), "int64")
        self.adjustments = Adjustments(device, limits, vocab_size)
        self._sampled = device.allocate((limits.emits,), "int64")
        self._sampler = Sampler(kernels, self.adjustments, self._last_token, self._sampled)
        self._slot_epochs = [device.allocate((slots,), "int32") for _ in range(limits.groups)]
        self._page_tables = [
            device.allocate((slots, limits.max_pages), "int32") for _ in range(limits.groups)
        ]
        self._caches = tuple(
            CacheView(cache.keys, cache.values, table)
            for cache, table in zip(caches, self._page_tables, strict=True)
        )
        self._drafts: DraftStep | None = None
        if drafting is not None:
            self._drafts = DraftStep(drafting, self._page_tables[0], self._each)

    @property
    def drafts(self) -> bool:
        """Whether guesses are found within the step, by a model."""
        return self._drafts is not None

    @property
    def counts_guesses(self) -> bool:
        """Whether requests with penalties may be guessed for."""
        return self._sampler.counts_guesses

    def clear(self) -> None:
        """Queue that nothing is left of the inputs of a step: work that is captured runs once, on
        what is there, and may be of another shape."""
        self._inputs.clear()

    def upload(self, buffers: StepBuffers, *, decode: bool = False) -> None:
        """Queue the one copy to the device; ``decode``: the step has decode rows only."""
        self._inputs.upload(buffers, decode=decode)

    @torch.inference_mode()
    def run(
        self, shape: StepShape, host: StepArrays | None, wishes: Sequence[PromptWish] = ()
    ) -> None:
        """Queue everything between the two copies.

        Args:
            host: the step's arrays on the host, for kernels that plan with them; None while a
                graph is captured.
            wishes: what prefill rows tell of their prompts.
        """
        self._sample(shape, self._forward(shape, host, wishes), masks=0)

    @torch.inference_mode()
    def run_forward(
        self, shape: StepShape, host: StepArrays | None, wishes: Sequence[PromptWish] = ()
    ) -> torch.Tensor:
        """The part of ``run`` before logits: what it returns goes to ``run_sampling``."""
        return self._forward(shape, host, wishes)

    @torch.inference_mode()
    def run_sampling(
        self, shape: StepShape, hidden: torch.Tensor, buffers: StepBuffers, masks: int
    ) -> None:
        """The rest of ``run``, some of whose rows are masked.

        Args:
            hidden: [tokens, hidden size] at least.
            buffers: hold the step's masks.
            masks: how many.
        """
        self._inputs.upload_masks(buffers, masks)
        self._sample(shape, hidden[: shape.tokens], masks)

    def _forward(
        self, shape: StepShape, host: StepArrays | None, wishes: Sequence[PromptWish]
    ) -> torch.Tensor:
        inputs = self._inputs.arrays
        if shape.has_deltas:
            self._update_page_tables(inputs)
        if self._drafts is None:
            hidden = self._model.forward(self._batch(inputs, shape, host))
        else:
            hidden = self._forward_observed(self._drafts, inputs, shape, host)
        if wishes:
            find_prompt_logprobs(self._model, self._logprobs, hidden, wishes)
        return hidden

    def _forward_observed(
        self, drafts: DraftStep, inputs: StepArrays, shape: StepShape, host: StepArrays | None
    ) -> torch.Tensor:
        """The forward between the two parts of a drafter that has a model."""
        model = self._model
        assert isinstance(model, TappedModel)
        if shape.drafted:
            drafts.guess(inputs, host, shape.drafted, shape.max_kv_len)
        batch = self._batch(inputs, shape, host)
        hidden, taps = model.forward_tapped(batch)
        drafts.observe(batch, taps)
        return hidden

    def _sample(self, shape: StepShape, hidden: torch.Tensor, masks: int) -> None:
        if not shape.emits:
            return
        inputs, count = self._inputs.arrays, shape.emits
        if count != shape.tokens:
            hidden = self._gather_rows(hidden, inputs.emit_token[:count])
        of_rows = None
        if masks:
            mask, row = self._inputs.masks
            of_rows = mask[:masks], row[:masks]
        self._sampler.run(
            self._model.logits(hidden), inputs, count, of_rows, verifies=shape.verifies
        )

    def download(self, buffers: StepBuffers, *, logprobs: bool = False, guessed: int = 0) -> None:
        """Queue the copy of the sampled tokens to the host, and of what else is wanted.

        ``guessed``: of so many tokens, what the step has read: the host compares the guesses that
        were found on the device with what was drawn.
        """
        buffers.sampled.copy_(self._sampled, non_blocking=True)
        if guessed:
            read = self._inputs.arrays.token_ids[:guessed]
            buffers.arrays.token_ids[:guessed].copy_(read, non_blocking=True)
        if logprobs:
            buffers.logprobs.copy_(self.adjustments.logprobs, non_blocking=True)
        for host, resident in zip(buffers.page_tables, self._page_tables, strict=False):
            host.copy_(resident, non_blocking=True)

    def _update_page_tables(self, inputs: StepArrays) -> None:
        for group, (table, epochs) in enumerate(
            zip(self._page_tables, self._slot_epochs, strict=True)
        ):
            self._update(
                table,
                epochs,
                inputs.delta_slot[group],
                inputs.delta_epoch[group],
                inputs.delta_index[group],
                inputs.delta_page[group],
                inputs.delta_count[group : group + 1],
            )

    def _batch(self, inputs: StepArrays, shape: StepShape, host: StepArrays | None) -> ForwardBatch:
        if shape.flat:
            return self._flat_batch(inputs, shape, host)
        decode, tokens = shape.decode_rows, shape.tokens
        # A decode row's token was sampled in an earlier step and never left the device.
        token_ids = self._last_token.index_select(0, inputs.row_slot[:decode])
        token_slot = inputs.row_slot[:decode]
        if shape.verifies:  # rows of several tokens, all of which were uploaded, like prompts
            decode = 0
            token_ids, token_slot = inputs.token_ids[:tokens].long(), inputs.token_slot[:tokens]
        elif decode != tokens:
            token_ids = torch.cat((token_ids, inputs.token_ids[decode:tokens].long()))
            token_slot = inputs.token_slot[:tokens]
        return ForwardBatch(
            token_ids=token_ids,
            positions=inputs.positions[:tokens],
            token_slot=token_slot,
            row_slot=inputs.row_slot[: shape.rows],
            query_start=inputs.row_query_start[: shape.rows + 1],
            kv_len=inputs.row_kv_len[: shape.rows],
            num_decode_rows=decode,
            max_query_len=shape.max_query_len,
            max_kv_len=shape.max_kv_len,
            caches=self._caches,
            host_query_start=None if host is None else host.row_query_start[: shape.rows + 1],
            host_kv_len=None if host is None else host.row_kv_len[: shape.rows],
        )

    def _flat_batch(
        self, inputs: StepArrays, shape: StepShape, host: StepArrays | None
    ) -> ForwardBatch:
        """What a token attends to is in the cache by then: those of its row are written first."""
        tokens = shape.tokens
        positions, slots = inputs.positions[:tokens], inputs.token_slot[:tokens]
        return ForwardBatch(
            token_ids=inputs.token_ids[:tokens].long(),
            positions=positions,
            token_slot=slots,
            row_slot=slots,
            query_start=self._each[: tokens + 1],
            kv_len=positions + 1,
            num_decode_rows=tokens,
            max_query_len=1,
            max_kv_len=shape.max_kv_len,
            caches=self._caches,
            host_query_start=None if host is None else torch.arange(tokens + 1, dtype=torch.int32),
            host_kv_len=None if host is None else host.positions[:tokens] + 1,
            has_runs=True,
        )
