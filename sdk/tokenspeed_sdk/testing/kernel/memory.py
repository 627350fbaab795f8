# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Who wrote where: memory that is watched, and fresh memory that is poisoned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tokenspeed_sdk.testing.kernel.cases.base import GUARD

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

UNINITIALISED = frozenset(
    {
        torch.empty,
        torch.empty_like,
        torch.empty_strided,
        torch.Tensor.new_empty,
        torch.Tensor.new_empty_strided,
    }
)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, so that NaN equals NaN."""
    return tensor.view(_BITS[tensor.element_size()])


def tensors_of(args: Iterable[Any]) -> list[torch.Tensor]:
    """The arguments that are tensors."""
    return [arg for arg in args if isinstance(arg, torch.Tensor)]


def address(tensor: torch.Tensor) -> int:
    """Where the storage of a tensor lies; 0 if it has none."""
    return tensor.untyped_storage().data_ptr()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor's storage, as integers: [elements]."""
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return bits(flat.set_(tensor.untyped_storage()))


class Watch:
    """Remembers the storages behind some tensors, to compare them."""

    def __init__(self, args: Sequence[Any]) -> None:
        storages = {address(tensor): whole(tensor) for tensor in tensors_of(args)}
        storages.pop(0, None)
        self._held = {where: (now, now.clone()) for where, now in storages.items()}

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in watched memory."""
        return address(tensor) in self._held

    def changed_outside(self, allowed: Iterable[torch.Tensor]) -> torch.Tensor | None:
        """The first watched storage that changed outside of ``allowed``, as a mask of elements."""
        views = list(allowed)
        for where, (now, before) in self._held.items():
            changed = now != before
            for view in views:
                if address(view) == where:
                    place = (view.shape, view.stride(), view.storage_offset())
                    changed.as_strided(*place).fill_(False)
            if bool(changed.any()):
                return changed
        return None


class FreshMemory(TorchFunctionMode):
    """What torch hands out uninitialised is poison: NaN, or the lowest integer.

    More of it stands before and behind, so that a write past the end shows, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: list[tuple[torch.Tensor, torch.Tensor, int]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        elsewhere = kwargs and (kwargs.get("out") is not None or kwargs.get("pin_memory"))
        if func not in UNINITIALISED or elsewhere:
            return made
        return self._poisoned(made)

    def overrun(self) -> bool:
        """Whether somebody wrote before or behind memory that was handed out."""
        return any(
            not memory[:GUARD].equal(guard) or not memory[GUARD + count :].equal(guard)
            for memory, guard, count in self._made
        )

    def _poisoned(self, made: torch.Tensor) -> torch.Tensor:
        """The same tensor in guarded memory."""
        count = made.untyped_storage().nbytes() // made.element_size()
        if made.layout != torch.strided or made.is_complex():
            return made
        memory = torch.full(
            (count + 2 * GUARD,), _poison(made.dtype), dtype=made.dtype, device=made.device
        )
        flat = bits(memory)
        self._made.append((flat, flat[:GUARD].clone(), count))
        return memory.as_strided(made.shape, made.stride(), GUARD)


def _poison(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point:
        return float("nan")
    return True if dtype == torch.bool else torch.iinfo(dtype).min
