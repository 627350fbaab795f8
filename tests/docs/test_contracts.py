# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Every contract, hook and op has a page with its exact signature, and a test that mentions it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import pytest
from distributions import ROOT
from rule_tests import test_files as tracked_test_files
from tokenspeed_sdk.contracts.manifest import CONTRACTS, MANIFEST, RESERVED
from tokenspeed_sdk.ops import OPS, Op

INDEX = (ROOT / "docs" / "contracts" / "index.md").read_text()
PAGES = {"manifest": MANIFEST, **CONTRACTS}
SECTIONS = (
    "exists",
    "What was left out",
    "How it may change",
    "Who has implemented it",
    "Reference",
)


def _module(contract: str) -> ModuleType:
    return importlib.import_module(f"tokenspeed_sdk.contracts.{contract}")


def _numbers(heading: str) -> dict[str, str]:
    """First two columns of the table below a piece of text."""
    table = INDEX[INDEX.index(heading) :].split("\n\n")[1]
    rows = [[cell.strip() for cell in row.split("|")[1:3]] for row in table.splitlines()[2:]]
    return {re.sub(r"\[(\w+)\].*", r"\1", name): number for name, number in rows}


def test_the_page_has_todays_numbers() -> None:
    assert _numbers("how it may change.") == {name: str(n) for name, n in PAGES.items()}
    assert _numbers("Names that are reserved") == {name: str(n) for name, n in RESERVED.items()}


@pytest.mark.parametrize("contract", PAGES)
def test_every_contract_has_its_page_with_all_sections(contract: str) -> None:
    page = (ROOT / "docs" / "contracts" / f"{contract}.md").read_text()
    assert f"# Contract `{contract}` {PAGES[contract]}\n" in page
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    for wanted in SECTIONS:
        assert any(wanted in heading for heading in headings), f"{contract}.md lacks {wanted}"


def _own(module: ModuleType, kind: Any) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if kind(value) and value.__module__ == module.__name__ and not name.startswith("_"):
            yield name, value


def _expected(name: str, function: Any) -> str:
    """The signature as a reader sees it: without ``self``, and without a slash at its end."""
    signature = inspect.signature(function)
    shown = [p for key, p in signature.parameters.items() if key not in ("self", "cls")]
    return name + str(signature.replace(parameters=shown)).replace(", /)", ")")


def _members(cls: type) -> Iterator[tuple[str, str]]:
    """Every public member that a class itself defines, and how it must be shown."""
    for name, member in vars(cls).items():
        if name.startswith("_") and name != "__call__":
            continue
        if isinstance(member, property):
            assert member.fget is not None
            yield name, f"{name}: {inspect.signature(member.fget).return_annotation}"
        elif isinstance(member, classmethod | staticmethod):
            yield name, _expected(name, member.__func__)
        elif inspect.isfunction(member):
            yield name, _expected(name, member)


def _documented() -> Iterator[tuple[str, str, str]]:
    """Page, full name and expected signature of all that the contracts define."""
    for contract in (*PAGES, "probe"):
        module = _module(contract)
        page = f"contracts/{'platform' if contract == 'probe' else contract}.html"
        for name, function in _own(module, inspect.isfunction):
            yield page, f"{module.__name__}.{name}", _expected(name, function)
        for name, cls in _own(module, inspect.isclass):
            for member, signature in _members(cls):
                if member != "__call__":  # the site leaves names with underscores out
                    yield page, f"{module.__name__}.{name}.{member}", signature


DOCUMENTED = [pytest.param(*entry, id=entry[1].split(".", 2)[2]) for entry in _documented()]


@pytest.mark.parametrize(("page", "name", "signature"), DOCUMENTED)
def test_the_page_shows_the_exact_signature(site, page: str, name: str, signature: str) -> None:
    assert site.signature(page, name) == site.without_layout(signature)


@pytest.mark.parametrize("contract", [*PAGES, "probe"])
def test_the_page_shows_every_field(site, contract: str) -> None:
    module = _module(contract)
    page = f"contracts/{'platform' if contract == 'probe' else contract}.html"
    for name, cls in _own(module, inspect.isclass):
        if not dataclasses.is_dataclass(cls):
            continue
        shown = site.signature(page, f"{module.__name__}.{name}")
        for field in dataclasses.fields(cls):
            wanted = site.without_layout(f"{field.name}: {field.type}")
            assert wanted in shown, f"{name} on {page} lacks {wanted}"


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_the_page_shows_every_op(site, op: Op) -> None:
    name = f"{op.reference.__module__}.{op.reference.__name__}"
    shown = site.signature("contracts/ops.html", name)
    for parameter in inspect.signature(op.reference).parameters:
        assert re.search(rf"\b{parameter}:", shown)
    [traits] = re.findall(
        rf"<h2[^>]*>{op.name}<.*?<p>(.*?)</p>", site.html("contracts/ops.html"), re.DOTALL
    )
    assert re.findall(r"<code>(\w+)</code>", traits) == [*op.traits, *op.keywords]


@cache
def _text_of_tests() -> str:
    kit = (ROOT / "sdk" / "tokenspeed_sdk" / "testing").rglob("*.py")
    own = [ROOT / name for name in tracked_test_files() if not name.startswith("tests/docs/")]
    helpers = [path.parent / "conftest.py" for path in own]
    files = {*own, *kit, *(path for path in helpers if path.is_file())}
    return "\n".join(path.read_text() for path in sorted(files))


@pytest.mark.parametrize(("page", "name", "signature"), DOCUMENTED)
def test_a_test_mentions_every_hook(page: str, name: str, signature: str) -> None:
    member = name.rpartition(".")[2]
    assert re.search(rf"\b{member}\b", _text_of_tests()), f"no test mentions {name}"
