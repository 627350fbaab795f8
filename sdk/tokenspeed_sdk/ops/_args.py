# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Checks of op arguments, with errors that say what, where and what to pass instead."""

from __future__ import annotations

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FLOAT32 = (torch.float32,)
E4M3 = (torch.float8_e4m3fn,)
INT8 = (torch.int8,)
INT32 = (torch.int32,)
INT64 = (torch.int64,)


class Args:
    """The arguments of one call of one op.

    Dimensions are words, such as "T Hq D": a number must match exactly, a symbol binds at its first
    use and must agree from then on, "R+1" is a symbol bound before plus a number.
    """

    def __init__(self, op: str) -> None:
        self.op = op
        self.sizes: dict[str, int] = {}

    def fail(self, name: str, problem: str) -> None:
        """Raise the ValueError that names op and argument."""
        raise ValueError(f"{self.op}: argument {name} {problem}")

    def tensor(
        self, name: str, value: torch.Tensor, dims: str, dtypes: tuple[torch.dtype, ...]
    ) -> None:
        """Check shape, dtype and the unit last stride of one tensor."""
        if not isinstance(value, torch.Tensor):
            self.fail(name, f"must be a tensor [{dims}]; got {type(value).__name__}")
        if value.dtype not in dtypes:
            wanted = " or ".join(_short(dtype) for dtype in dtypes)
            self.fail(name, f"must have dtype {wanted}; got {_short(value.dtype)}")
        words = dims.split()
        if value.dim() != len(words) or not all(
            self._agrees(word, size) for word, size in zip(words, value.shape, strict=True)
        ):
            self.fail(name, f"must have shape [{self._wanted(words)}]; got {list(value.shape)}")
        if value.dim() and value.shape[-1] > 1 and value.stride(-1) != 1:
            self.fail(name, f"must have a unit last stride; got strides {value.stride()}")

    def same_dtype(self, **tensors: torch.Tensor) -> None:
        """Check that the tensors share the dtype of the first."""
        (first, reference), *others = tensors.items()
        for name, value in others:
            if value.dtype != reference.dtype:
                self.fail(
                    name,
                    f"must have the dtype of {first}, {_short(reference.dtype)}; "
                    f"got {_short(value.dtype)}",
                )

    def within(self, name: str, value: torch.Tensor, low: int, high: int) -> None:
        """Check that every element lies in [low, high). Reads the tensor."""
        if value.numel() and (int(value.min()) < low or int(value.max()) >= high):
            found = f"{int(value.min())}..{int(value.max())}"
            self.fail(name, f"must lie in [{low}, {high}); found values {found}")

    def _agrees(self, word: str, size: int) -> bool:
        if word.isdecimal():
            return int(word) == size
        symbol, plus, extra = word.partition("+")
        if plus:
            return self.sizes[symbol] + int(extra) == size
        return self.sizes.setdefault(symbol, size) == size

    def _wanted(self, words: list[str]) -> str:
        bound = ((word, self.sizes.get(word.partition("+")[0])) for word in words)
        return ", ".join(word if size is None else _with_size(word, size) for word, size in bound)


def compute_dtype(value: torch.Tensor) -> torch.dtype:
    """What a reference computes in: float64 for float64, else float32."""
    return torch.float64 if value.dtype == torch.float64 else torch.float32


def _with_size(word: str, size: int) -> str:
    extra = word.partition("+")[2]
    return f"{word}={size + int(extra or 0)}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
