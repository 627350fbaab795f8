# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The native library, and what it exports beside its kernels: instruction sets and threads.

The library has threads of its own and links no OpenMP, so it does not matter whether torch, which
brings a libgomp, is loaded before or after it.
"""

from __future__ import annotations

import ctypes
from functools import cache

from tokenspeed_sdk.native import Library, LibraryError, find_library, open_library

PACKAGE = "tokenspeed_cpu"
FILE = "libtokenspeed_cpu.so"

ARCH = {"v4_vnni": "x86-64-v4", "v4": "x86-64-v4", "v3": "x86-64-v3", "v2": "x86-64-v2"}
"""Instruction sets of the library by the name that people know; others keep their own."""


@cache
def load() -> Library:
    """The library, checked. LibraryError says what is wrong and what to do."""
    library = open_library(find_library(PACKAGE, FILE))
    functions = library.handle
    functions.tokenspeed_cpu_isa.restype = ctypes.c_char_p
    functions.tokenspeed_cpu_isa_name.restype = ctypes.c_char_p
    functions.tokenspeed_cpu_use_isa.argtypes = [ctypes.c_char_p]
    functions.tokenspeed_cpu_set_threads.restype = None
    if not functions.tokenspeed_cpu_isa():
        raise LibraryError(
            f"{library.path} has no kernels that this CPU can run; build it on this machine"
        )
    return library


def isa() -> str:
    """Name of the instruction set in use, such as "v4"."""
    name: bytes = load().handle.tokenspeed_cpu_isa()
    return name.decode()


def arch() -> str:
    """The instruction set in use as people know it, such as "x86-64-v4"."""
    return ARCH.get(isa(), isa())


def isas() -> tuple[str, ...]:
    """All instruction sets of the library, best first, whether this CPU runs them or not."""
    names: list[str] = []
    while name := load().handle.tokenspeed_cpu_isa_name(len(names)):
        names.append(name.decode())
    return tuple(names)


def use_isa(name: str) -> bool:
    """Switch all kernels to one instruction set; False if this CPU cannot run it. For tests."""
    status: int = load().handle.tokenspeed_cpu_use_isa(name.encode())
    return status == 0


def set_threads(threads: int) -> None:
    """How many threads a kernel call may use, its caller included."""
    load().handle.tokenspeed_cpu_set_threads(threads)
