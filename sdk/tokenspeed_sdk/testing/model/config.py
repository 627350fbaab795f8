# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Checks of how a model reads config.json: what it depends on is right, or refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenspeed_sdk.testing.model.oracle import Oracle

NONSENSE: tuple[Any, ...] = ("nonsense", -7)
"""Values that no field of a config may have."""


def check_architecture(oracle: Oracle, scratch: Path) -> None:
    """The entry serves the name that Transformers writes into config.json."""
    (written,) = oracle.config["architectures"]
    assert written in oracle.entry.architectures, (
        f"config.json says {written!r}, the entry serves {list(oracle.entry.architectures)}"
    )


def check_config_errors(oracle: Oracle, scratch: Path) -> None:
    """A nonsensical field is refused by a ValueError that names field and value, or is not read.

    A field that is absent is refused by name, or has a default. Reads every field of the
    config.json that Transformers wrote, and those of its nested objects.
    """
    read = oracle.entry.read_config
    plain = read(oracle.config)
    assert read(oracle.config) == plain, (
        "read_config must return what can be compared, such as a frozen dataclass"
    )
    problems: list[str] = []
    for path in _paths(oracle.config):
        for value in NONSENSE:
            problem = _judge(oracle, path, _with(oracle.config, path, value), repr(value), plain)
            problems += problem
        problems += _judge(oracle, path, _without(oracle.config, path), "", None)
    assert not problems, "\n".join(["read_config of nonsensical fields:", *problems])


def _judge(
    oracle: Oracle, path: tuple[str, ...], config: Mapping[str, Any], value: str, plain: Any
) -> list[str]:
    """What is wrong with how this config was taken; ``plain`` is what may come out of it."""
    field = path[-1]
    case = f"{'.'.join(path)} = {value}" if value else f"{'.'.join(path)} absent"
    try:
        found = oracle.entry.read_config(config)
    except ValueError as error:
        named = field in str(error) and value in str(error)
        return (
            [] if named else [f"{case}: the error does not name the field and the value: {error}"]
        )
    except Exception as error:  # any other type is what this check is for
        return [f"{case}: {type(error).__name__}, not a ValueError: {error}"]
    return [] if plain is None or found == plain else [f"{case}: it was accepted"]


def _paths(config: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, value in config.items():
        yield (name,)
        if isinstance(value, Mapping):
            yield from ((name, inner) for inner in value)


def _with(config: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    name, *inner = path
    return {**config, name: _with(config[name], tuple(inner), value) if inner else value}


def _without(config: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    name, *inner = path
    if inner:
        return {**config, name: _without(config[name], tuple(inner))}
    return {other: value for other, value in config.items() if other != name}
