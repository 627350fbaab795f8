# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Make the virtual environment and install into it what changed since the last time.

Standard library only: it runs with the machine's Python. Each thing that was installed leaves a
stamp in the environment, so a second run does nothing and takes no time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from distributions import DISTRIBUTIONS, ROOT, Distribution, combined
from machine import problems

TOOLS = ROOT / "tools"
DIST = ROOT / "dist"
EDITABLE = "editable"
PYTHON = "python"
"""The stamp that an environment gets once it is made: the version it was made by."""

TORCH_NOTE = """\
Installing {spec}. Its default build for Linux on x86-64 carries CUDA: about 3 GB to download,
6 GB on disk. The build for the CPU alone takes 0.2 GB and 0.9 GB, and is chosen by
    PIP_EXTRA_INDEX_URL=ADDRESS make serve
where ADDRESS is what the selector on PyTorch's install page shows behind --index-url for "CPU".
"""


class Environment:
    """The virtual environment, and what is in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self._stamps = folder / "stamps"

    def create(self) -> None:
        """Make it unless it is there, finished, and of the Python that runs this."""
        version = ".".join(map(str, sys.version_info[:2]))
        if self.is_made() and self.is_current(PYTHON, version):
            return
        another = f"remove it, or choose another folder with VENV=.venv-{version}"
        if self.is_made():
            sys.exit(f"{self.folder} was made by another Python than {version}: {another}")
        if self.folder.exists() and any(self.folder.iterdir()):
            if not self._stamps.is_dir():
                sys.exit(f"{self.folder} was not made by this set-up: {another}")
            print(f"{self.folder} was not finished: making it anew", flush=True)
            shutil.rmtree(self.folder)
        print(f"Making {self.folder} (Python {version})", flush=True)
        self._make()
        self.stamp(PYTHON, version)

    def is_made(self) -> bool:
        """Whether this set-up has finished making it, with whatever Python."""
        return self.python.exists() and (self._stamps / PYTHON).exists()

    def _make(self) -> None:
        """The folder of stamps comes first: it tells an unfinished one from somebody else's."""
        from venv import EnvBuilder  # a machine may lack it, which ``problems`` says

        self._stamps.mkdir(parents=True)
        EnvBuilder(with_pip=True, symlinks=True).create(self.folder)

    def is_current(self, name: str, value: str) -> bool:
        path = self._stamps / name
        return path.exists() and path.read_text() == value

    def stamp(self, name: str, value: str) -> None:
        self._stamps.mkdir(exist_ok=True)
        (self._stamps / name).write_text(value)

    def pip(self, command: str, *arguments: str | Path) -> None:
        """Run pip; its own output says what went wrong."""
        line = [str(self.python), "-m", "pip", command, *map(str, arguments)]
        if subprocess.run(line, env=pip_environment(), check=False).returncode != 0:
            sys.exit(f"pip {command} failed (see above); the line was: {' '.join(line)}")

    def install_requirements(self, kind: str) -> None:
        """Bring tools/requirements-<kind>.txt up to date."""
        path = TOOLS / f"requirements-{kind}.txt"
        if not self.is_current(path.name, path.read_text()):
            print(f"Installing what is needed to {kind}: tools/{path.name}", flush=True)
            self.pip("install", "--quiet", "--requirement", path)
            self.stamp(path.name, path.read_text())

    def install_torch(self, spec: str) -> None:
        if self.is_current("torch", spec):
            return
        if not (names_small_torch(spec) or self.has_small_torch() or asks_cpu_index()):
            print(TORCH_NOTE.format(spec=spec), flush=True)
        self.pip("install", spec)
        self.stamp("torch", spec)

    def has_small_torch(self) -> bool:
        """Whether a torch is there already that came from a file, or is the CPU build."""
        folders = [str(path) for path in self.folder.glob("lib/python*/site-packages")]
        return any(
            "+cpu" in torch.version or '"file:' in (torch.read_text("direct_url.json") or "")
            for torch in distributions(name="torch", path=folders)
        )

    def has(self, distribution: Distribution, content: str) -> bool:
        """Whether it was installed from these sources, and its command was not removed since."""
        script = distribution.script
        there = script is None or (self.folder / "bin" / script).exists()
        return there and self.is_current(distribution.name, content)

    def tag(self) -> str:
        return f"cp{sys.version_info.major}{sys.version_info.minor}"


