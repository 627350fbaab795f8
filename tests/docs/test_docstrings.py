# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What plugin authors may use is documented where it is defined."""

from __future__ import annotations

from collections.abc import Iterator

import griffe
import pytest
from distributions import ROOT

PACKAGES = ("contracts", "modeling", "ops", "testing")


def _load() -> griffe.Module:
    sdk = griffe.load("tokenspeed_sdk", search_paths=[ROOT / "sdk"])
    assert isinstance(sdk, griffe.Module)
    return sdk


SDK = _load()


def _public(package: str) -> Iterator[griffe.Object]:
    """What a package exports, or its modules define when it exports nothing."""
    module = SDK[package]
    exported = [module[str(name)] for name in module.exports or ()]
    inner = [] if exported and package != "contracts" else list(module.modules.values())
    defined = [
        member
        for submodule in inner
        for name, member in submodule.members.items()
        if not name.startswith("_") and not member.is_alias
    ]
    for entry in exported + defined:
        yield entry.final_target if isinstance(entry, griffe.Alias) else entry


PUBLIC = sorted({entry.path: entry for name in PACKAGES for entry in _public(name)}.items())


def test_there_is_something_to_look_at() -> None:
    assert len(PUBLIC) > 60


@pytest.mark.parametrize(("path", "entry"), PUBLIC, ids=[path for path, _ in PUBLIC])
def test_every_public_name_has_a_docstring(path: str, entry: griffe.Object) -> None:
    assert entry.docstring, f"{path} has no docstring"
    assert entry.docstring.value.strip()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_function_and_method_has_a_docstring(package: str) -> None:
    lacking = [
        method.path
        for entry in _public(package)
        if entry.is_class
        for name, method in entry.members.items()
        if method.is_function and not name.startswith("_") and not method.docstring
    ]
    assert not [path for path in lacking if not _is_of_a_documented_base(path)]


def _is_of_a_documented_base(path: str) -> bool:
    """Whether a method of the same name is documented in a class that this one inherits from."""
    owner, _, name = path.rpartition(".")
    entry = SDK[owner.removeprefix("tokenspeed_sdk.")]
    return any(name in base.members and base.members[name].docstring for base in entry.mro())
