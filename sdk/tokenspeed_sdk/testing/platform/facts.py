# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Checks of what a platform says: that asking is light, its names, its verdict, its device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import torch

from tokenspeed_sdk.contracts.platform import HOST_MEMORY, Capabilities
from tokenspeed_sdk.contracts.probe import Accept, Decline
from tokenspeed_sdk.testing.platform.subject import PlatformFactory, Subject, raised_by

PROBE_SECONDS = 1.0
"""Importing the platform's module and probing may take so long on a busy machine."""

_TRIES = 3
_MISSING = 4096

_CHILD = """
import json, sys, time
from importlib import import_module
from operator import attrgetter

def did(step):
    steps.append([step, "torch" in sys.modules])

steps = []
begin = time.perf_counter()
factory = attrgetter(sys.argv[2])(import_module(sys.argv[1]))
did("importing its module")
platform = factory()
did("making it")
verdict = platform.probe()
seconds = time.perf_counter() - begin
did("probe()")
if hasattr(verdict, "score"):
    platform.prepare(None)
    did("prepare()")
print(json.dumps({"seconds": seconds, "steps": steps}))
"""


def check_light(subject: Subject) -> None:
    """In a fresh process nothing up to ``prepare`` imports torch, and a probe is quick."""
    told = _in_a_fresh_process(subject.factory)
    for step, torch_is_there in told["steps"]:
        assert not torch_is_there, f"{step} imports torch; import it inside open()"
    for _ in range(_TRIES - 1):
        if told["seconds"] < PROBE_SECONDS:
            break
        told = _in_a_fresh_process(subject.factory)
    assert told["seconds"] < PROBE_SECONDS, (
        f"importing the module and probe() take {told['seconds']:.2f} s, more than "
        f"{PROBE_SECONDS:g} s; every start of the engine waits for them"
    )


def _in_a_fresh_process(factory: PlatformFactory) -> dict[str, Any]:
    """What the child tells of itself. AssertionError with its output if it fails."""
    module, name = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "<")
    assert "<" not in name, (
        f"{factory!r} cannot be imported by a name; pass what the entry point names"
    )
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, module, name],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{module}:{name} fails in a fresh process:\n{done.stderr}"
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def check_names(subject: Subject) -> None:
    """``name`` is a text and ``embedded`` a truth value."""
    name, embedded = subject.platform.name, subject.platform.embedded
    assert isinstance(name, str), f"name is {name!r}, not a str"
    assert name, "name is empty"
    assert isinstance(embedded, bool), f"embedded is {embedded!r}, not a bool"


def check_verdict(subject: Subject) -> None:
    """``probe`` returns an Accept or a Decline, with a reason."""
    verdict: object = subject.platform.probe()
    assert isinstance(verdict, Accept | Decline), f"probe() returns {verdict!r}, no Verdict"
    assert isinstance(verdict.why, str), f"why is {verdict.why!r}, not a str"
    assert verdict.why.strip(), f"probe() returns {verdict!r}: why is empty"
    if isinstance(verdict, Accept):
        assert isinstance(verdict.score, int), f"score is {verdict.score!r}, not an int"


def check_missing_index(subject: Subject) -> None:
    """``open`` with the index of no device is a RuntimeError with a text."""
    error = raised_by(lambda: subject.platform.open(_MISSING))
    assert error is not None, f"open({_MISSING}) opens a device; no machine has so many"
    assert isinstance(error, RuntimeError), f"open({_MISSING}): {error!r} is no RuntimeError"
    assert str(error).strip(), f"open({_MISSING}): {error!r} has no text"


def check_capabilities(subject: Subject) -> None:
    """Types, names that torch knows, and an agreement with ``torch_device``."""
    found, place = subject.device.capabilities, torch.device(subject.device.torch_device)
    assert isinstance(found, Capabilities), f"capabilities are {found!r}, no Capabilities"
    assert torch.device(found.device_type).type == place.type, (
        f"device_type is {found.device_type!r}, but torch_device is {str(place)!r}"
    )
    assert isinstance(found.arch, str), f"arch is {found.arch!r}, not a str"
    assert found.arch, "arch is empty"
    assert isinstance(found.dtypes, tuple), f"dtypes are {found.dtypes!r}, no tuple"
    assert found.dtypes, "dtypes are empty; the first is the default of a model"
    assert len(set(found.dtypes)) == len(found.dtypes), f"dtypes repeat one: {found.dtypes}"
    for name in found.dtypes:
        known = getattr(torch, name, None)
        assert isinstance(known, torch.dtype), f"dtypes have {name!r}, which is no dtype of torch"
    assert isinstance(found.features, frozenset), f"features are {found.features!r}, no frozenset"
    strange = [name for name in found.features if not isinstance(name, str)]
    assert not strange, f"features have {strange}, which are no str"
    assert isinstance(found.units, int), f"units are {found.units!r}, not an int"
    assert found.units > 0, f"units are {found.units}; there must be one"
    assert not subject.on_host or HOST_MEMORY in found.features, (
        f"tensors lie in host memory, but features lack {HOST_MEMORY!r}"
    )
    assert subject.device.capabilities == found, "capabilities change when read again"
