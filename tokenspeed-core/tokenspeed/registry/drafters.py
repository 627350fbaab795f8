# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Drafters of plugins: loaded, and checked to be what the contract says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.plugins.load.activate import broken, call

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.drafter import DrafterBackend, DraftModelBackend

    from tokenspeed.plugins.plan import Planned

OF_MODELS = ("read_config", "taps", "cache_groups", "build")
"""What a drafter with a model must have; one from text must have ``open``."""


def read_drafter(planned: Planned) -> DrafterBackend | DraftModelBackend:
    """Load one. LoadError, BrokenPromiseError."""
    backend = call(planned)
    if getattr(backend, "name", None) != planned.name:
        raise broken(planned, f"calls itself {getattr(backend, 'name', None)!r}")
    wanted = OF_MODELS if hasattr(backend, "build") else ("open",)
    for method in wanted:
        if not callable(getattr(backend, method, None)):
            raise broken(planned, f"has no method {method}")
    backend_: DrafterBackend | DraftModelBackend = backend
    return backend_
