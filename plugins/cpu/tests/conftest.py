# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Fixtures: every instruction set this CPU runs, few threads, fresh random numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tokenspeed_cpu import library

pytest_plugins = ["tokenspeed_sdk.testing.plugin"]

THREADS = 2

BEST = library.isa()
RUNNABLE = [name for name in library.isas() if library.use_isa(name)]
library.use_isa(BEST)


@pytest.fixture(params=RUNNABLE)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test once per instruction set that was built and that this CPU runs."""
    name: str = request.param
    assert library.use_isa(name)
    yield name
    library.use_isa(BEST)


@pytest.fixture(autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(1)
    library.set_threads(THREADS)


@pytest.fixture
def rng() -> torch.Generator:
    """Fresh random inputs; the seed is printed when a test fails."""
    generator = torch.Generator()
    print("seed", generator.seed())
    return generator
