# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Philox4x32-10, the counter-based generator that sampling draws from.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A block is a
pure function of key and counter: no state to keep, to seed or to share between rows.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

Words: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
MASK = 0xFFFFFFFF


def philox4x32(key: tuple[int, int], counter: Words) -> Words:
    """Ten rounds on blocks of four 32-bit words.

    Args:
        key: two words, each in [0, 2^32).
        counter: four int64 tensors that broadcast, values in [0, 2^32).

    Returns:
        Four int64 tensors with values in [0, 2^32).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _multiply(MULTIPLIERS[0], c0)
        high1, low1 = _multiply(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + KEY_STEPS[0]) & MASK, (k1 + KEY_STEPS[1]) & MASK
    return c0, c1, c2, c3


def _multiply(factor: int, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low word of a 32 x 32 bit product.

    int64 products wrap modulo 2^64, so the bits are those of the unsigned product, and the mask
    takes away the sign that the shift brings in.
    """
    product = words * factor
    return (product >> 32) & MASK, product & MASK
