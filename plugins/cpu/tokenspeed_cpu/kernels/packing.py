# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Weights in panels, the one layout that linear and embedding read, and codes: where they lie."""

from __future__ import annotations

import math

import torch
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite
from tokenspeed_sdk.contracts.probe import Verdict
from tokenspeed_sdk.native.kernel import NativeKernel
from torch.utils.weak import WeakTensorKeyDictionary

from tokenspeed_cpu.kernels.arena import arena

FLOAT = torch.float32.itemsize

_packed = WeakTensorKeyDictionary()
# Panels of every plain weight that is still alive. A head that is tied to an embedding passes the
# same tensor through the kernels of both ops; the second gets the panels of the first.


class PanelKernel:
    """A kernel of the library whose packed weights lie in huge pages, one for all ops."""

    def __init__(self, kernel: NativeKernel) -> None:
        self.op = kernel.op
        self.name = kernel.name
        self._kernel = kernel

    def accept(self, site: CallSite) -> Verdict:
        return self._kernel.accept(site)

    def bind(self, site: CallSite) -> BoundKernel:
        return self._kernel.bind(site)

    def pack_weight(self, site: CallSite, weight: torch.Tensor) -> torch.Tensor:
        """[N, K] float32 -> [ceil(N / 16), K, 16]: panel, k, output; zeros behind output N.

        int8 -> [ceil(N / 16), ceil(K / 32), 512] uint8: panel, group; in it four k, output, k.
        """
        known: torch.Tensor | None = _packed.get(weight)  # type: ignore[no-untyped-call]
        if known is not None:
            return known
        shape, dtype = self._kernel.packed_layout(site, weight)
        count = math.prod(shape)
        floats = -(-count * dtype.itemsize // FLOAT)
        packed = arena().take(floats).view(dtype)[:count].view(shape)
        self._kernel.pack_into(site, weight, packed)
        _packed[weight] = packed
        return packed
