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

import click

from tokenspeed.address import FIRST, no_api, no_models, unreachable
from tokenspeed.cli.environment import API_KEY, check_environment
from tokenspeed.cli.options import server_address

_HELP = "/reset starts over, /exit or Ctrl-D leaves, Ctrl-C stops the answer"
_MODELS = "/v1/models"
_TIMEOUT_S = 600.0


class ServerError(Exception):
    """The server cannot be reached, or refused; ``str()`` says why and what to do."""


class ChatClient:
    """A conversation with the server at a URL without a path.

    Attributes:
        messages: what was said so far.
    """

    def __init__(self, url: str, api_key: str | None, options: dict[str, Any]) -> None:
        self._url = url
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
        return f"{self._options['model']} at {self._url}"

    def use_model(self, name: str | None) -> None:
        """Ask this model; None: the first that the server names."""
        with self._errors(), self._open("GET", _MODELS) as response:
            models = json.loads(response.read())["data"]
            if not models:
                raise ServerError(f"{self._url} serves no model yet; try again when it is ready")
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
            raise ServerError(unreachable(self._url, error)) from error
        except (http.client.HTTPException, ValueError, LookupError, AttributeError) as error:
            raise ServerError(no_api(self._url, f"{type(error).__name__}: {error}")) from error

    def _open(self, method: str, path: str, body: Any = None) -> http.client.HTTPResponse:
        scheme, _, address = self._url.partition("://")
        secure = scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(address, timeout=_TIMEOUT_S)
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, self._headers)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            reason = _reason(response.read())
            if path == _MODELS:
                raise ServerError(no_models(self._url, response.status, reason))
            raise ServerError(f"the server answered {response.status}: {reason}")
        return response


@click.command()
@click.argument("url", default=FIRST, callback=server_address, metavar="[HOST:PORT]")
@click.option("--model", help="By default the first that the server names.")
@click.option("--system", help="System message.")
@click.option("--temperature", type=float)
@click.option("--max-tokens", type=int)
@click.option("--api-key", envvar=API_KEY, help=f"Or set {API_KEY}.")
def chat(
    url: str, model: str | None, system: str | None, api_key: str | None, **options: Any
) -> None:
    """Talk to the server at HOST:PORT, by default 127.0.0.1:8000.

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
