# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Modules of these tests, and the fixtures that they share with others."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # harness and churn are modules of their own

from tiny_engine import cpu, delaying, replaying, tiny_llama

__all__ = ["cpu", "delaying", "replaying", "tiny_llama"]
