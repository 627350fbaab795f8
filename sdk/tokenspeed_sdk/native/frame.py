# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The memory of one call: a ts_invocation and all that it points to, wired once and used again."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from tokenspeed_sdk.contracts.kernel import CallSite
from tokenspeed_sdk.contracts.platform import HOST_MEMORY
from tokenspeed_sdk.native import abi
from tokenspeed_sdk.native.host import host
from tokenspeed_sdk.native.sites import NativeSite, write_value
from tokenspeed_sdk.ops import Op
from tokenspeed_sdk.ops.op import Parameter

TEXT_BYTES = 1024
_NUMBER_KINDS = {int: abi.INT, float: abi.REAL}


class Frame:
    """An invocation of one kernel at one site. One call at a time may use it.

    Attributes:
        address: of the ts_invocation.
    """

    def __init__(self, op: Op, site: CallSite, native: NativeSite, kernel: abi.Kernel) -> None:
        self._native = native  # keeps alive what the call points to
        tensors = tensors_of(op)
        required = leading_required(tensors)
        count = len(tensors) + (op.result is not None)
        self._storage = (abi.Tensor * count)()
        self._pointers = (ctypes.c_void_p * count)()
        self._scalars = _scalars(op, site)
        self._error = ctypes.create_string_buffer(TEXT_BYTES)
        self._call = self._wire_call()
        invocation = abi.fresh(abi.Invocation)
        invocation.host = ctypes.pointer(host(HOST_MEMORY not in site.device.features))
        invocation.run, invocation.is_long = kernel.run, kernel.is_long
        invocation.call = ctypes.pointer(self._call)
        invocation.storage, invocation.pointers = self._storage, self._pointers
        invocation.numbers = self._scalars
        invocation.num_required = required
        invocation.num_optional = len(tensors) - required
        invocation.num_numbers = len(op.parameters) - len(tensors)
        self._invocation = invocation
        self.address = ctypes.addressof(invocation)

    def _wire_call(self) -> abi.Call:
        call = abi.fresh(abi.Call)
        call.site = ctypes.pointer(self._native.struct)
        call.tensors = self._pointers
        call.num_tensors = len(self._pointers)
        call.scalars = self._scalars
        call.num_scalars = len(self._scalars)
        call.threads = self._native.struct.units
        call.error = text_into(self._error)
        return call

    def error(self) -> str:
        """What the kernel wrote."""
        return read_text(self._error)


def tensors_of(op: Op) -> list[Parameter]:
    """The arguments that are tensors."""
    return [parameter for parameter in op.parameters if not parameter.number]


def leading_required(tensors: Sequence[Parameter]) -> int:
    """How many tensors stand before the first optional one: those that the border itself refuses
    None for. Those behind it that are required, it cannot tell."""
    optional = [place for place, tensor in enumerate(tensors) if tensor.optional]
    return optional[0] if optional else len(tensors)


def _scalars(op: Op, site: CallSite) -> ctypes.Array[abi.Value]:
    """The numbers of a call, whose kinds are set, and the op's keyword traits."""
    numbers = [parameter.number for parameter in op.parameters if parameter.number]
    scalars = (abi.Value * (len(numbers) + len(op.keywords)))()
    for target, number in zip(scalars, numbers, strict=False):
        target.kind = _NUMBER_KINDS[number]
    for target, name in zip(scalars[len(numbers) :], op.keywords, strict=True):
        write_value(target, site.traits[name])
    return scalars


def text_into(buffer: ctypes.Array[ctypes.c_char]) -> abi.Text:
    """A ts_text over a buffer, which the caller keeps."""
    return abi.Text(ctypes.addressof(buffer), len(buffer))


def read_text(buffer: ctypes.Array[ctypes.c_char]) -> str:
    """What was written to a buffer."""
    buffer[len(buffer) - 1] = b"\0"
    return buffer.value.decode(errors="replace")


def failure(status: int, what: str, text: str) -> Exception:
    """The exception that a status stands for."""
    kind = {abi.INVALID: ValueError, abi.NO_MEMORY: MemoryError}.get(status, RuntimeError)
    return kind(f"{what}: {text or 'failed without a text'} (status {status})")
