# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Prompts that no cache knows: random ids that every vocabulary has, or random words."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LOWEST_ID, IDS = 10, 80
WORDS = ["the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "on", "by"]

_random = np.random.default_rng()


def random_prompt(tokens: int) -> NDArray[np.int32]:
    """A prompt of that length."""
    return _random.integers(LOWEST_ID, LOWEST_ID + IDS, tokens, np.int32)


def random_text(words: int) -> str:
    """Common words, one token each for most tokenizers."""
    return " ".join(_random.choice(WORDS, words).tolist())
