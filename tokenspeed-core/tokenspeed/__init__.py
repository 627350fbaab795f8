# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""TokenSpeed: the inference engine that coding agents run on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenspeed.offline import LLM, SamplingParams

__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # deferred, so that the command line starts without the serving stack
        from tokenspeed import offline

        return getattr(offline, name)
    raise AttributeError(f"module 'tokenspeed' has no attribute {name!r}")
