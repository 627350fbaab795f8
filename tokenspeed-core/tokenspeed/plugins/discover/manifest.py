# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Read a plugin's manifest, and find it without importing the plugin."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenspeed_sdk.contracts.manifest import (
    CONTRACTS,
    MANIFEST,
    NEEDS,
    RESERVED,
    ContractNumber,
    Manifest,
    NativeLibrary,
    Provision,
)
from tokenspeed_sdk.native import serves

from tokenspeed.plugins.choose.lists import NONE
from tokenspeed.plugins.discover.claims import check_claims
from tokenspeed.plugins.discover.origin import complain, reinstall, upgrade
from tokenspeed.plugins.discover.toml import refuse_byte_order_mark
from tokenspeed.plugins.errors import ContractError, ManifestError, did_you_mean

UPGRADE_CORE = "pip install --upgrade tokenspeed-core"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PACK = "; if it is yours, declare the file as package data, or your build leaves it out"


def find_manifest(value: str, distribution: str) -> Path:
    """The file that an entry point value "package:file" names.

    All search locations of the package count: an editable install may keep its compiled part and
    its sources in different folders.
    """
    file = value.partition(":")[2].strip()
    places = package_folders(value, distribution)
    for place in places:
        if (place / file).is_file():
            return place / file
    raise ManifestError(
        f"no file {file} in {', '.join(map(str, places))}",
        where=f'entry point "{value}" of {distribution}',
        fix=_reinstall(distribution) + _PACK,
    )


def package_folders(value: str, distribution: str) -> list[Path]:
    """The folders of the package in an entry point value "package:file", without importing it."""
    where = f'entry point "{value}" of {distribution}'
    top, *inner = value.partition(":")[0].strip().split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError) as error:
        raise ManifestError(
            f"package {top} cannot be looked up: {error}",
            where=where,
            fix=_reinstall(distribution),
        ) from error
    if spec is None or not spec.submodule_search_locations:
        raise ManifestError(
            f"there is no package {top} on the import path",
            where=where,
            fix=_reinstall(distribution),
        )
    return [Path(location, *inner) for location in spec.submodule_search_locations]


def _reinstall(distribution: str) -> str:
    return f"{reinstall(distribution)}; or remove it: pip uninstall {distribution}"


def read_manifest(path: Path, distribution: str) -> Manifest:
    """Parse and check a manifest. ManifestError names the file and the field.

    ContractError: the file is of a format that this engine does not read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        refuse_byte_order_mark(text)
        table = tomllib.loads(text)
        _check_format(table, path, distribution)
        _only_keys(table, {"manifest", "id", "provides", "native"})
        provides = tuple(_read_provision(entry) for entry in _tables(table, "provides"))
        native = tuple(_read_native(entry) for entry in _tables(table, "native"))
        if not provides:
            raise ValueError("it provides nothing: there is no [[provides]]")
        _refuse_repeated(provides)
        return Manifest(_name(table, "id"), provides, native)
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ManifestError(
            f"the plugin manifest of {distribution} is not valid: {error}",
            where=str(path),
            fix=complain(distribution),
        ) from error


def _check_format(table: dict[str, Any], path: Path, distribution: str) -> None:
    """Before any other key is read: another format may give them another meaning."""
    number = ContractNumber.parse(_text(table, "manifest"))
    if not MANIFEST.serves(number):
        newer = upgrade(distribution) if number < MANIFEST else UPGRADE_CORE
        raise ContractError(
            f"the plugin manifest of {distribution} has format {number}; "
            f"this engine reads {MANIFEST}",
            where=str(path),
            fix=newer,
        )


def _read_provision(table: dict[str, Any]) -> Provision:
    _only_keys(table, {"contract", "number", "name", "claims", "devices", "needs"})
    contract = _text(table, "contract")
    if contract in RESERVED:
        raise ValueError(f'contract "{contract}" is reserved: no engine serves it yet')
    if contract not in CONTRACTS:
        hint = did_you_mean(contract, CONTRACTS)
        raise ValueError(f'there is no contract "{contract}"; {hint}')
    claims = _texts(table, "claims")
    check_claims(contract, claims)
    needs = _texts(table, "needs")
    for need in needs:
        if need not in NEEDS[contract]:
            hint = did_you_mean(need, NEEDS[contract])
            raise ValueError(f'{contract} plugins cannot need "{need}"; {hint}')
    return Provision(
        contract=contract,
        number=ContractNumber.parse(_text(table, "number")),
        name=_name(table, "name"),
        claims=claims,
        devices=_texts(table, "devices"),
        needs=needs,
    )


def _refuse_repeated(provides: tuple[Provision, ...]) -> None:
    """A plugin that holds a key twice is wrong by itself, not in conflict with another."""
    names = [f'{p.contract} "{p.name}"' for p in provides]
    claims = [f'{p.contract} claim "{claim}"' for p in provides for claim in p.claims]
    for key, times in Counter([*names, *claims]).items():
        if times > 1:
            raise ValueError(f"{key} stands there {times} times")


def _read_native(table: dict[str, Any]) -> NativeLibrary:
    _only_keys(table, {"file", "abi", "torch", "cuda", "cxx"})
    tags = {key: _text(table, key) for key in ("abi", "torch", "cuda", "cxx") if key in table}
    if "abi" in tags:
        serves(tags["abi"])  # ValueError unless it is a number; whether it fits is asked later
    return NativeLibrary(file=_text(table, "file"), **tags)


def _tables(table: dict[str, Any], key: str) -> list[dict[str, Any]]:
    tables = table.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(entry, dict) for entry in tables):
        raise ValueError(f"[[{key}]] must hold tables, not {tables!r}")
    return tables


def _texts(table: dict[str, Any], key: str) -> tuple[str, ...]:
    values = table.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{key} must be a list of strings, not {values!r}")
    if not all(value.isprintable() for value in values):
        raise ValueError(f"{key} holds a character that cannot be shown: {values!r}")
    return tuple(values)


def _text(table: dict[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} must be a string that is not empty, not {value!r}")
    if not value.isprintable():
        raise ValueError(f"{key} holds a character that cannot be shown: {value!r}")
    return value


def _name(table: dict[str, Any], key: str) -> str:
    """One that an operator can write in a list."""
    value = _text(table, key)
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"{key} must be ASCII letters, digits, '.', '_' and '-', the first a letter or digit; "
            f"not {value!r}"
        )
    if value == NONE:
        raise ValueError(f'{key} may not be "{NONE}": in --allow it means no plugin')
    return value


def _only_keys(table: dict[str, Any], known: set[str]) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f'unknown key "{key}"; {did_you_mean(key, known)}')
