# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""From a graph to a program: checks, collectives, and names resolved to places in a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tokenspeed_sdk.modeling.context import Mesh
from tokenspeed_sdk.modeling.graph import Graph, Step
from tokenspeed_sdk.modeling.layer import Layer
from tokenspeed_sdk.modeling.placement import (
    Collective,
    Placement,
    Replicate,
    collective_between,
)

CollectiveFactory: TypeAlias = Callable[[Collective], Callable[[Any], Any]]
"""Makes the function that takes a value through a collective."""


class GraphError(ValueError):
    """A graph that cannot run; names the layer and the value."""


class CollectiveLayer(Layer):
    """A collective that the compiler put between two layers."""

    def __init__(
        self,
        name: str,
        collective: Collective,
        source: Placement,
        target: Placement,
        call: Callable[[Any], Any],
    ) -> None:
        super().__init__(name, (source,), (target,))
        self.collective = collective
        self._call = call

    def run(self, value: Any) -> Any:
        return self._call(value)


@dataclass(frozen=True)
class Program:
    """Steps that run in order on a list of values.

    Attributes:
        steps: the graph's steps with the collectives between them, for people and tests.
    """

    steps: tuple[Step, ...]
    _calls: tuple[_Call, ...]
    _size: int
    _output: int
    _taps: tuple[int, ...]

    def run(self, *inputs: Any) -> Any:
        """The output of the graph for its inputs, in the order in which the graph names them."""
        return self.run_tapped(*inputs)[0]

    def run_tapped(self, *inputs: Any) -> tuple[Any, tuple[Any, ...]]:
        """The same, and the graph's taps."""
        values: list[Any] = [None] * self._size
        values[: len(inputs)] = inputs
        for run, reads, write, more, dead in self._calls:
            result = run(*[values[place] for place in reads])
            if more is None:
                values[write] = result
            else:
                for place, value in zip(more, result, strict=True):
                    values[place] = value
            for place in dead:
                values[place] = None
        return values[self._output], tuple(values[place] for place in self._taps)

    def lines(self) -> list[str]:
        """One line per step: layer, values read, values written with their placement."""
        return [
            f"{step.layer.name}: {', '.join(step.reads)} -> "
            + ", ".join(
                f"{value} {placement}"
                for value, placement in zip(step.writes, step.layer.gives, strict=True)
            )
            for step in self.steps
        ]


_Call: TypeAlias = tuple[
    Callable[..., Any], tuple[int, ...], int, tuple[int, ...] | None, tuple[int, ...]
]
"""Function, places read, the one place written, or several, and places nobody reads again."""


def compile_graph(
    graph: Graph, mesh: Mesh, collectives: CollectiveFactory | None = None
) -> Program:
    """Check a graph, put collectives where placements differ, and make it ready to run.

    On one rank every placement is the whole value, so nothing is inserted.

    Raises:
        GraphError: a value is read before it is written, a layer gets or gives another number of
            values than it states, two layers share a name, no collective leads from the placement
            of a value to the wanted one, or one is needed and ``collectives`` is None.
    """
    _check_form(graph)
    steps = graph.steps if mesh.size == 1 else _place(graph, collectives)
    return _resolve(graph, steps)


def _check_form(graph: Graph) -> None:
    written = set(graph.inputs)
    names: dict[str, Layer] = {}
    for step in graph.steps:
        layer = step.layer
        if names.setdefault(layer.name, layer) is not layer:
            raise GraphError(f"two layers are named {layer.name!r}; give each a name of its own")
        for what, values, placements in (
            ("reads", step.reads, layer.takes),
            ("writes", step.writes, layer.gives),
        ):
            if len(values) != len(placements):
                raise GraphError(
                    f"layer {layer.name!r} {what} {len(placements)} values; "
                    f"the graph names {len(values)}: {list(values)}"
                )
        if not step.writes or len(set(step.writes)) != len(step.writes):
            raise GraphError(
                f"layer {layer.name!r} must write at least one value, each once; "
                f"the graph names {list(step.writes)}"
            )
        _check_written(step.reads, written, f"layer {layer.name!r}")
        written.update(step.writes)
    _check_written((graph.output, *graph.taps), written, "the end of the graph")


def _check_written(reads: Sequence[str], written: set[str], reader: str) -> None:
    for value in reads:
        if value not in written:
            raise GraphError(
                f"{reader} reads {value!r}, which no earlier step writes; "
                f"there are {sorted(written)}"
            )


def _place(graph: Graph, collectives: CollectiveFactory | None) -> list[Step]:
    """The steps with a collective before each reader that wants a value placed otherwise."""
    placed: dict[str, Placement] = {name: Replicate() for name in graph.inputs}
    steps: list[Step] = []

    def want(value: str, target: Placement, reader: str) -> None:
        source = placed[value]
        try:
            collective = collective_between(source, target)
        except ValueError as error:
            raise GraphError(f"{reader} wants {value!r} as {target}: {error}") from error
        if collective is None:
            return
        if collectives is None:
            raise GraphError(
                f"{reader} needs {collective} of {value!r}, and there is no collective backend; "
                f"run on one rank"
            )
        name = f"{reader}.{value}.{collective}"
        call = collectives(collective)
        layer = CollectiveLayer(name, collective, source, target, call)
        steps.append(Step(layer, (value,), (value,)))
        placed[value] = target

    for step in graph.steps:
        for value, target in zip(step.reads, step.layer.takes, strict=True):
            want(value, target, step.layer.name)
        steps.append(step)
        placed.update(zip(step.writes, step.layer.gives, strict=True))
    want(graph.output, graph.output_placement, "output")
    for tap in graph.taps:
        want(tap, Replicate(), "output")
    return steps


def _resolve(graph: Graph, steps: Sequence[Step]) -> Program:
    places = {name: place for place, name in enumerate(graph.inputs)}
    for step in steps:
        for name in step.writes:
            places.setdefault(name, len(places))
    dead = _last_reads(graph, steps)
    calls = tuple(
        (
            step.layer.run,
            tuple(places[name] for name in step.reads),
            places[step.writes[0]],
            tuple(places[name] for name in step.writes) if len(step.writes) > 1 else None,
            tuple(places[name] for name in names),
        )
        for step, names in zip(steps, dead, strict=True)
    )
    taps = tuple(places[name] for name in graph.taps)
    return Program(tuple(steps), calls, len(places), places[graph.output], taps)


def _last_reads(graph: Graph, steps: Sequence[Step]) -> list[tuple[str, ...]]:
    """Per step, the values whose content nobody reads after it: their memory is let go there."""
    alive = {graph.output, *graph.taps}
    dead: list[tuple[str, ...]] = []
    for step in reversed(steps):
        touched = dict.fromkeys((*step.reads, *step.writes))
        dead.append(tuple(name for name in touched if name not in alive))
        alive.difference_update(step.writes)
        alive.update(step.reads)
    return dead[::-1]
