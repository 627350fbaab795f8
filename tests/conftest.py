# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What tests of several packages share: the tools' modules and the demo model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder; downloaded once into the user's cache."""
    import demo_model

    return demo_model.ensure()
