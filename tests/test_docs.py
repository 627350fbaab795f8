# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Pages that are drawn from the code are those of today's code."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_scheduler_diagram_is_todays_table() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "scheduler_diagram.py"))
    page = (ROOT / "docs" / "scheduler.md").read_text()
    assert "stateDiagram-v2" in page
    assert tool["drawn"](page) == page, "run: python tools/scheduler_diagram.py"
