# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Fixtures: every instruction set this CPU runs, kernels bound to sites, caches with pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tokenspeed_cpu import library

THREADS = 2


@pytest.fixture(params=["v4", "v3", "v2", "generic"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test once per instruction set that was built and that this CPU runs."""
    name: str = request.param
    best = library.isa()
    if name not in library.isas() or not library.use_isa(name):
        pytest.skip(f"no {name} here")
    yield name
    library.use_isa(best)


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
