# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The README beside this says what is tested: no more, no less."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
IDS = 68

_ID = re.compile(r"\bC\d+[a-c]?\b")
_POINTER = re.compile(r"([\w/.-]+\.(?:py|cpp))(?:::(\w+)|: \"([^\"]+)\")")


def sections() -> dict[str, list[str]]:
    """Title to the rows of its table."""
    parts = re.split(r"^## (.+)$", (HERE / "README.md").read_text(), flags=re.MULTILINE)[1:]
    rows = [re.findall(r"^\| (C.*) \|$", part, re.MULTILINE) for part in parts[1::2]]
    return dict(zip(parts[::2], rows, strict=True))


def ids(rows: list[str]) -> list[str]:
    return [name for row in rows for name in _ID.findall(row.partition(" |")[0])]


def test_every_id_stands_in_one_table() -> None:
    listed = [name for rows in sections().values() for name in ids(rows)]
    assert len(listed) == len(set(listed)) == IDS


def test_tests_are_named_after_the_ids_of_the_first_table() -> None:
    named: set[str] = set()
    for file in HERE.glob("test_*.py"):
        for name in re.findall(r"^(?:async )?def test_((?:c\d+[a-c]?_)+)", file.read_text(), re.M):
            named |= {f"C{each[1:]}" for each in name.strip("_").split("_")}
    assert named == set(ids(sections()["Tested in this folder"]))


def test_tests_elsewhere_exist() -> None:
    rows = sections()["Tested elsewhere"]
    for row in rows:
        assert _POINTER.search(row), row
    for file, test, text in _POINTER.findall((HERE / "README.md").read_text()):
        content = (ROOT / file).read_text()
        assert (f"def {test}(" if test else text) in content, (file, test, text)
