# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The header in C and C++, and the ctypes that mirror it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenspeed_sdk.native import ABI, abi, include_dir, serves

STRICT = ("-Wall", "-Wextra", "-pedantic", "-Werror")
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "ts_text": abi.Text,
    "ts_dtype": abi.DType,
    "ts_value": abi.Value,
    "ts_trait": abi.Trait,
    "ts_site": abi.Site,
    "ts_verdict": abi.Verdict,
    "ts_call": abi.Call,
    "ts_pack": abi.Pack,
    "ts_host": abi.Host,
    "ts_invocation": abi.Invocation,
    "ts_kernel": abi.Kernel,
    "ts_library": abi.LibraryTable,
}


def fields_of(name: str, struct: type[ctypes.Structure]) -> list[str]:
    """Fields by their names in C."""
    return [f"{name}.{field[0].rstrip('_')}" for field in struct._fields_]


def test_every_struct_is_laid_out_alike(cc: str, tmp_path: Path) -> None:
    """``dtype`` of a tensor and its device are structs in C; they are checked by the header."""
    fields = [field for name, struct in STRUCTS.items() for field in fields_of(name, struct)]
    layout = " ".join(f"FIELD({field.replace('.', ', ')});" for field in fields)
    source = Path(__file__).with_name("layout.c")
    program = tmp_path / "layout"
    line = [cc, f"-I{include_dir()}", f"-DLAYOUT={layout}", str(source), "-o", str(program)]
    subprocess.run(line, check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    in_c = dict(line.split(" ", 1) for line in printed.splitlines())
    assert in_c.pop("ABI") == str(abi.encode(ABI))
    in_python = {}
    for name, struct in STRUCTS.items():
        for field, c_name in zip(struct._fields_, fields_of(name, struct), strict=True):
            place = getattr(struct, field[0])
            in_python[c_name] = f"{place.size} {place.offset}"
    assert in_c == in_python


@pytest.mark.parametrize("standard", ["c99", "c17", "c++11", "c++20"])
@pytest.mark.parametrize("dlpack", [False, True])
def test_compiles_without_a_warning(cc: str, tmp_path: Path, standard: str, dlpack: bool) -> None:
    compiler = shutil.which("c++") or shutil.which("g++") if "++" in standard else cc
    if compiler is None:
        pytest.skip("there is no C++ compiler on this machine")
    header = Path(torch.__file__).parent / "include" / "ATen" / "dlpack.h"
    include = f'#include "{header}"\n' if dlpack else ""
    wanted = "DLTensor" if dlpack else "ts_tensor"
    source = tmp_path / ("unit.cpp" if "++" in standard else "unit.c")
    source.write_text(
        f"{include}#include <tokenspeed/kernel.h>\n"
        f"int rank({wanted}* tensor) {{ ts_tensor* same = tensor; return (int)same->ndim; }}\n"
    )
    strict = STRICT if not dlpack or "++" not in standard else STRICT[:2]
    subprocess.run(
        [
            compiler,
            f"-std={standard}",
            *strict,
            f"-I{include_dir()}",
            "-c",
            source,
            "-o",
            "/dev/null",
        ],
        check=True,
    )


@pytest.mark.parametrize(
    ("tag", "fits"), [("1", True), ("1.0", True), ("1.1", False), ("2", False), ("0.9", False)]
)
def test_tags_of_a_manifest(tag: str, fits: bool) -> None:
    assert serves(tag) is fits


def test_a_tag_that_is_no_number() -> None:
    with pytest.raises(ValueError, match=r"MAJOR\.MINOR"):
        serves("one")


def test_a_build_finds_the_header_without_torch() -> None:
    code = (
        "import runpy, sys; runpy.run_module('tokenspeed_sdk.native', run_name='__main__');"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (Path(done.stdout.strip()) / "tokenspeed" / "kernel.h").is_file()
