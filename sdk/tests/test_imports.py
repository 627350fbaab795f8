# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What may be imported by what."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    [
        *("contracts", "contracts.grammar", "contracts.kernel", "contracts.model"),
        *("contracts.platform", "json_schema"),
    ],
)
def test_contracts_do_not_import_torch(module: str) -> None:
    code = f"import sys, tokenspeed_sdk.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_modeling_does_not_import_transformers() -> None:
    code = (
        "import sys, tokenspeed_sdk.modeling, tokenspeed_sdk.ops, tokenspeed_sdk.modeling.layers;"
        "sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
