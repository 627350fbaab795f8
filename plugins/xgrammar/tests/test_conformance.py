# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The backend keeps the contract."""

from __future__ import annotations

from tokenspeed_sdk.testing import grammar_conformance
from tokenspeed_xgrammar import XGrammar

test_xgrammar = grammar_conformance(XGrammar)
