# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What is said of a library that is missing, does not load or does not fit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenspeed_sdk.native import LibraryError, find_library, native_kernels, open_library
from tokenspeed_sdk.native.kernel import load_kernels

pytestmark = pytest.mark.rule("R15")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An import package of two folders, as an editable install has it."""
    (tmp_path / "acme_kernels").mkdir()
    (tmp_path / "second").mkdir()
    init = f"__path__.append({str(tmp_path / 'second')!r})\n"
    (tmp_path / "acme_kernels" / "__init__.py").write_text(init)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_kernels", raising=False)
    return tmp_path


def test_one_line_makes_a_provider(package: Path, compiled: Callable[..., Path]) -> None:
    provider = native_kernels("acme_kernels", "libacme.so")
    with pytest.raises(LibraryError, match=r"libacme\.so is not in .*acme_kernels"):
        provider()
    __import__("acme_kernels")  # an entry point has imported it
    (package / "second" / "libacme.so").write_bytes(compiled().read_bytes())
    found = find_library("acme_kernels", "libacme.so")
    assert found == package / "second" / "libacme.so"
    assert [f"{kernel.op}:{kernel.name}" for kernel in provider()] == [
        "silu_and_mul@1:c",
        "linear@1:c",
        "attention_decode@1:c",
        "gather_rows@1:c",
        "rope_kv_write@1:c",
    ]


def test_a_package_that_is_not_there() -> None:
    with pytest.raises(LibraryError, match="package no_such_package, which is not installed"):
        find_library("no_such_package", "libacme.so")


@pytest.mark.rule("R6")
def test_a_file_that_is_no_library_keeps_the_loaders_words(tmp_path: Path) -> None:
    broken = tmp_path / "libbroken.so"
    broken.write_text("not a library, and longer than any header of one" * 9)
    with pytest.raises(LibraryError, match="dynamic loader refuses") as caught:
        open_library(broken)
    assert isinstance(caught.value.__cause__, OSError)
    assert str(caught.value.__cause__) in str(caught.value)


@pytest.mark.rule("R6")
def test_an_undefined_symbol_is_named(compiled: Callable[..., Path]) -> None:
    with pytest.raises(LibraryError, match="undefined symbol: not_defined_anywhere"):
        open_library(compiled("-DUNDEFINED"))


def test_no_table(compiled: Callable[..., Path]) -> None:
    with pytest.raises(LibraryError, match=r"exports no ts_library_table .*undefined symbol"):
        open_library(compiled("-DNO_SYMBOL"))
    with pytest.raises(LibraryError, match="returned no table"):
        open_library(compiled("-DNO_TABLE"))


@pytest.mark.parametrize(
    ("version", "says", "fix"),
    [("0x10001", r"1\.1", "upgrade"), ("0x20000", r"2\.0", "upgrade"), ("0x9", r"0\.9", "rebuild")],
)
def test_another_version_names_both(
    compiled: Callable[..., Path], version: str, says: str, fix: str
) -> None:
    pattern = rf"speaks kernel ABI {says} .*\d+ bytes.*speaks 1\.0 \(\d+ bytes\): {fix}"
    with pytest.raises(LibraryError, match=pattern):
        open_library(compiled(f"-DLIBRARY_ABI={version}"))


def test_fields_behind_the_stated_size_are_zero(compiled: Callable[..., Path]) -> None:
    """As if the header that the library was built with ended before ``is_long`` and ``pack``."""
    short = open_library(compiled("-DKERNEL_SIZE=offsetof(ts_kernel, is_long)"))
    assert [kernel.pack for kernel in short.kernels] == [None] * len(short.kernels)
    assert not load_kernels(short)[1].packs
    whole = open_library(compiled())
    assert whole.kernels[1].pack
    with pytest.raises(LibraryError, match=r"kernel 0 of .* has no run"):
        open_library(compiled("-DKERNEL_SIZE=offsetof(ts_kernel, run)"))


def test_an_op_that_this_sdk_does_not_know(compiled: Callable[..., Path]) -> None:
    library = open_library(compiled('-DOP="tea@1"'))
    with pytest.raises(LibraryError, match=r"kernel c of tea@1, which is no op of this sdk"):
        load_kernels(library)


def test_tags_are_kept_for_reports(compiled: Callable[..., Path]) -> None:
    tags = open_library(compiled()).tags
    assert tags["cuda"] == "99.9"
    assert "compiler" in tags
    assert "torch" not in tags
