# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Addresses of servers, and what the three commands that ask one say of what is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tokenspeed.address import server_url
from tokenspeed.cli.main import main
from tokenspeed.process.ports import any_free

COMMANDS = ("chat", "bench", "batch")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("127.0.0.1:9", "http://127.0.0.1:9"),
        ("localhost:80/v1", "http://localhost:80"),
        ("[::1]:9/", "http://[::1]:9"),
        ("http://127.0.0.1:9", "http://127.0.0.1:9"),
        ("http://[::1]:9/", "http://[::1]:9"),
        ("HTTPS://a.example/v1", "https://a.example"),
        ("http://a/v1/", "http://a"),
    ],
)
def test_an_address_is_a_server(text: str, url: str) -> None:
    assert server_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8000",
        ":8000",
        "localhost",
        "ftp://h",
        "http://",
        "http://h:p",
        "http://h:0",
        "http://a b:80",
        "http://h:8000/prefix",
        "http://h:8000/prefix/v1",
        "http://h/?a=1",
        "http://user:key@h",
        "http://127.0.0.1:99999",
        "http://[::1",
        f"http://{'a' * 70}.de",
    ],
)
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is no address of a server; give HOST:PORT") as caught:
        server_url(text)
    assert repr(text) in str(caught.value)


def test_a_port_alone_shows_what_was_meant() -> None:
    with pytest.raises(ValueError, match=r"such as 127\.0\.0\.1:8001,"):
        server_url("8001")


def asked(command: str, address: str, tmp_path: Path) -> Result:
    source = tmp_path / "in.jsonl"
    source.write_text('{"custom_id": "1", "url": "/v1/completions", "body": {"prompt": "a"}}\n')
    arguments = {
        "chat": ("chat", address),
        "bench": ("bench", "serve", address),
        "batch": ("batch", str(source), str(tmp_path / "out.jsonl"), "--url", address),
    }
    return CliRunner().invoke(main, arguments[command], prog_name="ts")


@pytest.mark.parametrize("command", COMMANDS)
def test_where_nothing_listens(command: str, tmp_path: Path) -> None:
    address = f"127.0.0.1:{any_free('127.0.0.1')}"
    result = asked(command, address, tmp_path)
    assert result.exit_code == 1
    assert f"Error: cannot reach http://{address}: " in result.output
    assert "start a server with 'ts serve FOLDER'" in result.output


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("address", ["8000", "http://127.0.0.1:1/a b", "ftp://127.0.0.1"])
def test_what_is_no_address(command: str, address: str, tmp_path: Path) -> None:
    result = asked(command, address, tmp_path)
    assert result.exit_code == 2
    assert f"{address!r} is no address of a server" in " ".join(result.output.split())


@pytest.fixture(params=[(404, b"404: Not Found"), (200, b"<html>"), (200, b"{}")])
def stranger(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server without the API, which has one answer for everything."""
    status, body = request.param

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Not among the tests'."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_openai_server(command: str, stranger: str, tmp_path: Path) -> None:
    result = asked(command, stranger, tmp_path)
    assert result.exit_code == 1
    assert f"Error: http://{stranger} is no OpenAI server: " in result.output
    assert "give the address that 'ts serve' prints" in result.output


def test_a_folder_may_look_like_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a:1").mkdir()
    monkeypatch.chdir(tmp_path)
    result = asked("bench", "a:1", tmp_path)
    assert "a:1 has no config.json" in result.output
