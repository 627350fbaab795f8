# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The native library: where it is, and how its functions are called.

The library talks plain C: each function takes a pointer to one struct of pointers, strides and
sizes (``csrc/abi.h``). A call packs that struct into bytes, so a bound kernel keeps no state
between calls and may run on several threads at once.

The library has threads of its own and links no OpenMP, so it does not matter whether torch, which
brings a libgomp, is loaded before or after it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Any

import tokenspeed_cpu

ABI_VERSION = 1
FILE = "libtokenspeed_cpu.so"

ARCH = {"v4": "x86-64-v4", "v3": "x86-64-v3", "v2": "x86-64-v2"}
"""Instruction sets of the library by the name that people know; others keep their own."""


class LibraryError(RuntimeError):
    """The native library is missing, of another version, or has nothing for this CPU."""


def candidates() -> Iterator[Path]:
    """Where the library may be. An editable install has it in another place than the sources."""
    for folder in tokenspeed_cpu.__path__:
        yield Path(folder) / FILE


@cache
def load() -> ctypes.CDLL:
    """The library, checked. LibraryError says what is wrong and what to do."""
    path = next((path for path in candidates() if path.exists()), None)
    if path is None:
        looked = ", ".join(str(path.parent) for path in candidates())
        raise LibraryError(
            f"{FILE} is not in {looked}; build it with 'pip install ./plugins/cpu', "
            "or install the wheel tokenspeed-cpu"
        )
    library = ctypes.CDLL(str(path))
    version = library.tokenspeed_cpu_abi_version()
    if version != ABI_VERSION:
        raise LibraryError(
            f"{path} has interface {version}, this package needs {ABI_VERSION}; rebuild it"
        )
    library.tokenspeed_cpu_isa.restype = ctypes.c_char_p
    library.tokenspeed_cpu_isa_name.restype = ctypes.c_char_p
    library.tokenspeed_cpu_use_isa.argtypes = [ctypes.c_char_p]
    library.tokenspeed_cpu_set_threads.restype = None
    if not library.tokenspeed_cpu_isa():
        raise LibraryError(f"{path} has no kernels that this CPU can run; build it on this machine")
    return library


def isa() -> str:
    """Name of the instruction set in use, such as "v4"."""
    name: bytes = load().tokenspeed_cpu_isa()
    return name.decode()


def arch() -> str:
    """The instruction set in use as people know it, such as "x86-64-v4"."""
    return ARCH.get(isa(), isa())


def isas() -> tuple[str, ...]:
    """All instruction sets of the library, best first, whether this CPU runs them or not."""
    names: list[str] = []
    while name := load().tokenspeed_cpu_isa_name(len(names)):
        names.append(name.decode())
    return tuple(names)


def use_isa(name: str) -> bool:
    """Switch all kernels to one instruction set; False if this CPU cannot run it. For tests."""
    status: int = load().tokenspeed_cpu_use_isa(name.encode())
    return status == 0


def set_threads(threads: int) -> None:
    """How many threads a kernel call may use, its caller included."""
    load().tokenspeed_cpu_set_threads(threads)


class Function:
    """One function of the library, as two callables that take the packed struct.

    Attributes:
        pack: lays the fields of the struct out as bytes.
        short: keeps the GIL; for calls that end before another thread could use it (100 us).
        long: releases it.
    """

    def __init__(self, name: str, layout: str) -> None:
        library = load()
        self.pack = Struct(layout).pack
        self.short = _typed(ctypes.PyDLL(library._name)[f"tokenspeed_cpu_{name}"])
        self.long = _typed(library[f"tokenspeed_cpu_{name}"])


def _typed(function: Any) -> Callable[[bytes], int]:
    function.argtypes = [ctypes.c_char_p]
    function.restype = ctypes.c_int
    typed: Callable[[bytes], int] = function
    return typed


def check(status: int) -> None:
    """Raise what a failed call means."""
    if status:
        raise MemoryError(f"a CPU kernel could not get memory for its scratch (status {status})")
