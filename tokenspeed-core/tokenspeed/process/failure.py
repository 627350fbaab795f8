# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How a process ends other than by itself: a failure that its message explains whole, a signal."""

from __future__ import annotations

import signal

DRAIN = signal.SIGUSR1
"""Asks a front that serves to take nothing new, and to say when all that runs has ended."""


class StartError(Exception):
    """A process cannot start, for a reason that an operator can mend: no traceback is shown."""


class Terminated(SystemExit):  # not an error: somebody wants this process to end
    """SIGTERM arrived, in contrast to what code that calls sys.exit() raises."""
