# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Whatever leaves a plugin's code is its failure, also what would end a process silently.

try:
    verdict = kernel.accept(site)
except BaseException as raised:
    error = as_failure(raised, "kernel k of acme 1.0")
"""

from __future__ import annotations

import logging
import signal
from typing import NoReturn

from tokenspeed.process.failure import Terminated

_log = logging.getLogger(__name__)


class EscapeError(RuntimeError):
    """A plugin's code raised something that is no Exception, such as SystemExit."""


def as_failure(raised: BaseException, who: str) -> Exception:
    """What a plugin's code raised as an exception that can be handled and reported.

    What the operator sent is raised again: SIGTERM, and SIGINT unless this process ignores it.
    """
    if isinstance(raised, Exception):
        return raised
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if isinstance(raised, Terminated) or (isinstance(raised, KeyboardInterrupt) and not ignored):
        raised.add_note(f"while {who} ran")
        if isinstance(raised, KeyboardInterrupt):
            _log.warning("interrupted while %s ran", who)
        raise raised
    failure = EscapeError(f"{type(raised).__name__}({raised}) left the code of a plugin")
    failure.__cause__ = raised
    return failure


def fail(raised: BaseException, who: str, note: str) -> NoReturn:
    """Raise it as the failure of ``who``, with a note for people."""
    error = as_failure(raised, who)
    error.add_note(note)
    raise error
