# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Who asks and how urgent it is: priority and salt, as an operator's proxy says them.

The gateway passes on one value of an HTTP client, the header ``x-request-id``, as the beginning
of the request's id. It may begin with fields, in any order, each at most once:

    p=<priority>,s=<salt>,<own id>

``p`` is an integer from -100 to 100, ``s`` any text without a comma. Each field ends with its
comma, because the gateway appends a text of its own. An id that begins with neither field is an
id and nothing else. A client of the gRPC service gives the same two in ``custom_params``, and
what is there wins over the id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from tokenspeed.front.errors import InvalidRequest

MIN_PRIORITY, MAX_PRIORITY = -100, 100
MAX_SALT_LENGTH = 128

_FIELD = re.compile(r"([ps])=")
_WHERE = {"p": "priority (p= in x-request-id)", "s": "salt (s= in x-request-id)"}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,2})")
_PRIORITY = f"an integer from {MIN_PRIORITY} to {MAX_PRIORITY}"
_SALT = f"a text of 1 to {MAX_SALT_LENGTH} characters"
_NAMESPACE_KEY = b"tokenspeed prefix cache salt"


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a caller; None where nothing is said.

    Attributes:
        priority: higher goes first.
        salt: requests with different salts, or with and without one, share no cached prefix.
    """

    priority: int | None = None
    salt: str | None = None

    def or_else(self, other: Caller) -> Caller:
        """This one, with the other's values where it has none."""
        return Caller(
            priority=other.priority if self.priority is None else self.priority,
            salt=other.salt if self.salt is None else self.salt,
        )


def caller_of_request_id(request_id: str) -> Caller:
    """The fields that an id begins with. InvalidRequest names a malformed one."""
    said: dict[str, str] = {}
    rest = request_id
    while field := _FIELD.match(rest):
        name = field[1]
        value, comma, rest = rest[field.end() :].partition(",")
        if name in said:
            raise InvalidRequest(_WHERE[name], value, "there once")
        if not comma:
            raise InvalidRequest(_WHERE[name], value, f"followed by a comma: {name}=...,<own id>")
        said[name] = value
    priority, salt = said.get("p"), said.get("s")
    return Caller(
        priority=None if priority is None else _parsed_priority(priority),
        salt=None if salt is None else checked_salt(salt, _WHERE["s"]),
    )


def caller_of_custom_params(params: Mapping[str, object]) -> Caller:
    """The members of ``custom_params``; null counts as absent. InvalidRequest names a wrong one."""
    for name in params:
        if name not in ("priority", "salt"):
            raise InvalidRequest("custom_params", name, "priority or salt: nothing else is built")
    priority, salt = params.get("priority"), params.get("salt")
    if isinstance(priority, float) and priority.is_integer():  # all numbers of a Struct are floats
        priority = int(priority)
    return Caller(
        priority=None if priority is None else checked_priority(priority),
        salt=None if salt is None else checked_salt(salt),
    )


def checked_priority(value: object, field: str = "priority") -> int:
    """Within its range, or InvalidRequest."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(field, value, _PRIORITY)
    if not MIN_PRIORITY <= value <= MAX_PRIORITY:
        raise InvalidRequest(field, value, _PRIORITY)
    return value


def checked_salt(value: object, field: str = "salt") -> str:
    """Within its range, or InvalidRequest."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_SALT_LENGTH:
        raise InvalidRequest(field, value, _SALT)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(field, value, "a text without lone surrogates") from error
    return value


def namespace_of(salt: str | None) -> int:
    """The 64-bit number that is part of every prefix key: the same in every process and version.

    0 is "no salt"; no salt gives it.
    """
    if salt is None:
        return 0
    digest = blake2b(salt.encode(), digest_size=8, key=_NAMESPACE_KEY).digest()
    return int.from_bytes(digest, "little") or 1


def _parsed_priority(value: str) -> int:
    if not _INTEGER.fullmatch(value):
        raise InvalidRequest(_WHERE["p"], value, _PRIORITY)
    return checked_priority(int(value), _WHERE["p"])
