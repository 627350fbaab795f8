# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Code on a page is code: it parses, its imports exist, its commands are there."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
import yaml
from distributions import ROOT
from tokenspeed.cli.main import main as ts
from tokenspeed.plugins.discover.manifest import read_manifest

FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
TEMPLATES = ROOT / "sdk" / "tokenspeed_sdk" / "templates"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL = ("sh", "console", "bash")


def _blocks(*languages: str) -> list[object]:
    return [
        pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
        for page in PAGES
        for number, (_, language, block) in enumerate(FENCE.findall(page.read_text()))
        if language in languages
    ]


def test_every_block_says_what_it_is() -> None:
    parsed = {"json", "mermaid", "python", "toml", "yaml", *SHELL}
    known = {"", "c", "cpp", "cmake", "promql", "text", *parsed}
    for page in PAGES:
        languages = {language for _, language, _ in FENCE.findall(page.read_text())}
        assert languages <= known, f"{page.name}: {sorted(languages - known)}"


@pytest.mark.parametrize("block", _blocks("python"))
def test_python_parses_and_imports_what_exists(block: str) -> None:
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and node.module and _is_ours(node.module):
            module = importlib.import_module(node.module)
            for name in node.names:
                assert hasattr(module, name.name) or find_spec(f"{node.module}.{name.name}"), (
                    f"{node.module} has no {name.name}"
                )
        elif isinstance(node, ast.Import):
            for name in node.names:
                assert not _is_ours(name.name) or find_spec(name.name), name.name


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in ("tokenspeed", "tokenspeed_sdk")


@pytest.mark.parametrize("block", _blocks("toml"))
def test_toml_parses_and_manifests_are_sound(block: str, tmp_path: Path) -> None:
    table = tomllib.loads(block)
    if "provides" in table and "id" in table:
        file = tmp_path / "tokenspeed_plugin.toml"
        file.write_text(block)
        assert read_manifest(file, "acme").provides


@pytest.mark.parametrize("block", _blocks("json", "yaml"))
def test_json_and_yaml_parse(block: str) -> None:
    """JSON is YAML."""
    assert yaml.safe_load(block)


def _lines(block: str) -> Iterator[list[str]]:
    """Words of every command. In "console" blocks those are the lines with a prompt."""
    joined = block.replace("\\\n", " ")
    lines = joined.splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    for line in lines:
        if words := shlex.split(line, comments=True):
            yield words


@pytest.mark.parametrize("block", _blocks(*SHELL))
def test_commands_exist(block: str) -> None:
    for words in _lines(block):
        program = Path(words[0]).name
        if program == "ts":
            _check_ts(words[1:])
        elif program == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        elif program.startswith("python") and words[1].endswith(("tools/gpu_check", ".py")):
            assert (ROOT / words[1]).exists() or any(TEMPLATES.glob(f"*/{words[1]}.tmpl")), words[1]


def _check_ts(words: list[str]) -> None:
    """That the subcommand and its options exist."""
    command: click.Command = ts
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        inner = command.get_command(click.Context(command), name)
        assert inner, f"{command.name} has no command {name}"
        command = inner
    known = {option for parameter in command.params for option in parameter.opts}
    used = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert used <= known | {"-h", "--help", "--version"}, f"{command.name}: {used - known}"
