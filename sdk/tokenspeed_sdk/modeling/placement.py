# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How a value lies over a parallel group, and what turns one placement into another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Replicate:
    """Every rank holds the whole value."""

    def __str__(self) -> str:
        return "replicate"


@dataclass(frozen=True)
class Shard:
    """Rank r holds the r-th of equal parts along dimension ``dim``."""

    dim: int

    def __str__(self) -> str:
        return f"shard({self.dim})"


@dataclass(frozen=True)
class Partial:
    """The value is the sum of what the ranks hold."""

    def __str__(self) -> str:
        return "partial(sum)"


Placement: TypeAlias = Replicate | Shard | Partial


@dataclass(frozen=True)
class Collective:
    """What a value goes through between two placements.

    Attributes:
        kind: "all_reduce", "all_gather", "reduce_scatter" or "slice" (local: keep the own part).
        dim: the dimension gathered, scattered or sliced; None for all_reduce.
    """

    kind: str
    dim: int | None = None

    def __str__(self) -> str:
        return self.kind if self.dim is None else f"{self.kind}({self.dim})"


def collective_between(source: Placement, target: Placement) -> Collective | None:
    """The collective that turns ``source`` into ``target``; None when they are equal.

    Raises:
        ValueError: there is none in one move, such as from one sharded dimension to another.
    """
    match source, target:
        case _ if source == target:
            return None
        case Partial(), Replicate():
            return Collective("all_reduce")
        case Partial(), Shard(dim):
            return Collective("reduce_scatter", dim)
        case Shard(dim), Replicate():
            return Collective("all_gather", dim)
        case Replicate(), Shard(dim):
            return Collective("slice", dim)
    raise ValueError(f"no single collective turns {source} into {target}")
