# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Read the fields of a parsed config.json, with errors that name field and value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class ConfigReader:
    """Typed access to one JSON object. ``null`` counts as absent; no default means required."""

    def __init__(self, config: Mapping[str, Any], where: str = "config.json") -> None:
        self._config = config
        self._where = where

    def size(self, key: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self._get(key, default, "a positive integer")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._error(key, "must be a positive integer", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._get(key, default, "a positive number")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self._error(key, "must be a positive number", value)
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self._get(key, default, "true or false")
        if not isinstance(value, bool):
            raise self._error(key, "must be true or false", value)
        return value

    def choice(self, key: str, allowed: Sequence[str], default: str | None = None) -> str:
        """One of the strings that the family supports."""
        value = self._get(key, default, f"one of {', '.join(allowed)}")
        if value not in allowed:
            raise self._error(key, f"must be one of {', '.join(allowed)}", value)
        return str(value)

    def section(self, key: str) -> Mapping[str, Any] | None:
        """A nested object, or None."""
        value = self._config.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self._error(key, "must be an object", value)
        return value

    def absent(self, key: str, why: str) -> None:
        """Refuse a field whose meaning would otherwise be lost."""
        if self._config.get(key) is not None:
            raise ValueError(f"{self._where}: {key} is not supported: {why}")

    def _get(self, key: str, default: Any, kind: str) -> Any:
        value = self._config.get(key)
        if value is not None:
            return value
        if default is None:
            raise ValueError(f"{self._where}: {key} is missing; state {kind}")
        return default

    def _error(self, key: str, rule: str, value: Any) -> ValueError:
        return ValueError(f"{self._where}: {key} {rule}; got {value!r}")
