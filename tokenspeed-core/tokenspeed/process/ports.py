# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""TCP ports of this machine."""

from __future__ import annotations

import errno
import socket


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
    """A port that nobody listens on, picked by the kernel."""
    with socket.create_server((host, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def next_free(host: str, first: int, tries: int = 100) -> int:
    """The first free port at or above ``first``."""
    for port in range(first, first + tries):
        if is_free(host, port):
            return port
    raise OSError(f"no port from {first} to {first + tries - 1} is free on {host}; name another")
