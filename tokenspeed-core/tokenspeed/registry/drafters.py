# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Drafters of plugins: loaded, and checked to be what the contract says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.plugins.load.activate import broken, call

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.drafter import DrafterBackend

    from tokenspeed.plugins.plan import Planned


def read_drafter(planned: Planned) -> DrafterBackend:
    """Load one. LoadError, BrokenPromiseError."""
    backend = call(planned)
    if getattr(backend, "name", None) != planned.name:
        raise broken(planned, f"calls itself {getattr(backend, 'name', None)!r}")
    if not callable(getattr(backend, "open", None)):
        raise broken(planned, "has no method open")
    backend_: DrafterBackend = backend
    return backend_
