# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The check of an observer's methods: hooks, written as in the contract, and nothing else."""

from __future__ import annotations

import inspect
from difflib import get_close_matches

from tokenspeed_sdk.contracts.observer import HOOKS, ObserverFactory, ObserverHooks

_CLOSE = "close"
_LAZY = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def check_hooks(factory: ObserverFactory) -> None:
    """Every public method is a hook that takes ``event``, or ``close()``; there is a hook."""
    observer = factory()
    problems: list[str] = []
    found = 0
    for name in dir(observer):
        written = inspect.getattr_static(observer, name, None)
        expected = name in HOOKS or name == _CLOSE
        if name.startswith("_") or not (expected or inspect.isroutine(written)):
            continue
        if written is vars(ObserverHooks).get(name):
            problems.append(f"{name} is inherited from ObserverHooks: write those that you want")
            continue
        found += name in HOOKS
        problems += _problems(name, written, observer)
    if not found:
        problems.append(f"it has no hook; write one of {', '.join(HOOKS)}")
    if callable(close := getattr(observer, _CLOSE, None)) and not problems:
        close()
    assert not problems, "\n".join([f"{type(observer).__name__}:", *problems])


def _problems(name: str, written: object, observer: object) -> list[str]:
    """What is wrong with one public method, or with what has the name of one."""
    if name not in HOOKS and name != _CLOSE:
        near = get_close_matches(name, HOOKS, 1)
        hint = f"did you mean {near[0]}?" if near else "begin the names of helpers with _"
        return [f"{name} is a public method but no hook; {hint}"]
    if not inspect.isroutine(written):
        return [f"{name} is no method but a {type(written).__name__}; write it with def"]
    method = getattr(observer, name)
    problems = []
    if any(lazy(method) for lazy in _LAZY):
        problems.append(f"{name} is async or a generator: a call runs none of it")
    if name in getattr(observer, "__dict__", ()):
        problems.append(f"{name} is no method of its class")
    wanted = [] if name == _CLOSE else ["event"]
    signature = inspect.signature(method)
    given = signature.parameters.values()
    by_position = all(each.kind is each.POSITIONAL_OR_KEYWORD for each in given)
    if [each.name for each in given] != wanted or not by_position:
        problems.append(f"{name}{signature} must be {name}({', '.join(wanted)})")
    return problems
