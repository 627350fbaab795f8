# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A child never outlives its parent.

PDEATHSIG survives exec and is sent when the *thread* that spawned the child ends: spawn from a
thread that lives as long as the child is wanted, in practice the main thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tie_to_parent(parent: int) -> None:
    """Ask the kernel to kill this process with its parent; exit if the parent is gone already.

    The request comes first and the check second: a parent that dies in between is seen by one.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl(PR_SET_PDEATHSIG): {os.strerror(errno)}")
    if os.getppid() != parent:
        sys.exit(f"parent process {parent} is gone; nothing to do")
