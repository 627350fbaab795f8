# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Measured times of kernels, kept in a file from start to start.

    $XDG_CACHE_HOME/tokenspeed/kernels/<arch>-<digest>.json     (XDG_CACHE_HOME: ~/.cache)

One file for each device and toolchain, as ``about`` names them; in it, one entry for each shape
(op, dtype, traits, range of rows), and in that, one for each kernel in its version and code.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeAlias

import msgspec
from tokenspeed_sdk.contracts.kernel import CallSite, Kernel
from tokenspeed_sdk.contracts.platform import Capabilities

from tokenspeed.registry import by_rows

_log = logging.getLogger(__name__)

METHOD = "1"
"""Changes when other inputs or another way of measuring would give other times."""

COMPILERS = ("torch", "triton")
"""Distributions that change how fast one kernel of one version is."""


class Timing(msgspec.Struct, frozen=True, omit_defaults=True):
    """What measuring a kernel gave; neither field: it plans its steps, and is not measured.

    Attributes:
        us: microseconds of the op's example calls together.
        failed: what it raised instead.
    """

    us: float | None = None
    failed: str = ""


Times: TypeAlias = Mapping[str, Timing]
"""By ``kernel_key``."""


class _File(msgspec.Struct):
    about: dict[str, str]
    times: dict[str, dict[str, Timing]]


class TimingCache:
    """The file of one device and toolchain. Two processes may share it.

    Attributes:
        path: the file; it need not exist.
    """

    def __init__(self, about: Mapping[str, str], folder: Path | None = None) -> None:
        self._about = dict(about)
        digest = hashlib.sha256(msgspec.json.encode(self._about, order="sorted")).hexdigest()
        name = f"{about.get('arch', 'any')}-{digest[:16]}.json"
        self.path = (folder or cache_folder()) / name
        self._times = self._read()

    def get(self, shape: str) -> Times:
        """All that is known of a shape."""
        return self._times.get(shape, {})

    def put(self, shape: str, times: Times) -> None:
        """Add to what is known; if the file cannot be written, for this process alone."""
        self._times.setdefault(shape, {}).update(times)
        try:
            with self._locked():
                for other, found in self._read().items():  # what another process has added
                    self._times.setdefault(other, {}).update(found)
                self._times[shape].update(times)
                self._write()
        except OSError as error:
            _log.warning("measured times of kernels cannot be kept in %s: %s", self.path, error)

    def _read(self) -> dict[str, dict[str, Timing]]:
        try:
            found = msgspec.json.decode(self.path.read_bytes(), type=_File)
            if found.about == self._about:
                return found.times
            problem: object = "it is of another device or toolchain"
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            problem = error
        _log.warning(
            "%s is damaged (%s): kernels are measured again and it is rewritten", self.path, problem
        )
        return {}

    def _write(self) -> None:
        """In one move, so that no reader sees half of it."""
        text = msgspec.json.format(msgspec.json.encode(_File(self._about, self._times)))
        descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
            os.replace(name, self.path)
        except BaseException:
            os.unlink(name)
            raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def cache_folder() -> Path:
    """Where the files lie."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tokenspeed", "kernels")


def about(device: Capabilities) -> dict[str, str]:
    """The device and the toolchain, as the file names them."""
    return {
        "arch": device.arch,
        "device": device.product or device.device_type,
        "units": str(device.units),
        "toolchain": device.toolchain,
        "method": METHOD,
        **{name: _version(name) for name in COMPILERS},
    }


def shape_key(site: CallSite) -> str:
    """What times of a call site hold for: "linear@1 bfloat16 bias=False k=8 n=8 rows 2-4"."""
    traits = " ".join(f"{name}={value}" for name, value in sorted(site.traits.items()))
    return f"{site.op} {site.dtype} {traits} rows {by_rows.text(site.rows)}"


def kernel_key(kernel: Kernel, owner: str) -> str:
    """A kernel in its version, and in its code where that changes without one."""
    return f"{kernel.name} of {owner} ({_code(type(kernel).__module__.partition('.')[0])})"


@cache
def _code(package: str) -> str:
    """Digest of a package's Python files."""
    module = sys.modules.get(package)
    roots = [Path(root) for root in getattr(module, "__path__", ())]
    files = sorted(file for root in roots for file in root.rglob("*.py"))
    digest = hashlib.sha256()
    for file in files or filter(None, [getattr(module, "__file__", None)]):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()[:12]


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
