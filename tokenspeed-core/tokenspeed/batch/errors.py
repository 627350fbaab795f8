# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Why a batch cannot go on."""

from __future__ import annotations


class BatchError(Exception):
    """Files that cannot be used, or a server that is gone; says what to do."""
