# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The backend keeps the contract."""

from __future__ import annotations

from tokenspeed_llguidance import LLGuidance
from tokenspeed_sdk.testing import grammar_conformance

test_llguidance = grammar_conformance(LLGuidance)
