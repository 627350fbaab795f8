# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Find a plugin's shared library, open it, and check that it speaks our version of the ABI."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tokenspeed_sdk.native import abi


class LibraryError(RuntimeError):
    """A native library is missing, cannot be opened, or does not fit this sdk."""


@dataclass(frozen=True)
class Library:
    """An opened library whose table fits. It is never closed: code of it may run at any time.

    Attributes:
        path: where it is.
        handle: for what else it exports.
        invoke: address of the function that calls any of its kernels.
        kernels: the kernels of its table.
        tags: what it says that it was built with, such as {"compiler": "13.2.0"}.
    """

    path: Path
    handle: ctypes.CDLL
    invoke: int
    kernels: tuple[abi.Kernel, ...]
    tags: dict[str, str]


def find_library(package: str, file: str) -> Path:
    """The library in any of the package's folders: an editable install may have several.

    Opens nothing.

    Raises:
        LibraryError: it is in none; names them all.
    """
    spec = find_spec(package)
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    looked = ", ".join(map(str, folders)) or f"package {package}, which is not installed"
    raise LibraryError(f"{file} is not in {looked}; build and install the wheel that holds it")


def open_library(path: Path) -> Library:
    """Open a library, after the host compared the tags of its manifest.

    Raises:
        LibraryError: the dynamic loader refuses it (its message is kept), it exports no table, or
            the table is of another version; both versions are named.
    """
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryError(f"the dynamic loader refuses {path}: {error}") from error
    try:
        export = handle[abi.SYMBOL]
    except AttributeError as error:
        raise LibraryError(
            f"{path} exports no {abi.SYMBOL} ({error}); is it built with tokenspeed/kernel.h?"
        ) from error
    export.restype = ctypes.c_void_p
    address: int | None = export()
    if address is None:
        raise LibraryError(f"{abi.SYMBOL} of {path} returned no table")
    table = _checked(abi.LibraryTable, address, path, "its table")
    if not table.invoke:
        raise LibraryError(f"the table of {path} names no ts_invoke")
    kernels = tuple(_read_kernel(table, index, path) for index in range(table.num_kernels))
    return Library(path, handle, table.invoke, kernels, _tags(table))


def _read_kernel(table: abi.LibraryTable, index: int, path: Path) -> abi.Kernel:
    address: int | None = table.kernels[index]
    if address is None:
        raise LibraryError(f"kernel {index} of {path} is a null pointer")
    kernel = _checked(abi.Kernel, address, path, f"kernel {index}")
    for field in ("op", "name", "accept", "run"):
        if not getattr(kernel, field):
            raise LibraryError(f"kernel {index} of {path} has no {field}")
    return kernel


def _checked(struct: type[abi.Struct], address: int, path: Path, what: str) -> abi.Struct:
    """Read a struct of ours or of an older minor."""
    size, version = (ctypes.c_uint32 * 2).from_address(address)
    built = abi.decode(version)
    if not abi.ABI.serves(built):
        newer = built > abi.ABI
        fix = "upgrade tokenspeed-sdk and tokenspeed-core" if newer else "rebuild the library"
        raise LibraryError(
            f"{path} speaks kernel ABI {built} ({what}: {size} bytes); this sdk speaks {abi.ABI} "
            f"({ctypes.sizeof(struct)} bytes): {fix}"
        )
    return abi.read(struct, address)


def _tags(table: abi.LibraryTable) -> dict[str, str]:
    values = {name: getattr(table, name) for name in ("compiler", "cxx", "cuda", "torch")}
    return {name: value.decode(errors="replace") for name, value in values.items() if value}
