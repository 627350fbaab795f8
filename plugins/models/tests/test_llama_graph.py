# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The graph of Llama over a mesh, and the manifest that announces it."""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points
from importlib.resources import files

from tokenspeed_models.llama import EntryClass
from tokenspeed_sdk.modeling import BuildContext, Graph, Mesh
from tokenspeed_sdk.modeling.causal_lm import INPUTS, OUTPUT
from tokenspeed_sdk.modeling.compiler import CollectiveLayer, compile_graph
from tokenspeed_sdk.ops import ReferenceResolver
from tokenspeed_sdk.testing.model_runner import plain_device

LAYERS = 3
CONFIG = {
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
}


def test_two_collectives_per_layer() -> None:
    context = BuildContext(ReferenceResolver(), plain_device(), "cpu", "float32", 8, 4)
    model = EntryClass.build(EntryClass.read_config(CONFIG), context)
    graph = Graph(INPUTS, OUTPUT, steps=list(model.program.steps))
    program = compile_graph(graph, Mesh(size=2), lambda _: lambda value: value)
    inserted = [step.layer for step in program.steps if isinstance(step.layer, CollectiveLayer)]
    assert [str(layer.collective) for layer in inserted] == ["all_reduce"] * (2 * LAYERS)


def test_manifest_claims_what_the_classes_serve() -> None:
    text = files("tokenspeed_models").joinpath("tokenspeed_plugin.toml").read_text()
    provisions = tomllib.loads(text)["provides"]
    assert {p["name"] for p in provisions} == {"llama", "qwen3"}
    for provision in provisions:
        (point,) = entry_points(group="tokenspeed.model", name=provision["name"])
        assert tuple(provision["claims"]) == point.load().EntryClass.architectures
