# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What broken plugins are made of: code of each contract, and libraries that do not load."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from .sites import Plugin

OP = "silu_and_mul@1"
ARCHITECTURE = "AcmeForCausalLM"


def kernel(name: str, code: str = "", *, run: str = "return x", **fields: object) -> Plugin:
    """A plugin with a kernel of OP that no other kernel is worse than.

    Args:
        code: runs at import, before the kernel is defined.
        run: body of the kernel.
    """
    return Plugin(
        distribution=f"acme-{name}",
        contract="kernel",
        name=name,
        code=code + KERNEL.format(op=OP, name=name, run=run),
        **{"claims": (f"{OP}:{name}",), **fields},  # type: ignore[arg-type]
    )


KERNEL = """
from tokenspeed_sdk.contracts import Accept

class Kernel:
    op, name = "{op}", "{name}"

    def accept(self, site):
        return Accept(1, "takes any site")

    def bind(self, site):
        return run

    def pack_weight(self, site, weight):
        return weight

def run(x):
    {run}

def make():
    return (Kernel(),)
"""

OBSERVER = """
import time

class Observer:
    def {hook}(self, event):
        {run}

make = Observer
"""

PLATFORM = """
from tokenspeed_sdk.contracts import Accept, Decline

class Platform:
    name = "{name}"
    embedded = False

    def probe(self):
        {probe}

    def prepare(self, threads):
        pass

    def open(self, index=0):
        raise RuntimeError("no device to open")

make = Platform
"""

LIBRARY = """
[[native]]
file = "libacme.so"
"""


def native(name: str) -> Plugin:
    """A plugin whose kernels lie in a library."""
    package = f"acme_{name}"
    return Plugin(
        distribution=package.replace("_", "-"),
        contract="kernel",
        name=name,
        code=f"""
            from tokenspeed_sdk.native import native_kernels

            make = native_kernels("{package}", "libacme.so")
            """,
        claims=(f"{OP}:{name}",),
        native=LIBRARY,
    )


def observer(name: str, hook: str, run: str, **fields: object) -> Plugin:
    """A plugin whose observer has one hook."""
    code = OBSERVER.format(hook=hook, run=run)
    return Plugin(
        distribution=f"acme-{name}",
        contract="observer",
        name=name,
        code=code,
        **fields,  # type: ignore[arg-type]
    )


def platform(name: str, probe: str) -> Plugin:
    """A plugin whose platform answers with the body of ``probe``; its name is its distribution."""
    return Plugin(
        distribution=name,
        contract="platform",
        name=name,
        code=PLATFORM.format(name=name, probe=probe),
        claims=(name,),
    )


def model(name: str, code: str, architecture: str = ARCHITECTURE) -> Plugin:
    """A plugin whose model module is ``code``."""
    return Plugin(
        distribution=f"acme-{name}",
        contract="model",
        name=name,
        code=code,
        claims=(architecture,),
    )


def library(*sources: str) -> Callable[[Path], None]:
    """Builds libacme.so of a C file; with a second one, links it to a libfoo.so.9 that is gone."""

    def build(folder: Path) -> None:
        links = []
        if len(sources) > 1:
            _compile(sources[1], folder / "libfoo.so.9", "-Wl,-soname,libfoo.so.9")
            links = [str(folder / "libfoo.so.9")]
        _compile(sources[0], folder / "libacme.so", *links)
        (folder / "libfoo.so.9").unlink(missing_ok=True)

    return build


def no_library(folder: Path) -> None:
    """A file that would be an error of its own if anybody opened it."""
    (folder / "libacme.so").write_text("not a library")


def _compile(source: str, library: Path, *options: str) -> None:
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(library)]
    subprocess.run([*command, *options], input=source, text=True, check=True, timeout=180)
