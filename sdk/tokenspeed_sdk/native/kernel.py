# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A library's kernels under the kernel contract."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, empty

from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite
from tokenspeed_sdk.contracts.platform import HOST_MEMORY
from tokenspeed_sdk.contracts.probe import Accept, Decline, Verdict
from tokenspeed_sdk.native import abi
from tokenspeed_sdk.native.frame import (
    TEXT_BYTES,
    Frame,
    failure,
    leading_required,
    read_text,
    tensors_of,
    text_into,
)
from tokenspeed_sdk.native.host import current_stream, describe, torch_dtype
from tokenspeed_sdk.native.library import Library, LibraryError
from tokenspeed_sdk.native.sites import NativeSite
from tokenspeed_sdk.ops import OPS, Op


def load_kernels(library: Library) -> tuple[NativeKernel, ...]:
    """The kernels of an opened library, in its order.

    Raises:
        LibraryError: one is of an op that this sdk does not know.
    """
    return tuple(NativeKernel(library, entry) for entry in library.kernels)


class NativeKernel:
    """One kernel of a library.

    Attributes:
        op, name: as the kernel contract says.
        packs: whether it lays weights out anew.
    """

    def __init__(self, library: Library, entry: abi.Kernel) -> None:
        self.op: str = entry.op.decode()
        self.name: str = entry.name.decode()
        self.packs = entry.pack is not None
        if self.op not in OPS:
            raise LibraryError(
                f"{library.path} has a kernel {self.name} of {self.op}, which is no op of this "
                f"sdk; it has {', '.join(OPS)}"
            )
        self._library = library
        self._entry = entry
        self._accept = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(entry.accept)

    def __repr__(self) -> str:
        return f"NativeKernel({self.op}:{self.name} of {self._library.path})"

    def accept(self, site: CallSite) -> Verdict:
        """Ask the library."""
        if site.op != self.op:
            return Decline(f"computes {self.op}, not {site.op}")
        native = NativeSite(site)
        why = ctypes.create_string_buffer(TEXT_BYTES)
        verdict = abi.fresh(abi.Verdict)
        verdict.why = text_into(why)
        self._accept(ctypes.addressof(native.struct), ctypes.addressof(verdict))
        text = read_text(why) or f"{self._library.path.name} gave no reason"
        return Accept(verdict.score, text) if verdict.accepted else Decline(text)

    def bind(self, site: CallSite) -> BoundKernel:
        """Make it for a site. ValueError: the site does not state the op's traits."""
        OPS[self.op].check_site(site)
        return BoundNative(OPS[self.op], site, self._library, self._entry)

    def pack_weight(self, site: CallSite, weight: torch.Tensor) -> torch.Tensor:
        """The weight as the kernel wants it. Raises what ``pack_into`` raises."""
        if not self.packs:
            return weight
        shape, dtype = self.packed_layout(site, weight)
        try:
            packed = torch.zeros(shape, dtype=dtype, device=weight.device)
        except RuntimeError as error:  # torch has no type of its own for a host without memory
            answer = f"shape {shape} of {dtype}, for which there is no memory: {error}"
            raise MemoryError(self._bad_layout(answer)) from error
        self.pack_into(site, weight, packed)
        return packed

    def packed_layout(
        self, site: CallSite, weight: torch.Tensor
    ) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and dtype of a packed weight.

        Raises:
            ValueError: the library answers what is no layout.
            ValueError, MemoryError, RuntimeError: as ``pack_into``.
        """
        call = self._pack(site, weight, None)
        most = len(call.shape)
        if not 0 <= call.ndim <= most:
            answer = f"{call.ndim} dimensions; a layout has 0 to {most}"
            raise ValueError(self._bad_layout(answer))
        shape = tuple(call.shape[: call.ndim])
        if any(size < 0 for size in shape):
            raise ValueError(self._bad_layout(f"shape {shape}; sizes are 0 or more"))
        try:
            dtype = torch_dtype(call.dtype)
        except ValueError as error:
            raise ValueError(self._bad_layout(str(error))) from None
        return shape, dtype

    def _bad_layout(self, answer: str) -> str:
        return (
            f"{self.op}: {self.name} of {self._library.path} cannot pack: it answers {answer}; "
            "correct what its pack function says without memory"
        )

    def pack_into(self, site: CallSite, weight: torch.Tensor, packed: torch.Tensor) -> None:
        """Pack into zeroed, contiguous memory of the packed layout.

        Raises:
            ValueError, MemoryError, RuntimeError: the library says so, with its text.
        """
        self._pack(site, weight, packed)

    def _pack(self, site: CallSite, weight: torch.Tensor, packed: torch.Tensor | None) -> abi.Pack:
        plain = weight.detach()
        native, error = NativeSite(site), ctypes.create_string_buffer(TEXT_BYTES)
        call = abi.fresh(abi.Pack)
        call.site = ctypes.pointer(native.struct)
        described = describe(plain)
        call.weight = ctypes.pointer(described)
        if packed is not None:
            call.packed = ctypes.pointer(describe(packed))
        if HOST_MEMORY not in site.device.features:
            call.stream = current_stream(described)
        call.threads = site.device.units
        call.error = text_into(error)
        run = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._entry.pack)
        if status := run(ctypes.addressof(call)):
            raise failure(status, f"{self.op}: {self.name} cannot pack", read_text(error))
        return call


class BoundNative:
    """A native kernel for one site. Several threads may call it at once: each call has a frame."""

    def __init__(self, op: Op, site: CallSite, library: Library, entry: abi.Kernel) -> None:
        self._op = op
        self._site = site
        self._entry = entry
        self._traits = site.traits
        self._native = NativeSite(site)
        self._count = len(op.parameters)
        tensors = tensors_of(op)
        behind = range(leading_required(tensors), len(tensors))
        self._required_behind = [place for place in behind if not tensors[place].optional]
        self._result = op.result
        self._frames: list[Frame] = []
        prototype = ctypes.PYFUNCTYPE(
            ctypes.c_int, ctypes.c_void_p, ctypes.py_object, ctypes.py_object
        )
        self._invoke = prototype(library.invoke)

    def __call__(self, *args: Any) -> Tensor | None:
        """Call it with the op's arguments.

        Raises:
            TypeError: an argument is missing, or is no tensor where the op takes one.
            ValueError, MemoryError, RuntimeError: the kernel says so, with its text.
        """
        if len(args) != self._count:
            args = self._complete(args)
        if self._required_behind and any(args[place] is None for place in self._required_behind):
            raise self._misfit(args)
        out = None
        if self._result is not None:
            shape, dtype = self._result(self._traits, *args)
            out = empty(*shape, dtype=dtype, device=args[0].device)
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = Frame(self._op, self._site, self._native, self._entry)
        status = self._invoke(frame.address, args, out)
        if status:
            raise self._failure(status, frame, args)
        self._frames.append(frame)
        return out

    def _complete(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """With None for the optional tensors at the end that were left out."""
        left_out = self._op.parameters[len(args) :]
        if len(args) > self._count or not all(parameter.optional for parameter in left_out):
            raise self._misfit(args)
        return args + (None,) * len(left_out)

    def _failure(self, status: int, frame: Frame, args: tuple[Any, ...]) -> Exception:
        if status == abi.MISFIT:
            return self._misfit(args)
        return failure(status, f"{self._op.name}: {self._entry.name.decode()}", frame.error())

    def _misfit(self, args: tuple[Any, ...]) -> TypeError:
        wanted = ", ".join(parameter.name for parameter in self._op.parameters)
        given = ", ".join(type(value).__name__ for value in args)
        return TypeError(f"{self._op.name} takes ({wanted}); got ({given})")
