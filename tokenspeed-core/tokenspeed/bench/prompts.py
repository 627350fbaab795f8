# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Prompts that no cache knows: random ids that every vocabulary has."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LOWEST_ID, IDS = 10, 80

_random = np.random.default_rng()


def random_prompt(tokens: int) -> NDArray[np.int32]:
    """A prompt of that length."""
    return _random.integers(LOWEST_ID, LOWEST_ID + IDS, tokens, np.int32)
