# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Read a plugin's manifest, and find it without importing the plugin."""

from __future__ import annotations

import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenspeed_sdk.contracts.manifest import CONTRACTS, ContractNumber, Manifest, Provision

from tokenspeed.plugins.errors import ManifestError, did_you_mean

_REINSTALL = "reinstall {0}, or remove it: pip uninstall {0}"
_PACK = "; if it is yours, declare the file as package data, or your build leaves it out"
_AUTHORS = "report it to the authors of {0}, or remove it: pip uninstall {0}"


def find_manifest(value: str, distribution: str) -> Path:
    """The file that an entry point value "package:file" names.

    All search locations of the package count: an editable install may keep its compiled part and
    its sources in different folders.
    """
    where = f'entry point "{value}" of {distribution}'
    package, _, file = value.partition(":")
    top, *inner = package.strip().split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError) as error:
        raise ManifestError(
            f"package {top} cannot be looked up: {error}",
            where=where,
            fix=_REINSTALL.format(distribution),
        ) from error
    if spec is None or not spec.submodule_search_locations:
        raise ManifestError(
            f"there is no package {top} on the import path",
            where=where,
            fix=_REINSTALL.format(distribution),
        )
    places = [Path(location, *inner) for location in spec.submodule_search_locations]
    for place in places:
        if (place / file.strip()).is_file():
            return place / file.strip()
    raise ManifestError(
        f"no file {file} in {', '.join(map(str, places))}",
        where=where,
        fix=_REINSTALL.format(distribution) + _PACK,
    )


def read_manifest(path: Path, distribution: str) -> Manifest:
    """Parse and check a manifest. ManifestError names the file and the field."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        _only_keys(table, {"id", "provides"})
        provides = tuple(_read_provision(entry) for entry in table.get("provides", []))
        return Manifest(_text(table, "id"), provides)
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ManifestError(
            f"the plugin manifest of {distribution} is not valid: {error}",
            where=str(path),
            fix=_AUTHORS.format(distribution),
        ) from error


def _read_provision(table: Any) -> Provision:
    if not isinstance(table, dict):
        raise ValueError(f"[[provides]] must hold tables, not {table!r}")
    _only_keys(table, {"contract", "number", "name", "claims"})
    contract = _text(table, "contract")
    if contract not in CONTRACTS:
        hint = did_you_mean(contract, CONTRACTS)
        raise ValueError(f'there is no contract "{contract}"; {hint}')
    claims = table.get("claims", [])
    if not isinstance(claims, list) or not all(isinstance(claim, str) for claim in claims):
        raise ValueError(f"claims must be a list of strings, not {claims!r}")
    number = ContractNumber.parse(_text(table, "number"))
    return Provision(contract, number, _text(table, "name"), tuple(claims))


def _text(table: dict[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} must be a string that is not empty, not {value!r}")
    return value


def _only_keys(table: dict[str, Any], known: set[str]) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f'unknown key "{key}"; {did_you_mean(key, known)}')
