# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The scheduler's ``Finish``, for processes that do not load the compiled module.

A test compares it with the real one.
"""

from __future__ import annotations

import enum


class Finish(enum.IntEnum):
    """Why a sequence ended; values of ``EngineOutput.finish``."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    ABORTED = 3
    EXPIRED = 4
    FAILED = 5
