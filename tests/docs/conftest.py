# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The site, built once as strictly as CI builds it."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from distributions import ROOT

TAG = re.compile(r"<[^>]+>")


@dataclass(frozen=True)
class Site:
    """The built files."""

    folder: Path

    def html(self, page: str) -> str:
        """Source of a built page, such as "contracts/kernel.html"."""
        return (self.folder / page).read_text(encoding="utf-8")

    def signature(self, page: str, name: str) -> str:
        """What the page shows as the signature of an object, without its layout."""
        found = re.search(rf'id="{re.escape(name)}".*?<pre>(.*?)</pre>', self.html(page), re.S)
        assert found, f"{page} does not document {name}"
        return self.without_layout(html.unescape(TAG.sub("", found[1])))

    @staticmethod
    def without_layout(signature: str) -> str:
        """A signature without whitespace, quotes and trailing commas."""
        return re.sub(r"[\s'\"]", "", signature).replace(",)", ")")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Skips nothing: whoever runs these tests has what tools/requirements-docs.txt names."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "properdocs", "build", "--strict", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Site(folder)
