# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Broken plugins one by one: what the doctor finds, and how a start that needs it is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from .broken import ARCHITECTURE
from .cases import BLOCKING, CASES, UNLOADABLE, UNREADABLE, Case, install_all
from .checkpoints import Checkpoint
from .layers import OURS_DENIED, ts
from .sites import imported

CHOSEN = {
    name: case for name, case in {**UNREADABLE, **UNLOADABLE, **BLOCKING}.items() if case.refusal
}


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the import path with every broken plugin."""
    return install_all(tmp_path_factory.mktemp("crowd"))


@pytest.mark.rule("R11")
def test_the_list_has_them_all(crowd: Path) -> None:
    done = ts("plugins", "list", layers=[crowd])
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    for case in CASES.values():
        assert f"{case.plugin.distribution} 1.0" in done.stdout
    assert not imported(crowd)


@pytest.fixture(scope="module")
def findings(crowd: Path) -> list[dict[str, str]]:
    """What the doctor finds with all of them installed."""
    sound = [name for name, case in CASES.items() if not case.finding]
    denied = (("kernel", name) for name in sound if CASES[name].plugin.contract == "kernel")
    options = [word for contract, name in denied for word in ("--deny", f"{contract}={name}")]
    done = ts("plugins", "doctor", "--json", *OURS_DENIED, *options, layers=[crowd])
    assert done.returncode == 1, done.stderr
    found: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    return found


@pytest.mark.rule("R17")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.finding])
def test_the_doctor_finds_it(findings: list[dict[str, str]], name: str) -> None:
    case = CASES[name]
    own = [f for f in findings if f"{case.plugin.distribution} 1.0" in f["owner"]]
    told = "\n".join(f"{f['what']}; to do: {f['fix']}" for f in own)
    for words in case.finding:
        assert words in told


@pytest.mark.rule("R17")
def test_the_doctor_finds_nothing_in_what_does_its_work(findings: list[dict[str, str]]) -> None:
    """To decline is an answer, and what an observer does with events is nobody's business."""
    sound = ("platform-declines", "raising-observer", "blocking-observer")
    owners = " ".join(finding["owner"] for finding in findings)
    assert not [name for name in sound if CASES[name].plugin.distribution in owners]


@pytest.mark.rule("R4", "R6", "R9", "R15")
@pytest.mark.parametrize("name", CHOSEN)
def test_a_start_that_stands_on_it_is_refused(name: str, llama: Checkpoint, tmp_path: Path) -> None:
    case = CHOSEN[name]
    done = start(case, llama, tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    for words in case.refusal:
        assert words in done.stderr
    assert "to do: " in done.stderr
    assert "Traceback" not in done.stderr
    assert bool(imported(tmp_path / "site")) == (name not in UNREADABLE)


def start(case: Case, llama: Checkpoint, scratch: Path) -> subprocess.CompletedProcess[str]:
    """A server that wants the plugin; returns when it has ended."""
    site = scratch / "site"
    case.install(site)
    folder = llama.folder
    if case.plugin.contract == "model":
        folder = shutil.copytree(folder, scratch / "model")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "architectures": [ARCHITECTURE]}))
    return ts("serve", str(folder), *case.choose, layers=[site])


@pytest.mark.rule("R5", "R7")
@pytest.mark.parametrize("name", BLOCKING)
def test_it_blocks_every_start_until_the_operator_decides(
    name: str, llama: Checkpoint, tmp_path: Path
) -> None:
    """That ``unblock`` does so is seen in test_crowd.py."""
    case = BLOCKING[name]
    case.install(tmp_path)
    done = ts("serve", str(llama.folder), layers=[tmp_path])
    assert done.returncode == 1
    for words in case.blocks:
        assert words in done.stderr
    assert "Traceback" not in done.stderr
