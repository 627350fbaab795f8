# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Small loads: the machine is shared. And a module that several tests import."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # mutants is a module of its own


@pytest.fixture(autouse=True)
def quiet_torch() -> None:
    """One thread, and the same random numbers in every test, whatever ran before."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
