# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Small loads: the machine is shared."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def quiet_torch() -> None:
    """One thread in every test."""
    torch.set_num_threads(1)
