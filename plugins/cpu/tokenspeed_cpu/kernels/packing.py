# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Weights in panels: the one layout that linear and embedding read."""

from __future__ import annotations

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from tokenspeed_cpu.kernels.arena import arena
from tokenspeed_cpu.library import Function, check

PANEL = 16
"""Outputs that lie side by side in a panel; kPanel of the library."""

_packed = WeakTensorKeyDictionary()
# Panels of every plain weight that is still alive. A head that is tied to an embedding passes the
# same tensor through the kernels of both ops; the second gets the panels of the first.


def pack_panels(weight: torch.Tensor) -> torch.Tensor:
    """[N, K] float32 -> [ceil(N / 16), K, 16]: panel, k, output; zeros behind output N."""
    known: torch.Tensor | None = _packed.get(weight)  # type: ignore[no-untyped-call]
    if known is not None:
        return known
    n, k = weight.shape
    panels = -(-n // PANEL)
    plain = weight.detach()
    if plain.stride(1) != 1:
        plain = plain.contiguous()
    packed = arena().take(panels * k * PANEL).view(panels, k, PANEL)
    function = Function("pack", "@PPqqq")
    check(function.long(function.pack(plain.data_ptr(), packed.data_ptr(), plain.stride(0), n, k)))
    _packed[weight] = packed
    return packed
