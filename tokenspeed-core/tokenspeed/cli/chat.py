# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts chat: talk to a running server over its OpenAI API."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import click

from tokenspeed.cli.environment import API_KEY, check_environment

_HELP = "/reset starts over, /exit or Ctrl-D leaves, Ctrl-C stops the answer"
_TIMEOUT_S = 600.0
_URL = "http://127.0.0.1:8000"  # where ts serve listens first


class ServerError(Exception):
    """The server cannot be reached, or refused; ``str()`` says why and what to do."""


class ChatClient:
    """A conversation with a server.

    Attributes:
        messages: what was said so far.
    """

    def __init__(self, url: str, api_key: str | None, options: dict[str, Any]) -> None:
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port or an IPv6 address that is none
            usable = None
        if not usable:
            raise ServerError(f"{url!r} is no address of a server, such as http://127.0.0.1:8000")
        self._secure = parts.scheme == "https"
        self._address = parts.netloc
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            if not (api_key.isascii() and api_key.isprintable()):
                raise ServerError("the API key must be printable ASCII, without a line break")
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._options = options
        self.messages: list[dict[str, str]] = []

    @property
    def partner(self) -> str:
        """Who answers, for people; once ``use_model`` has chosen."""
        return f"{self._options['model']} at {self._address}{self._path}"

    def use_model(self, name: str | None) -> None:
        """Ask this model; None: the first that the server names."""
        with self._errors(), self._open("GET", "/v1/models") as response:
            models = json.loads(response.read()).get("data") or []
            if not models:
                raise ServerError(
                    f"{self._address} serves no model yet; try again when it is ready"
                )
            self._options["model"] = name or models[0]["id"]

    def ask(self, text: str) -> Generator[str, None, None]:
        """The answer in pieces. Left early, the pieces so far count as the answer."""
        self.messages.append({"role": "user", "content": text})
        pieces: list[str] = []
        try:
            for piece in self._stream():
                pieces.append(piece)
                yield piece
        finally:
            if pieces:
                self.messages.append({"role": "assistant", "content": "".join(pieces)})
            else:
                self.messages.pop()

    def _stream(self) -> Iterator[str]:
        body = {**self._options, "messages": self.messages, "stream": True}
        with (
            self._errors(),
            self._open("POST", "/v1/chat/completions", body) as response,  # closing it aborts
        ):
            for line in response:
                data = line.decode().strip().removeprefix("data: ")
                if data == "[DONE]":
                    return
                if data.startswith("{"):
                    yield from _pieces(json.loads(data))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """No connection, or an answer of something else than our server, as a ServerError."""
        try:
            yield
        except OSError as error:
            raise ServerError(
                f"cannot reach {self._address}: {error}; start a server with 'ts serve FOLDER'"
            ) from error
        except (http.client.HTTPException, ValueError, LookupError, AttributeError) as error:
            raise ServerError(
                f"{self._address} does not speak the OpenAI API: {type(error).__name__}: {error}; "
                "give the address of 'ts serve'"
            ) from error

    def _open(self, method: str, path: str, body: Any = None) -> http.client.HTTPResponse:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._address, timeout=_TIMEOUT_S)
        content = None if body is None else json.dumps(body)
        connection.request(method, self._path + path, content, self._headers)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise ServerError(f"the server answered {response.status}: {_reason(response.read())}")
        return response


@click.command()
@click.argument("url", default=_URL)
@click.option("--model", help="By default the first that the server names.")
@click.option("--system", help="System message.")
@click.option("--temperature", type=float)
@click.option("--max-tokens", type=int)
@click.option("--api-key", envvar=API_KEY, help=f"Or set {API_KEY}.")
def chat(
    url: str, model: str | None, system: str | None, api_key: str | None, **options: Any
) -> None:
    """Talk to the server at URL, by default http://127.0.0.1:8000.

    Reads lines from standard input when that is no terminal. Standard output gets the answers
    alone.
    """
    check_environment()
    try:
        client = ChatClient(url, api_key, {k: v for k, v in options.items() if v is not None})
        client.use_model(model)
    except ServerError as error:
        raise click.ClickException(str(error)) from error
    _converse(client, [{"role": "system", "content": system}] if system else [])


def _converse(client: ChatClient, opening: list[dict[str, str]]) -> None:
    interactive = sys.stdin.isatty()
    client.messages = list(opening)
    click.echo(f"talking to {client.partner}", err=True)
    if interactive:
        click.echo(_HELP, err=True)
    while (line := _read_line(interactive)) is not None:
        if line in ("/exit", "/quit"):
            return
        if line == "/reset":
            client.messages = list(opening)
        elif line.startswith("/"):
            click.echo(_HELP, err=True)
        elif line:
            _answer(client, line, interactive)


def _read_line(interactive: bool) -> str | None:
    """The next line; None at the end. Ctrl-C at an empty prompt clears the line."""
    try:
        return input("> " if interactive else "").strip()
    except EOFError:
        return None
    except UnicodeDecodeError as error:
        raise click.ClickException("standard input is not UTF-8 text; convert it") from error
    except KeyboardInterrupt:
        click.echo(err=True)
        return ""


def _answer(client: ChatClient, line: str, interactive: bool) -> None:
    pieces = client.ask(line)
    try:
        for piece in pieces:
            click.echo(piece, nl=False)
            sys.stdout.flush()
        click.echo()
    except KeyboardInterrupt:
        click.echo("\n(stopped)", err=True)
    except BrokenPipeError:
        raise  # the reader of our output has enough: click ends quietly
    except (ServerError, OSError) as error:
        if not interactive:
            raise click.ClickException(str(error)) from error
        click.echo(f"\n{error}", err=True)
    finally:
        pieces.close()


def _pieces(event: dict[str, Any]) -> Iterator[str]:
    if "error" in event:
        raise ServerError(str(event["error"].get("message", event["error"])))
    for choice in event.get("choices", []):
        if content := choice["delta"].get("content"):
            yield content


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:500]
