# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Our plugins are wheels like any other: without one, ``ts serve`` says which is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

import pytest


def environment_without(wheel: str, folder: Path) -> dict[str, str]:
    """An environment in which all that is installed can be imported, but one wheel."""
    installed = Path(sysconfig.get_path("purelib"))
    gone = {Path(str(file)).parts[0] for file in distribution(wheel).files or ()}
    for path in installed.iterdir():
        if path.name not in gone:
            (folder / path.name).symlink_to(path)
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.mark.parametrize("wheel", ["tokenspeed-models", "tokenspeed-cpu"])
def test_serve_names_the_wheel_that_is_absent(
    wheel: str, demo_folder: Path, tmp_path: Path
) -> None:
    if distribution(wheel).read_text("direct_url.json") and "editable" in (
        distribution(wheel).read_text("direct_url.json") or ""
    ):
        pytest.skip("editable installs cannot be taken away by hiding files; run `make setup`")
    command = "from tokenspeed.cli.main import main; main()"
    ended = subprocess.run(
        [sys.executable, "-S", "-c", command, "serve", str(demo_folder)],
        env=environment_without(wheel, tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert f"pip install {wheel}" in ended.stderr
    assert "Traceback" not in ended.stderr
