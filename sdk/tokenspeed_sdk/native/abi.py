# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The structs of ``tokenspeed/kernel.h`` as ctypes, field by field, and which versions fit.

The header says what the fields mean. A test compiles it and compares sizes and offsets.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    Union,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import TypeVar

from tokenspeed_sdk.contracts.manifest import ContractNumber

ABI = ContractNumber(1, 0)
"""Version of the header that this sdk ships and speaks."""

SYMBOL = "ts_library_table"
OK, INVALID, NO_MEMORY, FAILED = range(4)
RAISED, MISFIT = -1, -2
NONE, INT, REAL, TEXT = range(4)


def serves(tag: str) -> bool:
    """Whether a library that a manifest tags with ``abi = tag`` can be loaded: "1" or "1.0".

    Raises:
        ValueError: the tag is no number.
    """
    return ABI.serves(ContractNumber.parse(tag if "." in tag else f"{tag}.0"))


def encode(number: ContractNumber) -> int:
    """A version as the structs hold it."""
    return number.major << 16 | number.minor


def decode(value: int) -> ContractNumber:
    """A version out of a struct."""
    return ContractNumber(value >> 16, value & 0xFFFF)


class Text(Structure):
    _fields_ = (("data", c_void_p), ("size", c_size_t))


class DType(Structure):
    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class Tensor(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("dtype", DType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class _As(Union):
    _fields_ = (("i", c_int64), ("f", c_double), ("s", c_char_p))


class Value(Structure):
    _fields_ = (("kind", c_int32), ("reserved", c_int32), ("as_", _As))


class Trait(Structure):
    _fields_ = (("name", c_char_p), ("value", Value))


class Site(Structure):
    _fields_ = (
        ("size", c_uint32),
        ("abi", c_uint32),
        ("op", c_char_p),
        ("dtype", c_char_p),
        ("device_type", c_char_p),
        ("arch", c_char_p),
        ("features", POINTER(c_char_p)),
        ("traits", POINTER(Trait)),
        ("num_features", c_int32),
        ("num_traits", c_int32),
        ("rows_min", c_int64),
        ("rows_max", c_int64),
        ("units", c_int32),
        ("reserved", c_int32),
    )


class Verdict(Structure):
    _fields_ = (
        ("size", c_uint32),
        ("abi", c_uint32),
        ("accepted", c_int32),
        ("score", c_int32),
        ("why", Text),
    )


class Call(Structure):
    _fields_ = (
        ("size", c_uint32),
        ("abi", c_uint32),
        ("site", POINTER(Site)),
        ("tensors", POINTER(c_void_p)),
        ("scalars", POINTER(Value)),
        ("num_tensors", c_int32),
        ("num_scalars", c_int32),
        ("stream", c_void_p),
        ("threads", c_int32),
        ("reserved", c_int32),
        ("error", Text),
    )


class Pack(Structure):
    _fields_ = (
        ("size", c_uint32),
        ("abi", c_uint32),
        ("site", POINTER(Site)),
        ("weight", POINTER(Tensor)),
        ("packed", POINTER(Tensor)),
        ("shape", c_int64 * 8),
        ("ndim", c_int32),
        ("dtype", DType),
        ("stream", c_void_p),
        ("threads", c_int32),
        ("reserved", c_int32),
        ("error", Text),
    )


class Host(Structure):
    _fields_ = (
        ("size", c_uint32),
        ("abi", c_uint32),
        ("tensor_type", c_void_p),
        ("none", c_void_p),
        ("tuple_item", c_void_p),
        ("is_instance", c_void_p),
        ("as_double", c_void_p),
        ("as_integer", c_void_p),
        ("error", c_void_p),
        ("release_lock", c_void_p),
        ("take_lock", c_void_p),
        ("describe", c_void_p),
        ("stream", c_void_p),
    )


class Invocation(Structure):
    _fields_ = (
        ("size", c_uint32),
        ("abi", c_uint32),
        ("host", POINTER(Host)),
        ("run", c_void_p),
        ("is_long", c_void_p),
        ("call", POINTER(Call)),
        ("storage", POINTER(Tensor)),
        ("pointers", POINTER(c_void_p)),
        ("numbers", POINTER(Value)),
        ("num_required", c_int32),
        ("num_optional", c_int32),
        ("num_numbers", c_int32),
        ("reserved", c_int32),
    )


class Kernel(Structure):
    _fields_ = (
        ("size", c_uint32),
        ("abi", c_uint32),
        ("op", c_char_p),
        ("name", c_char_p),
        ("accept", c_void_p),
        ("run", c_void_p),
        ("is_long", c_void_p),
        ("pack", c_void_p),
    )


class LibraryTable(Structure):
    _fields_ = (
        ("size", c_uint32),
        ("abi", c_uint32),
        ("compiler", c_char_p),
        ("cxx", c_char_p),
        ("cuda", c_char_p),
        ("torch", c_char_p),
        ("invoke", c_void_p),
        ("kernels", POINTER(c_void_p)),
        ("num_kernels", c_int32),
        ("reserved", c_int32),
    )


Struct = TypeVar("Struct", bound=Structure)


def read(struct: type[Struct], address: int) -> Struct:
    """A copy of a library's struct; fields behind the size that it states are zero."""
    copy = struct()
    stated = c_uint32.from_address(address).value
    ctypes.memmove(ctypes.addressof(copy), address, min(stated, ctypes.sizeof(struct)))
    return copy


def fresh(struct: type[Struct]) -> Struct:
    """A zeroed struct with its size and our version."""
    return struct(ctypes.sizeof(struct), encode(ABI))
