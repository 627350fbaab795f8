# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A failure that its message explains whole."""

from __future__ import annotations


class StartError(Exception):
    """A process cannot start, for a reason that an operator can mend: no traceback is shown."""


class Terminated(SystemExit):  # not an error: somebody wants this process to end
    """SIGTERM arrived, in contrast to what code that calls sys.exit() raises."""
