# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What libraries are given of this process: functions of the interpreter and of torch.

Torch describes a tensor through the C interface that DLPack defines for it: a DLTensor whose shape
and strides point into the tensor itself.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

from tokenspeed_sdk.native import abi


class _Exchange(ctypes.Structure):
    """DLPackExchangeAPI of DLPack 1.3."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("from_object", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("describe", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    )


@cache
def host(streams: bool) -> abi.Host:
    """The functions, for calls that need the current stream or do not. RuntimeError: old torch."""
    functions = abi.fresh(abi.Host)
    functions.tensor_type = id(torch.Tensor)
    functions.none = id(None)
    functions.tuple_item = _interpreter("PyTuple_GetItem")
    functions.is_instance = _interpreter("PyObject_IsInstance")
    functions.as_double = _interpreter("PyFloat_AsDouble")
    functions.as_integer = _interpreter("PyLong_AsLongLong")
    functions.error = _interpreter("PyErr_Occurred")
    functions.release_lock = _interpreter("PyEval_SaveThread")
    functions.take_lock = _interpreter("PyEval_RestoreThread")
    functions.describe = _exchange().describe
    functions.stream = _exchange().current_stream if streams else None
    return functions


def describe(tensor: torch.Tensor) -> abi.Tensor:
    """A tensor as a library sees it; good while the tensor lives unchanged."""
    described = abi.Tensor()
    prototype = ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.c_void_p)  # raises torch's errors
    prototype(_exchange().describe)(tensor, ctypes.addressof(described))
    return described


def current_stream(tensor: abi.Tensor) -> int | None:
    """Handle of the current stream of a tensor's device."""
    handle = ctypes.c_void_p()
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)
    function = prototype(_exchange().current_stream)
    function(tensor.device_type, tensor.device_id, ctypes.addressof(handle))
    return handle.value


def torch_dtype(dtype: abi.DType) -> torch.dtype:
    """The torch dtype of a DLPack one. ValueError: none of ours."""
    found = _DTYPES.get((dtype.code, dtype.bits))
    if found is None or dtype.lanes != 1:
        raise ValueError(
            f"DLPack dtype code {dtype.code}, {dtype.bits} bits, {dtype.lanes} lanes is unknown"
        )
    return found


_DTYPES = {
    (0, 8): torch.int8,
    (0, 16): torch.int16,
    (0, 32): torch.int32,
    (0, 64): torch.int64,
    (1, 8): torch.uint8,
    (2, 16): torch.float16,
    (2, 32): torch.float32,
    (2, 64): torch.float64,
    (4, 16): torch.bfloat16,
    (6, 8): torch.bool,
    (10, 8): torch.float8_e4m3fn,
}


def _interpreter(name: str) -> Any:
    """Address of a function of the interpreter."""
    return ctypes.cast(ctypes.pythonapi[name], ctypes.c_void_p).value


@cache
def _exchange() -> _Exchange:
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        raise RuntimeError(
            f"torch {torch.__version__} has no DLPack exchange API, by which tensors reach native "
            "kernels; install torch 2.11 or newer"
        )
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    exchange = _Exchange.from_address(pointer(capsule, b"dlpack_exchange_api"))
    if exchange.major != 1:
        raise RuntimeError(
            f"torch {torch.__version__} speaks DLPack {exchange.major}.{exchange.minor}; "
            "this sdk speaks 1"
        )
    return exchange
