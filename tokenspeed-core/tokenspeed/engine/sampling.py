# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Sampling of a step: parameters by slot, and the ops that turn hidden rows into tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

    from tokenspeed.engine.buffers import StepArrays, StepBuffers
    from tokenspeed.engine.step_kernels import StepKernels
    from tokenspeed.messages import Sampling

FIELDS = {
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "min_p": np.float32,
    "seed": np.int64,
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
    """The two ops between a forward pass and the next tokens."""

    def __init__(self, kernels: StepKernels) -> None:
        self.gather_rows = kernels.gather_rows
        self._sample = kernels.sample

    def sample(self, logits: torch.Tensor, inputs: StepArrays, count: int) -> torch.Tensor:
        """[count, vocabulary] -> [count] int64; -1 where a row's logits are not numbers."""
        tokens: torch.Tensor = self._sample(
            logits,
            inputs.temperature[:count],
            inputs.top_k[:count],
            inputs.top_p[:count],
            inputs.min_p[:count],
            inputs.seed[:count],
            inputs.emit_position[:count],
        )
        return tokens
