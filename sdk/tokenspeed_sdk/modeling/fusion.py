# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Runs of layers that one kernel can do, found in a graph and replaced by one layer each.

It stands between ``define`` and ``compile_graph``: model files name the plain layers, and what a
device can do in one launch is done so. A run is replaced where

- its steps follow each other and pass their values on as the pattern says;
- nobody behind it reads what it reads or passes on, but for the graph's inputs and its results;
- the resolver has a kernel for it, and no op of the run is pinned.

Only on one rank: on several, a collective may have to stand inside a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tokenspeed_sdk.modeling.context import BuildContext
from tokenspeed_sdk.modeling.graph import Graph, Step
from tokenspeed_sdk.modeling.layer import Layer
from tokenspeed_sdk.modeling.layers.activation import SiluAndMul
from tokenspeed_sdk.modeling.layers.attention import Attention
from tokenspeed_sdk.modeling.layers.fused import AddNormLinear, AddNormMlp, RopeAttention
from tokenspeed_sdk.modeling.layers.heads import SplitHeads
from tokenspeed_sdk.modeling.layers.linear import Linear
from tokenspeed_sdk.modeling.layers.norm import AddRMSNorm, RMSNorm
from tokenspeed_sdk.modeling.layers.rope import Rope

Value: TypeAlias = tuple[str, int]
"""A name in a graph and how often it was written: names are written again, values are not."""

Uses: TypeAlias = Sequence[tuple[list[Value], list[Value]]]
"""Values that each step reads and writes."""


INPUTS = ("positions", "rows")
"""Words in patterns that stand for the graph's inputs of these names."""


@dataclass(frozen=True)
class Pattern:
    """A run of layers.

    Attributes:
        parts: each layer with its values, "reads -> writes". Words are the pattern's own, one for
            each value, but for INPUTS.
        whole: the values that the one layer reads and writes.
        make: that layer from the context and the parts, or None: no kernel serves it.
    """

    parts: tuple[tuple[type[Layer], str], ...]
    whole: str
    make: Callable[..., Layer | None]


PATTERNS = (
    Pattern(
        parts=(
            (AddRMSNorm, "x residual -> normed sum"),
            (Linear, "normed -> gate_up"),
            (SiluAndMul, "gate_up -> inner"),
            (Linear, "inner -> out"),
        ),
        whole="x residual -> out sum",
        make=AddNormMlp.make,
    ),
    Pattern(
        parts=(
            (AddRMSNorm, "x residual -> normed sum"),
            (Linear, "normed -> gate_up"),
            (SiluAndMul, "gate_up -> out"),
        ),
        whole="x residual -> out sum",
        make=AddNormLinear.make,
    ),
    Pattern(
        parts=(
            (AddRMSNorm, "x residual -> normed sum"),
            (Linear, "normed -> out"),
        ),
        whole="x residual -> out sum",
        make=AddNormLinear.make,
    ),
    Pattern(
        parts=(
            (SplitHeads, "qkv -> q k v"),
            (RMSNorm, "q -> normed_q"),
            (RMSNorm, "k -> normed_k"),
            (Rope, "normed_q normed_k positions -> turned_q turned_k"),
            (Attention, "turned_q turned_k v rows -> out"),
        ),
        whole="qkv positions rows -> out",
        make=lambda context, split, q_norm, k_norm, rope, attention: RopeAttention.make(
            context, split, rope, attention, (q_norm, k_norm)
        ),
    ),
    Pattern(
        parts=(
            (SplitHeads, "qkv -> q k v"),
            (Rope, "q k positions -> turned_q turned_k"),
            (Attention, "turned_q turned_k v rows -> out"),
        ),
        whole="qkv positions rows -> out",
        make=RopeAttention.make,
    ),
)
"""In the order in which they are tried: longer runs first."""


def fuse(graph: Graph, context: BuildContext) -> Graph:
    """The graph with the runs replaced; the same graph if there is nothing to replace."""
    if context.mesh.size > 1:
        return graph
    uses = _uses(graph)
    last_reads = _last_reads(graph, uses)
    steps: list[Step] = []
    place = 0
    while place < len(graph.steps):
        step, count = graph.steps[place], 1
        for pattern in PATTERNS:
            run = range(place, place + len(pattern.parts))
            values = _match(pattern, graph, uses, run)
            if values is None or not _ends_there(pattern, values, last_reads, run.stop):
                continue
            layer = pattern.make(context, *(graph.steps[i].layer for i in run))
            if layer is not None:
                reads, writes = ([values[w][0] for w in words] for words in _words(pattern.whole))
                step, count = Step(layer, tuple(reads), tuple(writes)), len(run)
                break
        steps.append(step)
        place += count
    return replace(graph, steps=steps)


def _uses(graph: Graph) -> Uses:
    written: dict[str, int] = {}
    uses = []
    for step in graph.steps:
        reads = [(name, written.get(name, 0)) for name in step.reads]
        written.update({name: written.get(name, 0) + 1 for name in step.writes})
        uses.append((reads, [(name, written[name]) for name in step.writes]))
    return uses


def _last_reads(graph: Graph, uses: Uses) -> Mapping[Value, int]:
    """The last step that reads a value; the end of the graph counts as one more."""
    last = {value: place for place, (reads, _) in enumerate(uses) for value in reads}
    written = sum(name == graph.output for _, writes in uses for name, _ in writes)
    return last | {(graph.output, written): len(uses)}


def _match(
    pattern: Pattern,
    graph: Graph,
    uses: Uses,
    run: range,
) -> Mapping[str, Value] | None:
    """The value that each word of the pattern stands for; None if the steps are no such run."""
    if run.stop > len(uses):
        return None
    values: dict[str, Value] = {name: (name, 0) for name in INPUTS}
    for place, (kind, text) in zip(run, pattern.parts, strict=True):
        layer = graph.steps[place].layer
        if not isinstance(layer, kind) or type(layer).run is not kind.run:
            return None
        for words, found in zip(_words(text), uses[place], strict=True):
            if len(words) != len(found):
                return None
            if any(values.setdefault(w, v) != v for w, v in zip(words, found, strict=True)):
                return None
    return values if len(set(values.values())) == len(values) else None


def _ends_there(
    pattern: Pattern, values: Mapping[str, Value], last_reads: Mapping[Value, int], end: int
) -> bool:
    """Whether nobody reads the values behind the run, but for inputs and results, each of which
    has a name of its own."""
    results = _words(pattern.whole)[1]
    inner = values.keys() - {*INPUTS, *results}
    names = {values[word][0] for word in results}
    return len(names) == len(results) and all(last_reads.get(values[w], 0) < end for w in inner)


def _words(text: str) -> tuple[list[str], list[str]]:
    """What stands before and behind the arrow."""
    reads, _, writes = text.partition("->")
    return reads.split(), writes.split()