def pip_environment() -> dict[str, str]:
    return {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def names_small_torch(spec: str) -> bool:
    """Whether a requirement is a file or the CPU build: whoever wrote it has chosen."""
    return "+cpu" in spec or "file:" in spec or Path(spec).is_file()


def asks_cpu_index() -> bool:
    """Whether the note's line was used: the address of that index ends so."""
    return os.environ.get("PIP_EXTRA_INDEX_URL", "").rstrip("/").endswith("/cpu")


def build(environment: Environment, distribution: Distribution, hashes: dict[str, str]) -> Path:
    """The wheel of these sources, built into dist/ unless it lies there already."""
    folder = DIST / environment.tag()
    record = folder / f"{distribution.name}.json"
    built: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {}
    if built.get("hashes") == hashes and (folder / built["wheel"]).exists():
        return folder / str(built["wheel"])
    print(f"Building {distribution.name}", flush=True)
    before = built.get("hashes", {})
    for name, content in hashes.items():  # the build goes by times; those of a copy may be old
        if before.get(name) != content:
            os.utime(ROOT / name)
    stem = distribution.name.replace("-", "_")
    for old in folder.glob(f"{stem}-*.whl"):
        old.unlink()
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--check-build-dependencies")
    environment.pip("wheel", *options, "--wheel-dir", folder, distribution.path)
    (wheel,) = folder.glob(f"{stem}-*.whl")
    record.write_text(json.dumps({"wheel": wheel.name, "hashes": hashes}, indent=1))
    return wheel


def install_wheels(environment: Environment, chosen: Sequence[Distribution]) -> None:
    """Build and install those of our distributions whose sources changed."""
    hashes = {d.name: d.file_hashes() for d in chosen}
    stamps = {name: combined(files) for name, files in hashes.items()}
    changed = [d for d in chosen if not environment.has(d, stamps[d.name])]
    if not changed:
        return
    wheels = {d.name: build(environment, d, hashes[d.name]) for d in chosen}
    print(f"Installing {', '.join(d.name for d in changed)}", flush=True)
    ours = [wheels[d.name] for d in changed]
    environment.pip("install", "--quiet", "--no-deps", "--force-reinstall", *ours)
    environment.pip("install", "--quiet", *wheels.values())  # what they need
    for distribution in changed:
        environment.stamp(distribution.name, stamps[distribution.name])


def install_editable(environment: Environment) -> None:
    """All of our distributions as editable installs; the meta-package has nothing to edit."""
    arguments: list[str] = []
    for distribution in DISTRIBUTIONS:
        arguments += ["--editable"] * bool(distribution.package) + [str(distribution.path)]
    print("Installing our distributions as editables; again after a change to C++", flush=True)
    environment.pip("install", "--quiet", "--no-build-isolation", *arguments)
    for distribution in DISTRIBUTIONS:
        environment.stamp(distribution.name, EDITABLE)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=Path(".venv"))
    parser.add_argument("--torch", default="torch>=2.11,<3", help="requirement, or 'none'")
    parser.add_argument("--with", dest="extras", action="append", default=[])
    parser.add_argument("--only", action="append", help="only this one of our distributions")
    parser.add_argument("--editable", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Check the machine, then bring the environment up to date."""
    arguments = parse()
    environment = Environment(ROOT / arguments.venv)
    found = problems(ROOT, needs_disk=not environment.is_made())
    if found:
        sys.exit("This machine is not ready:\n  " + "\n  ".join(found))
    environment.create()
    environment.install_requirements("build")
    if arguments.torch != "none":
        environment.install_torch(arguments.torch)
    if arguments.editable:
        install_editable(environment)
    else:
        chosen = [d for d in DISTRIBUTIONS if not arguments.only or d.name in arguments.only]
        install_wheels(environment, chosen)
    for kind in arguments.extras:
        environment.install_requirements(kind)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\nInterrupted; run it again to go on.", file=sys.stderr)
        sys.exit(130)
