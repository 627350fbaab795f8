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


def test_who_answers_must_be_said_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    none, both = said(tmp_path), said(tmp_path, "--model", str(tmp_path), "--url", "http://a")
    assert none.exit_code == both.exit_code == 2
    assert "say who answers: --model FOLDER, or --url of a running server" in none.output
    assert "give --model or --url, not both" in both.output


def test_a_pipe_is_no_input(tmp_path: Path) -> None:
    arguments = ["-", str(tmp_path / "out.jsonl"), "--url", "127.0.0.1:9"]
    result = CliRunner().invoke(batch, arguments, input="{}\n")
    assert result.exit_code == 1
    text = " ".join(result.output.split())
    assert "Error: - is no regular file, and INPUT is read more than once; write it to a" in text


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    source, folder = tmp_path / "in.jsonl", tmp_path / "none"
    source.write_text("{}\n")
    arguments = [str(source), str(folder / "out.jsonl"), "--url", "127.0.0.1:9"]
    result = CliRunner().invoke(batch, arguments)
    assert result.exit_code == 1
    assert f"there is no folder {folder}; make it" in result.output


def test_where_nothing_is_left_nothing_goes_on(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text('{"id":"line-1","custom_id":"a"}\n')
    source = tmp_path / "in.jsonl"
    source.write_text('{"custom_id": "a"}\n')
    result = CliRunner().invoke(batch, [str(source), str(output), "--url", "127.0.0.1:9"])
    assert (result.exit_code, result.stdout) == (0, f"1 answered: {output}\n")
    assert result.stderr == "nothing left to do\n"


@pytest.mark.parametrize("option", ["--threads", "--request-timeout"])
def test_options_of_an_engine_are_not_for_a_server_that_runs(tmp_path: Path, option: str) -> None:
    result = said(tmp_path, "--url", "http://127.0.0.1:9", option, "2")
    assert result.exit_code == 2
    assert f"{option} is for --model: the server at --url runs" in result.output


def test_a_file_without_a_request_is_answered(tmp_path: Path) -> None:
    """And starts nothing."""
    result = said(tmp_path, "--url", "http://127.0.0.1:9")
    assert (result.exit_code, result.stdout) == (0, f"0 answered: {tmp_path / 'out.jsonl'}\n")
    assert result.stderr == "INPUT has no request\n"


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
