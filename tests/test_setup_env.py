# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The set-up sees what an environment lacks, and warns of a large download only before one."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from distributions import DISTRIBUTIONS, ROOT

CORE = next(d for d in DISTRIBUTIONS if d.script == "ts")


@pytest.fixture
def setup_env(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    import setup_env

    return setup_env


def test_a_command_that_was_removed_is_installed_again(
    setup_env: ModuleType, tmp_path: Path
) -> None:
    environment = setup_env.Environment(tmp_path)
    environment.stamp(CORE.name, "these sources")
    assert not environment.has(CORE, "these sources")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ts").touch()
    assert environment.has(CORE, "these sources")
    assert not environment.has(CORE, "other sources")


@pytest.mark.parametrize(
    ("spec", "version", "direct_url", "index", "warns"),
    [
        ("torch>=2.11,<3", None, None, None, True),
        ("torch>=2.11,<3", "2.10.0", None, None, True),
        ("torch>=2.11,<3", None, None, "https://mirror.example/simple", True),
        ("torch>=2.11,<3", "2.11.0+cpu", None, None, False),
        ("torch>=2.11,<3", "2.11.0", '{"url": "file:///torch.whl"}', None, False),
        ("torch>=2.11,<3", None, None, "https://torch.example/whl/cpu", False),
        ("torch==2.11.0+cpu", None, None, None, False),
        ("torch @ file:///torch.whl", None, None, None, False),
        (__file__, None, None, None, False),
    ],
)
def test_the_size_is_told_before_a_large_download(
    setup_env: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spec: str,
    version: str | None,
    direct_url: str | None,
    index: str | None,
    warns: bool,
) -> None:
    if index is not None:
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", index)
    if version is not None:
        info = tmp_path / "lib" / "python3.11" / "site-packages" / f"torch-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: torch\nVersion: {version}\n")
        if direct_url is not None:
            (info / "direct_url.json").write_text(direct_url)
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(setup_env.Environment, "pip", lambda _, *arguments: asked.append(arguments))
    setup_env.Environment(tmp_path).install_torch(spec)
    assert ("3 GB" in capsys.readouterr().out) is warns
    assert asked == [("install", spec)]
