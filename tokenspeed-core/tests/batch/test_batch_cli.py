# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the command says before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tokenspeed.cli.batch import batch


def said(tmp_path: Path, *arguments: str) -> Result:
    source = tmp_path / "in.jsonl"
    source.write_text("")
    return CliRunner().invoke(batch, [str(source), str(tmp_path / "out.jsonl"), *arguments])


@pytest.mark.parametrize("arguments", [(), ("--model", ".", "--url", "http://a")])
def test_who_answers_must_be_said(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "config.json").write_text("{}")
    arguments = tuple(str(tmp_path) if each == "." else each for each in arguments)
    result = said(tmp_path, *arguments)
    assert result.exit_code == 2
    assert "say who answers: --model FOLDER, or --url of a running server" in result.output


@pytest.mark.parametrize("option", ["--threads", "--request-timeout"])
def test_options_of_an_engine_are_not_for_a_server_that_runs(tmp_path: Path, option: str) -> None:
    result = said(tmp_path, "--url", "http://127.0.0.1:9", option, "2")
    assert result.exit_code == 2
    assert f"{option} is for --model: the server at --url runs" in result.output


def test_a_file_without_a_request_is_answered(tmp_path: Path) -> None:
    """And starts nothing."""
    result = said(tmp_path, "--url", "http://127.0.0.1:9")
    assert (result.exit_code, result.stdout) == (0, f"0 answered: {tmp_path / 'out.jsonl'}\n")


def test_help_shows_a_line_and_keeps_the_engine_apart() -> None:
    text = CliRunner().invoke(batch, ["--help"], terminal_width=100).output
    own, engine = text.split("Options of the engine that --model starts")
    assert '{"custom_id": "1", "method": "POST"' in own
    assert "--overwrite" in own
    assert "--quantization" in engine
    assert "--threads" not in own


def test_a_server_that_is_not_there_is_said(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"custom_id": "1", "url": "/v1/completions", "body": {}}\n')
    arguments = [str(source), str(tmp_path / "out.jsonl"), "--url", "http://127.0.0.1:9/v1/"]
    result = CliRunner().invoke(batch, arguments)
    assert result.exit_code == 1
    assert "cannot reach http://127.0.0.1:9: " in result.stderr
    assert "the same command goes on from there" in result.stderr


def test_what_is_refused_goes_on_from_nowhere(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("")
    output.write_text("my notes\n")
    result = CliRunner().invoke(batch, [str(source), str(output), "--url", "http://127.0.0.1:9"])
    assert result.exit_code == 1
    assert "choose another OUTPUT, or --overwrite" in " ".join(result.stderr.split())
    assert "goes on" not in result.stderr


@pytest.mark.parametrize(
    ("url", "said_of_it"),
    [("8000", "127.0.0.1:8000"), ("http://h/prefix", "127.0.0.1:8000, or http://HOST:PORT")],
)
def test_a_url_that_names_no_server_is_said(tmp_path: Path, url: str, said_of_it: str) -> None:
    result = said(tmp_path, "--url", url)
    assert result.exit_code == 2
    text = " ".join(result.output.split())
    assert f"Invalid value for '--url': {url!r} is no address of a server; give HOST:PORT" in text
    assert f"such as {said_of_it}" in text


@pytest.mark.parametrize("url", ["127.0.0.1:9", "http://127.0.0.1:9", "http://a/v1/"])
def test_a_url_that_names_a_server_is_taken(tmp_path: Path, url: str) -> None:
    assert said(tmp_path, "--url", url).exit_code == 0
