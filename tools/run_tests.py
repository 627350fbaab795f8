#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Everything that CI runs, three steps at a time. `make test` sets PYTHON, TORCH and VENV.

A step starts as soon as those that it needs have passed. What it prints is shown whole once it has
ended, and kept in build/test. After a failure everything that can still run does, so one run finds
all that is wrong. Standard library only.
"""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "test"
LANES = 3
"""One more than CI has cores: steps also wait for servers to start, for pip and for timers."""
STOP_S = 30
"""How long an interrupted step may take to end what it has started."""


@dataclass(frozen=True)
class Step:
    """Lines of shell that run in the repository's root, up to the first that fails.

    Attributes:
        needs: names of the steps that must have passed.
        alone: it compares times, so nothing may run beside it.
    """

    name: str
    lines: tuple[str, ...]
    needs: tuple[str, ...] = ()
    alone: bool = False


@dataclass
class Run:
    """A step that was started."""

    step: Step
    process: subprocess.Popen[bytes]
    log: Path
    start: float
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.process.returncode == 0

    def __str__(self) -> str:
        verdict = "passed" if self.passed else f"FAILED ({self.process.returncode})"
        took = f"{self.seconds:.0f} s, {self.cpu_seconds:.0f} s of CPU"
        return f"{self.step.name}: {verdict} after {took}"


class Runner:
    """Starts steps as lanes come free, in the order given."""

    def __init__(self, steps: Sequence[Step], environment: dict[str, str]) -> None:
        self._environment = environment
        self._start = time.monotonic()
        self._running: list[Run] = []
        self.waiting = list(steps)
        self.ended: list[Run] = []

    def run(self) -> None:
        """Until nothing runs and nothing that waits can."""
        LOGS.mkdir(parents=True, exist_ok=True)
        try:
            while self._start_ready() or self._running:
                time.sleep(0.1)
                self._reap()
        finally:
            self._stop()

    def _start_ready(self) -> bool:
        """Start what may start; whether that was anything."""
        started = False
        for step in [*self.waiting]:
            if self._may_start(step):
                self.waiting.remove(step)
                self._running.append(self._begin(step))
                started = True
        return started

    def _may_start(self, step: Step) -> bool:
        passed = {run.step.name for run in self.ended if run.passed}
        if not passed.issuperset(step.needs):
            return False
        if step.alone:
            return not self._running
        return len(self._running) < LANES and not any(run.step.alone for run in self._running)

    def _begin(self, step: Step) -> Run:
        print(f"-- {step.name}: started at {time.monotonic() - self._start:.0f} s", flush=True)
        log = LOGS / f"{step.name.replace('/', '-').replace(' ', '-')}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["sh", "-euc", "\n".join(step.lines)],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that it ends with all that it has started
            )
        return Run(step, process, log, time.monotonic())

    def _reap(self) -> None:
        for run in [*self._running]:
            before = cpu_seconds_of_ended()
            if run.process.poll() is None:
                continue
            run.cpu_seconds = cpu_seconds_of_ended() - before
            run.seconds = time.monotonic() - run.start
            self._running.remove(run)
            self.ended.append(run)
            print(f"\n== {run}", flush=True)
            print(run.log.read_text(errors="replace"), flush=True)

    def _stop(self) -> None:
        """End what still runs as Ctrl-C would, then whatever that has left."""
        for run in self._running:
            with suppress(ProcessLookupError):
                os.killpg(run.process.pid, signal.SIGINT)
        deadline = time.monotonic() + STOP_S
        try:
            for run in self._running:
                with suppress(subprocess.TimeoutExpired):
                    run.process.wait(max(0.0, deadline - time.monotonic()))
        finally:  # also when interrupted once more
            for run in self._running:
                with suppress(ProcessLookupError):
                    os.killpg(run.process.pid, signal.SIGKILL)

    def report(self) -> bool:
        """Say how each step ended; whether all passed."""
        print(f"\n== all steps ({time.monotonic() - self._start:.0f} s)")
        for run in self.ended:
            print(run if run.passed else f"{run}; its output: {run.log.relative_to(ROOT)}")
        for step in self.waiting:
            print(f"{step.name}: NOT RUN, it needs {', '.join(step.needs)}")
        return not self.waiting and all(run.passed for run in self.ended)


def cpu_seconds_of_ended() -> float:
    """Of all steps that have ended, with the processes that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


SETUP = '"$PYTHON" tools/setup_env.py --venv "$VENV"'
DOCTEST = """\
printf '#include <doctest/doctest.h>\\n' | "${CXX:-g++}" -E -x c++ - >/dev/null 2>&1 || {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get install -y -qq doctest-dev ||
            { apt-get update -qq && apt-get install -y -qq doctest-dev; }
    else
        echo 'missing: doctest-dev; install with: sudo apt install doctest-dev' >&2
        exit 1
    fi
}"""


