# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""docs/structure.md names every folder, and nothing that is not there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from distributions import ROOT

PAGE = (ROOT / "docs" / "structure.md").read_text()
ROW = re.compile(r"^\| `([^`]+)` \| (\S.*\.) \|$", re.MULTILINE)
PATH = re.compile(r"`([\w./-]+\.py|(?:engine|front|process)/[\w.]+)`")
PACKAGE = ROOT / "tokenspeed-core" / "tokenspeed"


WHOLE = "/..."
"""Ends a row that speaks for all folders below one as well."""


def folders() -> set[str]:
    """Folders that hold a file that is, or would be, in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [Path(name) for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    return {file.parent.as_posix() for file in files} - {"."}


def is_covered(folder: str, rows: list[str]) -> bool:
    whole = [row.removesuffix(WHOLE) for row in rows if row.endswith(WHOLE)]
    return folder in rows or any(folder == row or folder.startswith(f"{row}/") for row in whole)


def test_every_folder_has_its_sentence() -> None:
    rows = [match[1] for match in ROW.finditer(PAGE)]
    assert len(rows) == len(set(rows))
    missing = sorted(folder for folder in folders() if not is_covered(folder, rows))
    assert not missing, f"docs/structure.md lacks {missing}"


def test_every_named_folder_exists() -> None:
    rows = [match[1].removesuffix(WHOLE) for match in ROW.finditer(PAGE)]
    assert not [row for row in rows if not (ROOT / row).is_dir()]


def test_every_named_file_exists() -> None:
    named = {match[1] for match in PATH.finditer(PAGE)}
    assert len(named) >= 5
    folders = (ROOT, PACKAGE, PACKAGE / "front")
    assert not [name for name in named if not any((f / name).is_file() for f in folders)]
