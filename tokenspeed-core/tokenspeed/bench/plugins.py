# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How long ``ts plugins list`` takes beside plugins that are broken in every way.

They lie in a scratch folder on PYTHONPATH, on top of what is installed. Whoever wants to find and
remove one of them needs this command, at once.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenspeed.bench.report import Report, Row, new_report

BAR_S = 0.3

HEAVY = (
    *("torch", "numpy", "stevedore", "tokenspeed_cpu", "tokenspeed_models", "tokenspeed_nvidia"),
    *("tokenspeed_llguidance", "tokenspeed_xgrammar"),
)
"""Modules that the command has no business with, and the packages of our plugins."""

_RUN = "from tokenspeed.cli.main import main; main(['plugins', 'list'], prog_name='ts')"

_WATCH = """
import sys
from tokenspeed.cli.main import main
try:
    main(["plugins", "list"], prog_name="ts")
finally:
    print("\\0", *sys.modules, file=sys.stderr)
"""


@dataclass(frozen=True)
class _Plugin:
    """What is wrong with one of them."""

    name: str
    code: str
    number: str = "1.0"

    def write(self, folder: Path) -> None:
        """As pip would install it."""
        package, info = folder / self.name, folder / f"{self.name}-1.0.dist-info"
        package.mkdir()
        info.mkdir()
        (package / "__init__.py").write_text(self.code)
        (package / "tokenspeed_plugin.toml").write_text(
            f'manifest = "1.0"\nid = "{self.name}"\n[[provides]]\ncontract = "kernel"\n'
            f'number = "{self.number}"\nname = "{self.name}"\n'
            f'claims = ["rms_norm@1:{self.name}"]\n'
        )
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {self.name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            f"[tokenspeed.plugins]\n{self.name} = {self.name}:tokenspeed_plugin.toml\n"
            f"[tokenspeed.kernel]\n{self.name} = {self.name}:make\n"
        )


BROKEN = (
    _Plugin("raises", "raise RuntimeError('this plugin raises when it is imported')\n"),
    _Plugin("sleeps", "import time\ntime.sleep(10)\n"),
    _Plugin("mismatched", "raise SystemExit\n", number="9.9"),
    _Plugin("half_registered", "def make():\n    return ()\n"),
)


def run(*, repetitions: int) -> Report:
    """Time the command. RuntimeError when it fails."""
    with _environment() as environment:
        modules = _modules(environment)
        samples = [_seconds(environment) for _ in range(repetitions)]
    median = statistics.median(samples)
    row = Row(
        what=f"ts plugins list beside {len(BROKEN)} broken plugins",
        unit="s",
        ours=round(median, 3),
        versus="allowed",
        theirs=BAR_S,
        ratio=round(BAR_S / median, 3),
        bar=1.0,
    )
    heavy = [name for name in (*HEAVY, *(p.name for p in BROKEN)) if name in modules]
    notes = {
        "modules imported": str(len(modules)),
        "torch imported": "yes" if "torch" in modules else "no",
        "heavy modules and plugins imported": ", ".join(heavy) or "none",
    }
    return new_report("ts bench plugins", "no model", [row], {"seconds": samples}, notes)


@contextmanager
def _environment() -> Iterator[dict[str, str]]:
    """Variables with which the broken plugins are on the path."""
    with tempfile.TemporaryDirectory(prefix="tokenspeed-") as folder:
        for plugin in BROKEN:
            plugin.write(Path(folder))
        path = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
        yield {**os.environ, "PYTHONPATH": path}


def _seconds(environment: dict[str, str]) -> float:
    start = time.perf_counter()
    _list(environment, _RUN)
    return time.perf_counter() - start


def _modules(environment: dict[str, str]) -> set[str]:
    """What one run of the command imports; it also warms the file cache."""
    return set(_list(environment, _WATCH).stderr.rpartition("\0")[2].split())


def _list(environment: dict[str, str], program: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    missing = [plugin.name for plugin in BROKEN if plugin.name not in done.stdout]
    if done.returncode or missing:
        raise RuntimeError(
            f"ts plugins list ended with {done.returncode} and without {missing}: {done.stderr}"
        )
    return done
