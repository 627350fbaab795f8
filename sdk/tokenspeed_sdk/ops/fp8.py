# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Numbers of eight bits: e4m3 codes, and the scales that they are multiplied with.

e4m3 has four bits of exponent and three of mantissa, no infinity, and 448 as its largest value:
Micikevicius et al., 2022, arXiv:2209.05433. Weights have a scale for each block of 128 x 128
elements, activations one for each token and 128 features: DeepSeek-AI, 2024, arXiv:2412.19437.
Scales are float32, and codes are found in float32 whatever the dtype of the values is.
"""

from __future__ import annotations

import torch

DTYPE = torch.float8_e4m3fn
LARGEST = 448.0
"""Largest value of a code."""

BLOCK = 128
"""Rows and columns of a block of a weight, and features of a group of an activation."""


def encode(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The nearest codes of ``values / scale``; what is too large becomes the largest one."""
    scaled = values.float() / scale
    return scaled.clamp(-LARGEST, LARGEST).to(DTYPE)


def scale_of(largest: torch.Tensor) -> torch.Tensor:
    """The scale by which the largest magnitude of some values becomes the largest code; 1 for 0."""
    return torch.where(largest > 0, largest.float() / LARGEST, 1.0)


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [T, K] and scales [T, ceil(K / 128)] of activations [T, K]."""
    rows, k = x.shape
    groups = _padded(x.float(), rows, _up(k)).view(rows, _blocks(k), BLOCK)
    scale = scale_of(groups.abs().amax(-1))
    codes = encode(groups, scale[..., None]).view(rows, _up(k))
    return codes[:, :k], scale


def quantize_weight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [N, K] and scales [ceil(N / 128), ceil(K / 128)] of a weight [N, K]."""
    n, k = weight.shape
    tiles = _padded(weight.float(), _up(n), _up(k)).view(_blocks(n), BLOCK, _blocks(k), BLOCK)
    scale = scale_of(tiles.abs().amax((1, 3)))
    codes = encode(tiles, scale[:, None, :, None]).view(_up(n), _up(k))
    return codes[:n, :k].contiguous(), scale


def dequantize_weight(
    codes: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The weight [N, K] that codes and scales stand for."""
    n, k = codes.shape
    wide = scale.to(dtype).repeat_interleave(BLOCK, 0)[:n].repeat_interleave(BLOCK, 1)[:, :k]
    return codes.to(dtype) * wide


def dequantize_rows(
    codes: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The activations [T, K] that codes and scales stand for."""
    return codes.to(dtype) * scale.to(dtype).repeat_interleave(BLOCK, 1)[:, : codes.shape[1]]


def _blocks(size: int) -> int:
    return -(-size // BLOCK)


def _up(size: int) -> int:
    """To whole blocks."""
    return _blocks(size) * BLOCK


def _padded(values: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """With zeros behind."""
    missing = (0, columns - values.shape[1], 0, rows - values.shape[0])
    return torch.nn.functional.pad(values, missing)
