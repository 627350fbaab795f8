# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""ts grammar check, with backends that the tests write."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from tokenspeed.cli.environment import VARIABLES
from tokenspeed.cli.main import main

BACKEND = """
from tokenspeed_sdk.contracts.grammar import GrammarError
from tokenspeed_sdk.contracts.probe import Accept, Decline

class Backend:
    name = "{name}"
    def accept(self, constraint):
        if constraint.kind in {kinds!r}:
            return Accept({score}, "ready")
        return Decline("does not honour " + constraint.kind + " at #")
    def open(self, vocabulary):
        self.tokens = len(vocabulary.tokens)
        return self
    def compile(self, constraint):
        if "bad" in constraint.text:
            raise GrammarError("that is bad\\nhere")
        return constraint.text.encode()
    def load(self, compiled):
        return self
    def matcher(self):
        return self

def make():
    return Backend()
"""


@pytest.fixture
def run(monkeypatch, site):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    site.provide("fast", "grammar", "fast", claims=("fast",), code=backend("fast", ("regex",), 90))
    kinds = ("regex", "ebnf", "json_schema")
    site.provide("wide", "grammar", "wide", claims=("wide",), code=backend("wide", kinds, 50))

    def invoke(*arguments, **more):
        return CliRunner().invoke(main, ["grammar", "check", *arguments], prog_name="ts", **more)

    return invoke


def backend(name, kinds, score):
    return BACKEND.format(name=name, kinds=kinds, score=score)


def rows(result):
    """Backend -> (whether it is marked, what it says)."""
    lines = [line for line in result.output.splitlines() if line.lstrip("* ")[:4] in BACKENDS]
    return {line.lstrip("* ")[:4]: (line.startswith("*"), line) for line in lines}


BACKENDS = ("fast", "wide")


def test_the_one_that_would_take_it_is_marked(run, tmp_path):
    (tmp_path / "number.regex").write_text("[0-9]+\n")
    result = run(str(tmp_path / "number.regex"))
    assert result.exit_code == 0, result.output
    assert "regex of 6 characters, for 257 tokens" in result.output, "without the editor's newline"
    marked = {name: mark for name, (mark, _) in rows(result).items()}
    assert marked == {"fast": True, "wide": False}
    assert "compiles in " in rows(result)["wide"][1]
    denied = run(str(tmp_path / "number.regex"), "--deny", "grammar=fast")
    assert {name: mark for name, (mark, _) in rows(denied).items()} == {"wide": True}


def test_what_is_not_honoured_is_named(run, tmp_path):
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    found = rows(run(str(tmp_path / "schema.json")))
    assert found["wide"][0]
    assert "does not honour json_schema at #" in found["fast"][1]


def test_when_none_takes_it_the_status_says_so(run, tmp_path):
    (tmp_path / "tags.json").write_text('{"type": "structural_tag", "format": {}}')
    result = run(str(tmp_path / "tags.json"))
    assert result.exit_code == 1
    assert "structural_tag of " in result.output
    assert "no backend honours it: a request with it would be refused" in result.output
    bad = run("-", "--kind", "regex", input="bad")
    assert bad.exit_code == 1
    assert rows(bad)["wide"] == (False, rows(bad)["wide"][1])
    assert "that is bad" in bad.output
    assert "here" not in bad.output


def test_a_name_that_says_nothing_needs_a_kind(run, tmp_path):
    (tmp_path / "it.txt").write_text("[a-z]+")
    text = " ".join(run(str(tmp_path / "it.txt")).output.split())
    assert f"the name of {tmp_path / 'it.txt'} does not say what it holds; give --kind" in text
    assert "one of json_schema, regex, ebnf, structural_tag" in text
    assert "the name of standard input" in run("-", input="a").output
    assert run(str(tmp_path / "it.txt"), "--kind", "ebnf").exit_code == 0


@pytest.mark.parametrize("content", ['{"type": ', "", "[" * 100_000])
def test_what_is_no_json_is_said(run, tmp_path, content):
    file = tmp_path / "it.json"
    file.write_text(content)
    result = run(str(file))
    assert result.exit_code == 1
    assert f"Error: {file} is not JSON: " in result.output
    tag = run("-", "--kind", "structural_tag", input=content)
    assert "Error: standard input is not JSON: " in tag.output


def test_what_is_no_text_is_said(run, tmp_path):
    (tmp_path / "it.regex").write_bytes(b"\xff")
    assert "it.regex is not UTF-8 text; convert it" in run(str(tmp_path / "it.regex")).output


def test_without_a_backend_the_wheel_is_named(run, tmp_path):
    (tmp_path / "it.regex").write_text("[a-z]+")
    result = run(str(tmp_path / "it.regex"), "--allow", "grammar=none")
    assert result.exit_code == 1
    assert "pip install tokenspeed-llguidance" in result.output
