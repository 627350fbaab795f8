# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Integers of eight bits: codes from -127 to 127, and the scales that they are multiplied with.

A scale belongs to 32 numbers that lie side by side in the sum of a product: of one output feature
of a weight, of one token of an activation. So short a group keeps what is large in one place from
costing digits elsewhere: activations of language models hold a few features that are a hundred
times larger than the others (Dettmers et al., 2022, arXiv:2208.07339). Scales are float32, and
codes are found in float32 whatever the dtype of the values is.
"""

from __future__ import annotations

import torch

DTYPE = torch.int8
LARGEST = 127
"""Largest code; -128 is not used, so that a code and its negative are codes."""

GROUP = 32
"""Numbers that share a scale; the last group of a row may be shorter."""


def groups_of(k: int) -> int:
    """Groups in a row of ``k`` numbers."""
    return -(-k // GROUP)


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [T, K] and scales [T, ceil(K / 32)] of activations [T, K]."""
    rows, k = x.shape
    padded = torch.nn.functional.pad(x.float(), (0, groups_of(k) * GROUP - k))
    groups = padded.view(rows, groups_of(k), GROUP)
    scale = groups.abs().amax(-1) / LARGEST
    scale = torch.where(scale == 0, 1.0, scale)  # NaN stays NaN
    codes = (groups / scale[..., None]).round().clamp(-LARGEST, LARGEST).to(DTYPE)
    return codes.view(rows, groups_of(k) * GROUP)[:, :k], scale


def quantize_weight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [N, K] and scales [ceil(K / 32), N] of a weight [N, K]."""
    codes, scale = quantize_rows(weight)
    return codes.contiguous(), scale.T.contiguous()


def dequantize_rows(
    codes: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The activations [T, K] that codes and scales stand for."""
    return codes.to(dtype) * scale.to(dtype).repeat_interleave(GROUP, 1)[:, : codes.shape[1]]


def dequantize_weight(
    codes: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The weight [N, K] that codes and scales stand for."""
    return dequantize_rows(codes, scale.T, dtype)
