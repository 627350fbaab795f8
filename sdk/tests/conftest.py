# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Small loads: the machine is shared."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def quiet_torch() -> None:
    """One thread, and the same random numbers in every test, whatever ran before."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
