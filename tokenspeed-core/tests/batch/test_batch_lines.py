# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a line of a batch file is, and that no line can stop a file from being read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenspeed.batch import lines
from tokenspeed.batch.lines import BadLine, Line, Request, parse, read_lines

GOOD: dict[str, Any] = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/completions",
    "body": {"prompt": "x"},
}


def line(content: bytes | str | dict[str, Any] | None) -> Line:
    if isinstance(content, dict):
        content = json.dumps(content)
    return Line(3, content.encode() if isinstance(content, str) else content, 0)


def test_a_request_is_taken_as_it_is() -> None:
    assert parse(line(GOOD)) == Request("a", "/v1/completions", {"prompt": "x"})
    without = {k: v for k, v in GOOD.items() if k != "method"}
    chat = without | {"url": "/v1/chat/completions", "more": 1}
    assert parse(line(chat)) == Request("a", "/v1/chat/completions", {"prompt": "x"})


@pytest.mark.parametrize(
    ("content", "custom_id", "message"),
    [
        ("not json", None, "the line is not JSON: "),
        ('{"custom_id": "a"', None, "the line is not JSON: "),
        ("[1, 2]", None, "a line must be a JSON object; got [1,2]; write it as 'ts batch --help'"),
        ("{}", None, 'custom_id is missing; give a text, such as "1"'),
        (b'{"custom_id": "\xff"}', None, ""),
        ("[" * 100_000, None, ""),
        (GOOD | {"custom_id": 7}, None, 'custom_id must be a text, such as "1"; got 7'),
        ({"custom_id": "b"}, "b", "url is missing; give /v1/chat/completions or /v1/"),
        (GOOD | {"body": "x"}, "a", "body must be an object, such as {"),
        (GOOD | {"body": [0] * 99}, "a", f"got [{'0,' * 29}0..."),
        (GOOD | {"method": "GET"}, "a", 'method must be "POST", or left out; got "GET"'),
        (GOOD | {"method": None}, "a", 'method must be "POST", or left out; got null'),
        (GOOD | {"url": {}}, "a", "url must be /v1/chat/completions or /v1/completions; got {}"),
        (GOOD | {"url": "/v1/embeddings"}, "a", "url must be /v1/chat/completions or"),
        (GOOD | {"body": {"stream": True}}, "a", "body.stream has no meaning in a file"),
        (GOOD | {"body": {"model": 3}}, "a", "body.model must be a name; got 3"),
    ],
)
def test_what_is_wrong_is_said(
    content: bytes | str | dict[str, Any], custom_id: str | None, message: str
) -> None:
    found = parse(line(content))
    assert isinstance(found, BadLine)
    assert (found.custom_id, found.code) == (custom_id, "invalid_line")
    assert message in found.message


def test_a_line_that_is_too_long_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MOST_BYTES", 10)
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"12345678\n" + b"x" * 57 + b"\n1234567890\n" + b"y" * 20)
    found = [*read_lines(path)]
    assert [(each.number, each.content, each.end) for each in found] == [
        (1, b"12345678", 9),
        (2, None, 67),
        (3, None, 78),  # its line break makes one more
        (4, None, 98),
    ]
    skipped = parse(found[1])
    assert isinstance(skipped, BadLine)
    assert skipped.code == "line_too_long"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["", " ", "{}", "x" * 40, '{"a": 1}\r', "\t"])), st.booleans())
def test_numbers_and_ends_are_those_of_the_file(
    tmp_path: Path, texts: list[str], ended: bool
) -> None:
    path = tmp_path / "in.jsonl"
    whole = "\n".join(texts) + ("\n" if ended else "")
    path.write_text(whole, newline="")
    for each in read_lines(path):
        before = whole[: each.end]
        assert before.rstrip("\n").count("\n") == each.number - 1 or before.count("\n\n")
        assert before.splitlines()[-1].strip().encode() == each.content
    assert [each.content for each in read_lines(path)] == [
        text.strip().encode() for text in texts if text.strip()
    ]
