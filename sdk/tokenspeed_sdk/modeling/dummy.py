# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Random weights for measuring: the shapes of a model without its checkpoint."""

from __future__ import annotations

import torch

from tokenspeed_sdk.modeling.weights import WeightMap

SPREAD = 0.02
"""Standard deviation of matrices, about that of trained ones; it keeps activations finite."""

CODE_SPREAD = 32.0
"""The same of codes: 14 of it are the largest of e4m3, 4 the largest integer."""

MOST = 127
"""Integers end there."""


def load_dummy(weights: WeightMap, seed: int = 0) -> int:
    """Fill every parameter: vectors of norms and biases with ones, tables of integers with zeros,
    the rest with normal noise.

    The noise of codes is as fine as their range allows, and their scales bring it down to the
    spread of the others.

    Returns:
        Bytes filled.
    """
    generators: dict[torch.device, torch.Generator] = {}
    filled = 0
    for name, parameter in weights.parameters.items():
        device = parameter.device
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(seed)
        if name in weights.scales:
            noise = torch.empty_like(parameter, dtype=torch.bfloat16)
            noise.normal_(0.0, CODE_SPREAD, generator=generators[device])
            parameter.copy_(noise.clamp_(-MOST, MOST))
            weights.scales[name].fill_(SPREAD / CODE_SPREAD)
        elif parameter.dtype == torch.int64:
            parameter.zero_()
        elif parameter.dim() == 1:
            parameter.fill_(1.0)
        elif not any(parameter is scale for scale in weights.scales.values()):
            parameter.normal_(0.0, SPREAD, generator=generators[device])
        filled += parameter.nbytes
    return filled
