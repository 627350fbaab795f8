# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Graphs that run, graphs that cannot, and where collectives go."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from tokenspeed_sdk.modeling.compiler import GraphError, compile_graph
from tokenspeed_sdk.modeling.context import Mesh
from tokenspeed_sdk.modeling.graph import Graph
from tokenspeed_sdk.modeling.layer import Layer
from tokenspeed_sdk.modeling.placement import (
    Collective,
    Partial,
    Placement,
    Replicate,
    Shard,
    collective_between,
)

ALL = (Replicate(),)
ONE_RANK = Mesh()


class Function(Layer):
    """Any function as a layer."""

    def __init__(
        self,
        name: str,
        call: Callable[..., Any],
        takes: tuple[Placement, ...] = ALL,
        gives: tuple[Placement, ...] = ALL,
    ) -> None:
        super().__init__(name, takes, gives)
        self.call = call

    def run(self, *values: Any, **_: Any) -> Any:
        return self.call(*values)


def test_names_are_rewritten_and_read_in_order() -> None:
    graph = Graph(inputs=("x", "y"), output="out")
    graph.add(Function("swap", lambda a, b: (b, a), ALL * 2, ALL * 2), ("x", "y"), ("x", "y"))
    graph.add(Function("minus", lambda a, b: a - b, ALL * 2), ("x", "y"), ("x",))
    graph.add(Function("double", lambda a: 2 * a), ("x",), ("out",))
    assert compile_graph(graph, ONE_RANK).run(3, 10) == 14


def test_a_value_is_let_go_after_its_last_reader() -> None:
    seen: list[bool] = []
    refs: list[weakref.ref[torch.Tensor]] = []

    def make(_: Any) -> torch.Tensor:
        value = torch.ones(2)
        refs.append(weakref.ref(value))
        return value

    graph = Graph(inputs=("x",), output="out")
    graph.add(Function("make", make), ("x",), ("big",))
    graph.add(Function("use", lambda big: float(big.sum())), ("big",), ("sum",))
    graph.add(
        Function("look", lambda s: (seen.append(refs[0]() is None), s)[1]), ("sum",), ("out",)
    )
    assert compile_graph(graph, ONE_RANK).run(0) == 2.0
    assert seen == [True]


def test_a_result_nobody_reads_is_let_go_too() -> None:
    graph = Graph(inputs=("x",), output="x")
    graph.add(Function("lost", lambda x: x + 1), ("x",), ("nobody",))
    program = compile_graph(graph, ONE_RANK)
    assert program.run(1) == 1
    assert program.run(2) == 2


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([("a", ("missing",), ("out",))], r"layer 'a' reads 'missing', .* there are \['x'\]"),
        ([("a", ("x",), ("y",))], r"the end of the graph reads 'out'"),
        ([("a", ("x", "x"), ("out",))], r"layer 'a' reads 1 values; the graph names 2"),
        ([("a", ("x",), ("out", "y"))], r"layer 'a' writes 1 values; the graph names 2"),
        ([("a", ("x",), ("y",)), ("a", ("y",), ("out",))], r"two layers are named 'a'"),
    ],
)
def test_malformed(steps: list[tuple[str, Any, Any]], message: str) -> None:
    graph = Graph(inputs=("x",), output="out")
    for name, reads, writes in steps:
        graph.add(Function(name, lambda x: x), reads, writes)
    with pytest.raises(GraphError, match=message):
        compile_graph(graph, ONE_RANK)


def test_a_layer_may_stand_in_two_steps() -> None:
    graph, double = Graph(inputs=("x",), output="x"), Function("double", lambda x: 2 * x)
    graph.add(double, ("x",), ("x",))
    graph.add(double, ("x",), ("x",))
    assert compile_graph(graph, ONE_RANK).run(1) == 4


@pytest.mark.parametrize(
    ("source", "target", "wanted"),
    [
        (Replicate(), Replicate(), None),
        (Shard(1), Shard(1), None),
        (Partial(), Replicate(), Collective("all_reduce")),
        (Partial(), Shard(0), Collective("reduce_scatter", 0)),
        (Shard(1), Replicate(), Collective("all_gather", 1)),
        (Replicate(), Shard(1), Collective("slice", 1)),
    ],
)
def test_collective_between(
    source: Placement, target: Placement, wanted: Collective | None
) -> None:
    assert collective_between(source, target) == wanted


def test_no_collective() -> None:
    with pytest.raises(ValueError, match=r"no single collective turns shard\(0\) into shard\(1\)"):
        collective_between(Shard(0), Shard(1))


def column_row(columns: torch.Tensor, rows: torch.Tensor) -> Graph:
    """x -> (x columns) rows, the inner features spread over the ranks."""
    graph = Graph(inputs=("x",), output="y")
    graph.add(Function("column", lambda x: x @ columns, ALL, (Shard(1),)), ("x",), ("inner",))
    graph.add(Function("row", lambda x: x @ rows, (Shard(1),), (Partial(),)), ("inner",), ("y",))
    return graph


def test_one_rank_inserts_nothing() -> None:
    program = compile_graph(column_row(torch.ones(2, 4), torch.ones(4, 3)), ONE_RANK)
    assert [step.layer.name for step in program.steps] == ["column", "row"]


def test_lines_say_where_values_lie() -> None:
    program = compile_graph(column_row(torch.ones(2, 4), torch.ones(4, 3)), Mesh(2), _identity)
    assert program.lines() == [
        "column: x -> inner shard(1)",
        "row: inner -> y partial(sum)",
        "output.y.all_reduce: y -> y replicate",
    ]


def test_needs_a_backend() -> None:
    with pytest.raises(GraphError, match=r"output needs all_reduce of 'y', .* run on one rank"):
        compile_graph(column_row(torch.ones(2, 4), torch.ones(4, 3)), Mesh(2))


def test_impossible_placement_names_the_reader() -> None:
    graph = Graph(inputs=("x",), output="x", output_placement=Partial())
    graph.add(Function("a", lambda x: x), ("x",), ("x",))
    with pytest.raises(GraphError, match=r"output wants 'x' as partial\(sum\)"):
        compile_graph(graph, Mesh(2), _identity)


def test_two_ranks_compute_what_one_does() -> None:
    """Ranks are threads here; their all_reduce meets at a barrier."""
    x, columns, rows = (torch.randn(s, dtype=torch.float64) for s in ((3, 2), (2, 4), (4, 5)))
    barrier, parts, results = Barrier(2), [torch.empty(0)] * 2, [torch.empty(0)] * 2

    def run(rank: int) -> None:
        def all_reduce(value: torch.Tensor) -> torch.Tensor:
            parts[rank] = value
            barrier.wait()
            return parts[0] + parts[1]

        graph = column_row(columns.chunk(2, 1)[rank], rows.chunk(2, 0)[rank])
        results[rank] = compile_graph(graph, Mesh(2, rank), lambda _: all_reduce).run(x)

    threads = [Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(results, [x @ columns @ rows] * 2)


def _identity(_: Collective) -> Callable[[Any], Any]:
    return lambda value: value
