# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Whose process is at the other end of a connection on 127.0.0.1.

A port of this machine is open to all its users, and the gateway has no other way to its worker. But
the kernel knows who opened a connection: its tables of sockets (proc(5), /proc/net/tcp) name the
user of each.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger(__name__)

TABLES = {Path("/proc/net/tcp"): "", Path("/proc/net/tcp6"): "0000000000000000FFFF0000"}
"""With what stands before an address of IPv4 there: clients may use sockets of either family."""
FRESH_S = 1.0
"""So long a connection counts as known; a port is not given to somebody else sooner."""
_MOST = 256
"""Connections that are remembered."""
_LOCAL, _REMOTE, _USER = 1, 2, 7
"""Columns of the table."""


class Peers:
    """Connections of one port of 127.0.0.1.

    Args:
        users: who may connect; by default who runs this process, and root.
    """

    def __init__(self, port: int, users: frozenset[int] | None = None) -> None:
        self._port = port
        self._users = frozenset((0, os.getuid())) if users is None else users
        self._known: dict[str, float] = {}
        if not any(table.is_file() for table in TABLES):
            missing = " and ".join(map(str, TABLES))
            log.warning("without %s every user of this machine can use port %d", missing, port)

    def allows(self, peer: str) -> bool:
        """Whether a connection is of a user who may; ``peer`` as gRPC names it.

        What no table has is refused; without tables nothing is.
        """
        now = time.monotonic()
        if now - self._known.get(peer, -FRESH_S) < FRESH_S:
            return True
        tables = {table: prefix for table, prefix in TABLES.items() if table.is_file()}
        if tables and _user(peer, self._port, tables) not in self._users:
            return False
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[peer] = now
        return True


def _user(peer: str, port: int, tables: Mapping[Path, str]) -> int | None:
    """The user id of a connection to a port; None where there is no such connection."""
    family, _, address = peer.partition(":")
    host, _, from_port = address.rpartition(":")
    if family != "ipv4":
        return None
    ends = (_place(host, int(from_port)), _place("127.0.0.1", port))
    for table, prefix in tables.items():
        for line in table.read_text().splitlines()[1:]:
            columns = line.split()
            if (columns[_LOCAL], columns[_REMOTE]) == tuple(prefix + end for end in ends):
                return int(columns[_USER])
    return None


def _place(host: str, port: int) -> str:
    """An address as the table writes it: the host as a number of this machine's byte order."""
    [number] = struct.unpack("=I", socket.inet_aton(host))
    return f"{number:08X}:{port:04X}"
