# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What runs all tests drops none of them, says how each step ended, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from distributions import ROOT


@pytest.fixture
def run_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The tool, in a folder of its own."""
    import run_tests

    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "LOGS", tmp_path / "logs")
    return run_tests


def runner_of(run_tests: ModuleType, *steps: tuple[object, ...]) -> object:
    return run_tests.Runner([run_tests.Step(*step) for step in steps], {"PATH": "/usr/bin:/bin"})


def test_a_failure_stops_only_what_needs_the_step(
    run_tests: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = runner_of(
        run_tests,
        ("first", ("true",)),
        ("broken", ("echo why it is broken", "exit 3", "echo not reached"), ("first",)),
        ("stands on it", ("true",), ("broken",)),
        ("other/one", ("true",), ("first",)),
    )
    runner.run()
    assert not runner.report()
    said, _, summary = capsys.readouterr().out.partition("== all steps")
    assert "== broken: FAILED (3) after 0 s, 0 s of CPU\nwhy it is broken\n" in said
    assert "not reached" not in said
    assert "broken: FAILED (3) after 0 s, 0 s of CPU; its output: logs/broken.log" in summary
    assert "stands on it: NOT RUN, it needs broken" in summary
    assert "first: passed" in summary
    assert "other/one: passed" in summary


def test_three_run_at_once_and_who_must_be_alone_is(run_tests: ModuleType, tmp_path: Path) -> None:
    count = "ls running-* 2>/dev/null | wc -l"
    meets = f"for i in $(seq 50); do [ $({count}) -lt 3 ] || break; sleep 0.1; done"
    together = ("touch running-$$", meets, count, "sleep 0.3", "rm running-$$")
    alone = ("touch running-$$", "sleep 0.5", count, "rm running-$$")
    steps = [(str(i), together, (), False) for i in range(6)]
    runner = runner_of(run_tests, *steps, ("6", alone, (), True))
    runner.run()
    assert runner.report()
    at_once = {path.stem: int(path.read_text()) for path in (tmp_path / "logs").iterdir()}
    assert at_once.pop("6") == 1
    assert set(at_once.values()) <= {1, 2, 3}
    assert 3 in at_once.values()


def test_an_interrupted_run_leaves_no_process(
    run_tests: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not even one in the background, which does not hear Ctrl-C; nor when interrupted again."""
    pid = tmp_path / "pid"
    runner = runner_of(run_tests, ("long", ("sleep 100 & echo $! >pid", "sleep 0.3; wait")))

    def interrupted(seconds: float) -> None:
        if pid.exists() and pid.read_text().endswith("\n"):
            raise KeyboardInterrupt

    monkeypatch.setattr(run_tests.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner.run()
    monkeypatch.undo()
    deadline = time.monotonic() + 5
    while lives(int(pid.read_text())):
        assert time.monotonic() < deadline, "it outlived the run"
        time.sleep(0.05)


def lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_every_test_of_the_tree_is_in_a_step(
    run_tests: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON", "python3")
    words = [line.split() for step in run_tests.steps() for line in step.lines]
    words = [line[line.index("pytest") :] for line in words if "pytest" in line]
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*/test_*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    tests = [name for name in files if is_ours(name)]
    assert len(tests) > 50
    missed = [name for name in tests if sum(runs(line, name) for line in words) != 1]
    assert not missed, "in no step, or in more than one"


def is_ours(name: str) -> bool:
    """Neither of a stranger's project, whose tests run as a stranger runs them, nor a template."""
    return not any(part in name for part in ("tests/downstream/", "/templates/"))


def runs(line: list[str], name: str) -> bool:
    """Whether ``pytest FOLDER... --ignore=FOLDER...`` collects a file."""
    ignored = [word.removeprefix("--ignore=") for word in line if word.startswith("--ignore=")]
    given = [word for word in line[1:] if not word.startswith("-")]

    def lies_in(folders: list[str]) -> bool:
        return any(name == folder or name.startswith(f"{folder}/") for folder in folders)

    return lies_in(given) and not lies_in(ignored)