def steps() -> Iterator[Step]:
    """In the order of starting: the short ones that fail most often first, then the longest.

    The documentation site has no step of its own: tests/docs builds it, as strictly as `make docs`.
    """
    yield Step(
        "set-up",
        (
            f'{SETUP} --torch "$TORCH" --with demo --with unit --with test --with docs',
            '"$VENV/bin/python" tools/demo_model.py',
            # The version of the GPU machine; it interprets and compiles without a GPU.
            '"$VENV/bin/python" -m pip install --quiet --no-deps triton==3.6.0',
            # It asks for torch, Transformers and Triton, which are there in versions of our choice.
            '"$VENV/bin/python" -m pip install --quiet --no-deps xgrammar==0.2.9'
            " 'apache-tvm-ffi>=0.1.11'",
        ),
    )
    yield from on_python_312()
    yield Step("ruff", ("ruff check .", "ruff format --check ."), ("set-up",))
    yield Step("doctest", (DOCTEST,))
    yield Step("mypy", ("MYPYPATH=sdk:tokenspeed-core:plugins/nvidia mypy",), ("set-up",))
    yield pytest("tests/e2e", "--ignore=tests/e2e/test_bench.py")
    others = ("--ignore=tests/e2e", "--ignore=tests/engine", "--ignore=tests/parity")
    yield pytest("tests", *others)
    yield pytest("tests/engine", "tests/parity")
    yield pytest("tokenspeed-core/tests")
    yield pytest("sdk/tests")
    # Not installed: a server must not find a platform that this machine has no device for.
    yield pytest("plugins/nvidia/tests", environment="PYTHONPATH=plugins/nvidia ")
    yield Step(
        "C++ tests",
        (
            "cmake -S tokenspeed-core -B build/cpp -G Ninja"
            " -DTOKENSPEED_BUILD_TESTS=ON -DTOKENSPEED_BUILD_MODULE=OFF >/dev/null",
            "cmake --build build/cpp",
            "ctest --test-dir build/cpp --output-on-failure",
        ),
        ("set-up", "doctest"),
    )
    yield Step("soak", ("python tests/soak/soak.py --seconds 50 --seed 1",), ("set-up",))
    yield Step("data races", ("make --no-print-directory tsan",), ("set-up", "doctest"))
    yield pytest("plugins/cpu/tests")
    yield pytest("plugins/models/tests")
    yield pytest("plugins/llguidance/tests")
    # Not installed: what the tests of the server find is what a user of the README has.
    yield pytest("plugins/xgrammar/tests", environment="PYTHONPATH=plugins/xgrammar ")
    lint = "PYTHONPATH=plugins/nvidia:plugins/xgrammar lint-imports"
    yield Step("import-linter", (lint,), ("set-up",))
    yield pytest("tests/e2e/test_bench.py", alone=True)


def pytest(folder: str, *options: str, environment: str = "", alone: bool = False) -> Step:
    """A step of the name of its folder; among the options may be further folders."""
    line = " ".join((f"{environment}pytest", folder, *options))
    return Step(folder, (line,), ("set-up",), alone)


def on_python_312() -> Iterator[Step]:
    """The torch-free part, where there is a Python 3.12 that is not the one under test.

    Left out is what no version of Python changes, and what the steps above have run: the C++
    control plane under random messages, behind a binding that is tested here too, and what the
    published gateway does, which is one program for all versions.
    """
    name = "the torch-free part on Python 3.12"
    other = None if version(os.environ["PYTHON"]) == "3.12" else python_312()
    if other is None:
        print(f"-- {name}: skipped: there is none beside the one that all the rest runs on")
        return
    only = "--only tokenspeed-sdk --only tokenspeed-core"
    setup = f"{shlex.quote(other)} tools/setup_env.py --venv .venv-3.12 --torch none --with unit"
    yield Step("set-up of Python 3.12", (f"{setup} {only}",))
    run = ".venv-3.12/bin/pytest -q $(cat tests/torch_free.txt)"
    yield Step(name, (run,), ("set-up of Python 3.12",))


def python_312() -> str | None:
    """One that runs: a version manager's may only say that it was not chosen."""
    prefix = said("pyenv", "prefix", "3.12")
    candidates = ("python3.12", f"{prefix}/bin/python3.12")
    return next((c for c in candidates if version(c) == "3.12"), None)


def version(python: str) -> str:
    return said(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")


def said(*command: str) -> str:
    """What a command prints; "" when it fails or is not there."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def main() -> int:
    """Run all steps; 130 when interrupted, 1 when any did not pass."""
    os.chdir(ROOT)
    for number in (signal.SIGINT, signal.SIGTERM):  # also where SIGINT was ignored, for the steps
        signal.signal(number, signal.default_int_handler)
    scripts = Path(os.environ["VENV"]).resolve() / "bin"
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    runner = Runner([*steps()], environment)
    try:
        runner.run()
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    return 0 if runner.report() else 1


if __name__ == "__main__":
    sys.exit(main())
