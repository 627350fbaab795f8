# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Kernels in a shared library, through ``tokenspeed/kernel.h``. Importing this imports no torch.

A wheel with such a library needs one line of Python, to which its entry point leads::

    kernels = native_kernels("acme_kernels", "libacme.so")

and its build finds the header with ``python -m tokenspeed_sdk.native``.
"""

from __future__ import annotations

from pathlib import Path

from tokenspeed_sdk.contracts.kernel import Kernel, KernelProvider
from tokenspeed_sdk.native.abi import ABI, serves
from tokenspeed_sdk.native.library import Library, LibraryError, find_library, open_library

__all__ = [
    "ABI",
    "Library",
    "LibraryError",
    "find_library",
    "include_dir",
    "native_kernels",
    "open_library",
    "serves",
]


def include_dir() -> Path:
    """The folder to give to a compiler: it holds ``tokenspeed/kernel.h``."""
    return Path(__file__).resolve().parent.parent / "include"


def native_kernels(package: str, file: str) -> KernelProvider:
    """What an entry point of the kernel contract names: opens the library when it is called.

    Args:
        package: the import package that holds the library.
        file: the library's name in one of the package's folders.

    Returns:
        The provider. It raises LibraryError: see ``find_library``, ``open_library`` and
        ``load_kernels``.
    """

    def provide() -> tuple[Kernel, ...]:
        from tokenspeed_sdk.native.kernel import load_kernels  # brings torch

        return load_kernels(open_library(find_library(package, file)))

    return provide
