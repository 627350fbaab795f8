# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""TCP ports of this machine."""

from __future__ import annotations

import errno
import random
import socket

QUIET = range(20_000, 30_000)
"""Ports that the kernel gives to no connection that goes out (32768 and above, unless it is told
otherwise): one that is free now still is when a server listens on it seconds later."""

_claims: list[socket.socket] = []
"""Ports that this process chose, held until it ends."""


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now. OSError when the host is not this machine's."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except PermissionError:
            return False
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True


def any_free(host: str) -> int:
    """A free port that nobody else was given, somewhere in QUIET."""
    return next_free(host, random.choice(QUIET))


def next_free(host: str, first: int, tries: int = 100) -> int:
    """The first free port at or above ``first`` that nobody else was given.

    Seconds pass until a server listens on it. A second one that starts meanwhile takes the next.
    """
    for port in range(first, first + tries):
        if is_free(host, port) and _claim(port):
            return port
    raise OSError(f"no port from {first} to {first + tries - 1} is free on {host}; name another")


def _claim(port: int) -> bool:
    """Take the port's name among sockets without a path: one process has it, until it ends."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0tokenspeed-port-{port}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True
