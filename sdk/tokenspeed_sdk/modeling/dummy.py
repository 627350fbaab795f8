# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Random weights for measuring: the shapes of a model without its checkpoint."""

from __future__ import annotations

import torch

from tokenspeed_sdk.modeling.weights import WeightMap

SPREAD = 0.02
"""Standard deviation of matrices, about that of trained ones; it keeps activations finite."""


def load_dummy(weights: WeightMap, seed: int = 0) -> int:
    """Fill every parameter: vectors of norms and biases with ones, the rest with normal noise.

    Returns:
        Bytes filled.
    """
    generators: dict[torch.device, torch.Generator] = {}
    filled = 0
    for parameter in weights.parameters.values():
        device = parameter.device
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(seed)
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, SPREAD, generator=generators[device])
        filled += parameter.nbytes
    return filled
