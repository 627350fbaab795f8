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


def committed_folders() -> set[str]:
    """Folders that hold a file of the repository."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    parents = {str(Path(name).parent) for name in listed.stdout.splitlines()}
    return parents - {"."}


def test_every_folder_has_its_sentence() -> None:
    rows = [match[1] for match in ROW.finditer(PAGE)]
    assert len(rows) == len(set(rows))
    missing = committed_folders() - set(rows)
    assert not missing, f"docs/structure.md lacks {sorted(missing)}"


def test_every_named_folder_exists() -> None:
    assert not [match[1] for match in ROW.finditer(PAGE) if not (ROOT / match[1]).is_dir()]


def test_every_named_file_exists() -> None:
    named = {match[1] for match in PATH.finditer(PAGE)}
    assert len(named) >= 5
    folders = (ROOT, PACKAGE, PACKAGE / "front")
    assert not [name for name in named if not any((f / name).is_file() for f in folders)]
