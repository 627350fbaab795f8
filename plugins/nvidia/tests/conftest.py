# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Lets the tests import their helper modules."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
