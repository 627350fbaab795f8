# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a case is, the sizes that cases are generated for, and the inputs that they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tokenspeed_sdk.contracts.kernel import Trait

GUARD = 64
"""Elements of poison before and behind every piece of memory; keeps 64-byte alignment."""

NAN = float("nan")


@dataclass(frozen=True)
class Grid:
    """The sizes that cases are generated for. Cases mix them; not every pair becomes one.

    Attributes:
        rows: rows or tokens of a batch.
        most_rows: of one more case of each op whose rows are tokens; 0: none.
        widths: row widths: ``hidden``, and ``inter``.
        matrices: (n, k) of a linear.
        tables: (vocab, hidden) of an embedding.
        heads: (heads, kv_heads, head_dim).
        page_sizes: tokens in a page.
        windows: of attention; None for all keys.
        lengths: tokens of further rows of attention, beside those around a page's end.
        vocabs: of sampling.
    """

    rows: tuple[int, ...] = (0, 1, 3, 17, 130)
    widths: tuple[int, ...] = (16, 37, 576)
    matrices: tuple[tuple[int, int], ...] = ((16, 16), (49, 17), (130, 1025))
    tables: tuple[tuple[int, int], ...] = ((50, 32), (16, 5), (97, 576))
    heads: tuple[tuple[int, int, int], ...] = ((9, 3, 64), (4, 4, 16), (8, 1, 128))
    page_sizes: tuple[int, ...] = (16, 4)
    windows: tuple[int | None, ...] = (None, 9)
    lengths: tuple[int, ...] = (65, 300)
    vocabs: tuple[int, ...] = (1, 5, 1000, 5003)
    most_rows: int = 520


USUAL = Grid()
"""Seconds for all ops on a CPU."""

TINY = Grid(
    rows=(0, 1, 5),
    widths=(37, 200),
    matrices=((48, 80),),
    tables=((97, 72),),
    heads=((6, 2, 64), (2, 2, 16)),
    page_sizes=(16,),
    lengths=(70,),
    vocabs=(97,),
    most_rows=0,
)
"""For kernels that run under an interpreter or a simulator."""

LARGE = Grid(
    rows=(1, 33, 300),
    widths=(4096, 12288),
    matrices=((6144, 4096), (4096, 12288)),
    tables=((5000, 4096),),
    heads=((32, 8, 128), (9, 3, 64), (8, 4, 256)),
    page_sizes=(16, 64),
    windows=(None, 128),
    lengths=(1152, 4999, 20011),
    vocabs=(49152, 151936),
)
"""Sizes of real models, for hardware that is fast enough."""


class Inputs:
    """Random inputs of one case, in memory that shows who reads or writes what is not theirs.

    Attributes:
        device: where tensors are made.
        dtype: of the activations.
        scale: standard deviation of floating values.
    """

    def __init__(
        self, seed: int, dtype: torch.dtype, device: str = "cpu", scale: float = 1.0
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.scale = scale
        self._generator = torch.Generator().manual_seed(seed)

    def memory(self, *shape: int) -> torch.Tensor:
        """NaN, with more of it before and behind."""
        return self._guarded(shape, self.dtype, NAN)

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normal values around 0, contiguous and bare: to copy into memory."""
        values = torch.randn(shape, generator=self._generator) * self.scale
        return values.to(self.device, dtype or self.dtype)

    def normal(self, *shape: int, gap: int = 0, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normal values around 0. With a gap, NaN stands before and behind every last dimension,
        so that rows are further apart than they are wide, and begin at odd addresses."""
        return self.place(self.random(*shape, dtype=dtype), gap)

    def place(self, values: torch.Tensor, gap: int = 0) -> torch.Tensor:
        """The values in guarded memory, with a gap around every last dimension."""
        *outer, width = values.shape
        shape = (*outer, width + 2 * gap) if outer else (width,)
        fill = NAN if values.is_floating_point() else 0
        memory = self._guarded(shape, values.dtype, fill)
        inner = memory[..., gap : gap + width] if outer else memory
        inner.copy_(values)
        return inner

    def fused(self, tokens: int, *heads: int, head_dim: int) -> tuple[torch.Tensor, ...]:
        """Views [tokens, heads, head_dim] of one projection's output."""
        memory = self.memory(tokens, sum(heads), head_dim)
        memory.copy_(self.random(tokens, sum(heads), head_dim))
        return memory.split_with_sizes(list(heads), dim=1)

    def ints(self, values: Sequence[Any], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Given integers."""
        return self.place(torch.tensor(values, dtype=dtype, device=self.device))

    def integers(
        self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32, gap: int = 0
    ) -> torch.Tensor:
        """Random integers in [low, high)."""
        values = torch.randint(low, high, shape, generator=self._generator, dtype=dtype)
        return self.place(values.to(self.device), gap)

    def floats(self, values: Sequence[float]) -> torch.Tensor:
        """Given float32 values."""
        return self.place(torch.tensor(values, dtype=torch.float32, device=self.device))

    def order(self, count: int) -> list[int]:
        """0 to count - 1, shuffled."""
        order: list[int] = torch.randperm(count, generator=self._generator).tolist()
        return order

    def _guarded(self, shape: Sequence[int], dtype: torch.dtype, fill: float | int) -> torch.Tensor:
        count = torch.Size(shape).numel()
        memory = torch.full((count + 2 * GUARD,), fill, dtype=dtype, device=self.device)
        return memory[GUARD : GUARD + count].view(tuple(shape))


@dataclass(frozen=True)
class Call:
    """Arguments of one call.

    Attributes:
        args: as the op's reference takes them, the weight plain.
        free: (argument, index): what may hold anything afterwards; (2, 0) is page 0 of argument 2.
    """

    args: tuple[Any, ...]
    free: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Case:
    """One call of one op at one site.

    Attributes:
        name: unique among the cases of the op.
        op: "name@major".
        traits: what the site states.
        make: the arguments, from inputs whose seed is the case's own.
        rows: rows of the first argument. The site's range of rows is the engine's around it.
    """

    name: str
    op: str
    traits: Mapping[str, Trait]
    make: Callable[[Inputs], Call]
    rows: int = 1


@dataclass(frozen=True)
class Facts:
    """What a check must know of an op beside its reference.

    Attributes:
        bounds: dtype to the largest ||out - ref|| / ||ref||; empty where results must be equal.
        weight: position of the argument that ``pack_weight`` prepares.
        changed: positions of the arguments that change in place.
        exact: positions of changed ones that must be equal all the same: what is only copied.
        kept: positions of floating arguments that stay as they are for the float64 reference.
        any_dtype: no argument has the dtype of the site: one dtype is enough.
    """

    bounds: Mapping[str, float] = field(default_factory=dict)
    weight: int | None = None
    changed: tuple[int, ...] = ()
    exact: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    any_dtype: bool = False
