# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The address of a server that is asked: one rule for all who ask one, and the same words."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlsplit

FIRST = "127.0.0.1:8000"
"""Where ts serve listens first."""


def server_url(text: str) -> str:
    """The URL, without a path, of HOST:PORT, http://HOST:PORT, or https://HOST; /v1 may follow.

    Raises:
        ValueError: it is no address of a server.
    """
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname or "", parts.port  # raises when it is no port
        host.encode("idna")
        plain = host and port != 0 and "@" not in parts.netloc and text.split() == [text]
        whole = "://" in text or port is not None
        alone = parts.path.rstrip("/") in ("", "/v1") and not parts.query and not parts.fragment
        good = plain and whole and alone and parts.scheme in ("http", "https")
    except ValueError:
        good = False
    if not good:
        here = f"127.0.0.1:{text}" if text.isdecimal() else FIRST
        raise ValueError(
            f"{text!r} is no address of a server; give HOST:PORT, such as {here}, or "
            "http://HOST:PORT, with nothing behind it but /v1"
        )
    return f"{parts.scheme}://{parts.netloc}"


def unreachable(url: str, why: object) -> str:
    """What is said where nothing answers."""
    return f"cannot reach {url}: {why}; start a server with 'ts serve FOLDER'"


def no_api(url: str, why: str) -> str:
    """What is said where something else answers than the OpenAI API."""
    return f"{url} is no OpenAI server: {why}; give the address that 'ts serve' prints"


def no_models(url: str, status: int, text: str) -> str:
    """What is said where /v1/models is refused."""
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        return no_api(url, f"it answers {status} at /v1/models")
    return f"{url} answers {status} at /v1/models: {text.strip() or 'nothing'}"
