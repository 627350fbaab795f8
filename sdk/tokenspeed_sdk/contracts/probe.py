# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A decision that keeps its reason, whichever way it went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Accept:
    """Fit for the job. Among several, the highest score is chosen; ``why`` is shown to people."""

    score: int
    why: str


@dataclass(frozen=True)
class Decline:
    """Works, but not here. ``why`` is shown when somebody asks for it by name."""

    why: str


Verdict: TypeAlias = Accept | Decline
"""What a probe answers."""
