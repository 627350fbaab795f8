# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Sampling of a step: parameters by slot, and the ops that turn logits into tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tokenspeed.engine.acceptance import find_accepted

if TYPE_CHECKING:
    from tokenspeed.engine.adjustments import Adjustments
    from tokenspeed.engine.buffers import StepArrays, StepBuffers
    from tokenspeed.engine.step_kernels import StepKernels
    from tokenspeed.messages import Sampling

FIELDS = {
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "min_p": np.float32,
    "seed": np.int64,
    "wanted": np.int32,
}


class SamplingTable:
    """Parameters of each slot's tenant, on the host."""

    def __init__(self, slots: int) -> None:
        self._columns = {name: np.zeros(slots, dtype) for name, dtype in FIELDS.items()}
        self._tenants = 0

    def install(self, slot: int, sampling: Sampling) -> None:
        """A new tenant moved into ``slot``. The 64 bits of the seed are kept as int64."""
        self._tenants += 1
        columns = self._columns
        columns["temperature"][slot] = sampling.temperature
        columns["top_k"][slot] = sampling.top_k
        columns["top_p"][slot] = sampling.top_p
        columns["min_p"][slot] = sampling.min_p
        columns["seed"][slot] = np.uint64(sampling.seed).view(np.int64)
        columns["wanted"][slot] = sampling.logprobs + 1

    def gather(self, buffers: StepBuffers, count: int) -> None:
        """Write the parameters of a step's ``count`` emitting rows into its arrays.

        The buffers remember whose they hold: most steps have the rows of those before.
        """
        slots = buffers.host["emit_slot"][:count]
        whose = (self._tenants, slots.tobytes())
        if buffers.sampling_of == whose:
            return
        buffers.sampling_of = whose
        for name, column in self._columns.items():
            np.take(column, slots, out=buffers.host[name][:count])


class Sampler:
    """The ops between a forward pass and the next tokens."""

    def __init__(
        self,
        kernels: StepKernels,
        adjustments: Adjustments,
        last_token: torch.Tensor,
        sampled: torch.Tensor,
    ) -> None:
        """Drawn tokens go to ``sampled``, int64 [emits], and ``last_token``, int64 [slots]."""
        self._adjustments = adjustments
        self._last_token = last_token
        self._sampled = sampled
        self._places = torch.arange(len(sampled), device=sampled.device)
        self._adjust = kernels.adjust_logits
        self._adjust_verify = kernels.adjust_logits_verify
        self._sample = kernels.sample
        self._record = kernels.record_tokens
        self._mask = kernels.mask_logits
        self._logprobs = kernels.logprobs

    @property
    def counts_guesses(self) -> bool:
        """Whether a token is penalised for the guesses in front of it, too."""
        return self._adjust_verify is not None

    def run(
        self,
        logits: torch.Tensor,
        inputs: StepArrays,
        count: int,
        masks: tuple[torch.Tensor, torch.Tensor] | None = None,
        *,
        verifies: bool,
    ) -> None:
        """Draw a token for each of ``count`` rows of logits, which change; -1 where a row's logits
        are not numbers.

        Args:
            masks: of grammars, and the rows that they belong to.
            verifies: whether some are drawn behind guesses.
        """
        slot, position = inputs.emit_slot[:count], inputs.emit_position[:count]
        asked = self._adjustments
        guess = None
        if verifies:
            guess = inputs.token_ids.index_select(0, inputs.emit_token[:count])
        self._adjust_rows(logits, slot, position, guess)
        if masks is not None:
            self._mask(logits, *masks)
        token = self._draw(logits, inputs, count)
        self._sampled[:count] = token
        last = slot
        if guess is not None:
            last, before = find_accepted(slot, guess, token)
            asked.count(slot, token, before)
        self._record(self._last_token, asked.counts, asked.penalties, last, token)
        wanted, found = inputs.wanted[:count, None], (each[:count] for each in asked.found)
        self._logprobs(asked.kept[:count], token, self._places[:count], wanted, *found)

    def _adjust_rows(
        self,
        logits: torch.Tensor,
        slot: torch.Tensor,
        position: torch.Tensor,
        guess: torch.Tensor | None,
    ) -> None:
        """``guess``: what each row stands behind, where some are guesses."""
        asked = self._adjustments
        rows = logits, asked.kept[: len(logits)], slot, position
        if guess is None or self._adjust_verify is None:
            self._adjust(*rows, *asked.settings)
        else:
            self._adjust_verify(*rows, guess, *asked.settings)

    def _draw(self, logits: torch.Tensor, inputs: StepArrays, count: int) -> torch.Tensor:
        """[count, vocabulary] -> [count] int64."""
        token: torch.Tensor = self._sample(
            logits,
            inputs.temperature[:count],
            inputs.top_k[:count],
            inputs.top_p[:count],
            inputs.min_p[:count],
            inputs.seed[:count],
            inputs.emit_position[:count],
        )
        return token
