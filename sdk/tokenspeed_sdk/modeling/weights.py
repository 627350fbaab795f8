# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which checkpoint tensor fills which part of which parameter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from tokenspeed_sdk.modeling.weight_formats import WeightFormat


class WeightError(ValueError):
    """A checkpoint and a model that do not fit; names tensors and parameters."""


@dataclass(frozen=True)
class Slice:
    """Rows [start, start + rows) of a parameter."""

    parameter: str
    start: int
    rows: int


@dataclass
class WeightMap:
    """All parameters of a model, and where each part of them comes from.

    The map holds the parameters: drop it before ``prepare``, so that plain weights are freed as
    they are packed.

    Attributes:
        ignored: regular expressions of checkpoint tensors that the model does not need; each must
            match a whole name.
        parameters: parameter name -> the tensor to fill.
        slices: checkpoint tensor name -> the part that it fills.
        ties: name of a tied tensor -> name of the one whose content it shares.
        scales: name of a parameter of codes -> their scales; see ``add_coded``.
        formats: the same -> what codes and scales are.
        defaults: parameter name -> what it holds where the checkpoint has no tensor for it.
        unneeded: checkpoint tensors that a layer knows and does not read.
    """

    ignored: Sequence[str] = ()
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    slices: dict[str, Slice] = field(default_factory=dict)
    ties: dict[str, str] = field(default_factory=dict)
    scales: dict[str, torch.Tensor] = field(default_factory=dict)
    formats: dict[str, WeightFormat] = field(default_factory=dict)
    unneeded: set[str] = field(default_factory=set)
    defaults: dict[str, float] = field(default_factory=dict)

    def add(
        self,
        name: str,
        parameter: torch.Tensor,
        sources: Mapping[str, int] | None = None,
        *,
        default: float | None = None,
    ) -> None:
        """Add a parameter.

        Args:
            name: its name; also the checkpoint tensor that fills it when ``sources`` is None.
            parameter: at least rank 1.
            sources: checkpoint tensor name -> rows, for one that several tensors fill in order.
            default: what it holds if the checkpoint has no such tensor; None: it must have one.
                Only for a parameter without ``sources``.

        Raises:
            WeightError: the name or a source is in the map already, or the rows do not add up.
        """
        rows = parameter.shape[0]
        sources = {name: rows} if sources is None else sources
        if name in self.parameters:
            raise WeightError(f"parameter {name!r} is mapped twice; give each layer its own name")
        if sum(sources.values()) != rows:
            raise WeightError(f"parameter {name!r} has {rows} rows; its sources have {sources}")
        self.parameters[name] = parameter
        if default is not None:
            self.defaults[name] = default
        start = 0
        for source, count in sources.items():
            if source in self.slices:
                raise WeightError(
                    f"checkpoint tensor {source!r} fills {self.slices[source].parameter!r} and "
                    f"{name!r}; tie the parameters instead"
                )
            self.slices[source] = Slice(name, start, count)
            start += count

    def add_coded(
        self,
        name: str,
        codes: torch.Tensor,
        scale: torch.Tensor,
        format: WeightFormat,
        sources: Mapping[str, int] | None = None,
    ) -> None:
        """Add a weight of codes, filled by codes and scales or by floating weights.

        Args:
            name: of the codes; their scales are the parameter ``name`` + "_scale".
            codes, scale: [N, K] and the scales, as ``format`` makes them.
            sources: as in ``add``.

        Raises:
            WeightError: as ``add``.
        """
        self.add(name, codes, sources)
        self.parameters[f"{name}_scale"] = scale
        self.scales[name] = scale
        self.formats[name] = format

    def tie(self, name: str, to: str) -> None:
        """State that tensor ``name`` is the same as ``to``: either fills the parameter.

        Raises:
            WeightError: nothing is filled by ``to``, or ``name`` fills a parameter of its own.
        """
        if to not in self.slices or name in self.slices:
            raise WeightError(
                f"{name!r} cannot be tied to {to!r}: add the parameter that {to!r} fills first, "
                f"and none for {name!r}"
            )
        self.ties[name] = to

    def target(self, source: str) -> torch.Tensor:
        """The part of a parameter that a checkpoint tensor fills, as a view."""
        part = self.slices[source]
        return self.parameters[part.parameter].narrow(0, part.start, part.rows)

    def ignores(self, name: str) -> bool:
        """Whether a checkpoint tensor is known not to matter."""
        matches = (re.fullmatch(pattern, name) for pattern in self.ignored)
        return name in self.unneeded or any(matches)
