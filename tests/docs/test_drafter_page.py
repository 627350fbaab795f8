# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The drafter that its contract's page shows is sound."""

from __future__ import annotations

import re
from typing import Any

from distributions import ROOT
from tokenspeed_sdk.testing import drafter_conformance

PAGE = (ROOT / "docs" / "contracts" / "drafter.md").read_text()
SHOWN = re.search(r"```python\n(# acme_again.*?)```", PAGE, re.DOTALL)
assert SHOWN is not None
module: dict[str, Any] = {}
exec(SHOWN[1], module)

test_again = drafter_conformance(module["Again"])
