# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The names of public ops that need no torch are those of the ops."""

from __future__ import annotations

from tokenspeed_sdk.contracts.kernel import PUBLIC_OPS
from tokenspeed_sdk.ops import OPS


def test_public_ops_are_the_ops():
    assert tuple(sorted(OPS)) == PUBLIC_OPS
