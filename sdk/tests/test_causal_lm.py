# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The base class: packing, and the order in which its methods may be called."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenspeed_sdk.contracts.kernel import Binding, CallSite
from tokenspeed_sdk.contracts.model import CacheGroup
from tokenspeed_sdk.modeling import CausalLM, Graph, Mesh, WeightError, load_weights
from tokenspeed_sdk.modeling.compiler import GraphError
from tokenspeed_sdk.modeling.layers import Embedding, Head, Linear, RowLinear
from tokenspeed_sdk.ops import ReferenceResolver
from tokenspeed_sdk.testing.model.runner import plain_context

VOCAB, HIDDEN = 7, 4


class Toy(CausalLM[Mapping[str, Any]]):
    """Embedding, one linear, tied head."""

    architectures = ("Toy",)

    @classmethod
    def read_config(cls, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return config

    @classmethod
    def cache_groups(cls, config: Mapping[str, Any]) -> tuple[CacheGroup, ...]:
        return ()

    def define(self, graph: Graph) -> Head:
        kind = RowLinear if self.config.get("spread") else Linear
        embed = Embedding(self.context, "embed", vocab=VOCAB, hidden=HIDDEN)
        graph.add(embed, ("token_ids",), ("x",))
        graph.add(kind(self.context, "linear", k=HIDDEN, n=HIDDEN), ("x",), ("hidden",))
        return Head(self.context, "head", vocab=VOCAB, hidden=HIDDEN, tied=embed)


class PackingResolver:
    """References behind a packing that transposes the weight of every linear."""

    def __init__(self) -> None:
        self.packed: list[str] = []

    def bind(self, site: CallSite) -> Binding:
        plain = ReferenceResolver().bind(site)
        if site.op != "linear@1":
            return plain

        def pack(weight: torch.Tensor) -> torch.Tensor:
            self.packed.append(site.layer)
            return weight.T.contiguous()

        def call(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
            return plain.call(x, weight.T.contiguous(), bias)

        return Binding("packing", call, pack)


def build(resolver: Any, mesh: Mesh | None = None, **config: bool) -> Toy:
    return Toy.build(config, plain_context(kernels=resolver, mesh=mesh or Mesh()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tensors = {
        "embed.weight": torch.randn(VOCAB, HIDDEN),
        "linear.weight": torch.randn(HIDDEN, HIDDEN),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def run(model: Toy, ids: torch.Tensor) -> torch.Tensor:
    return model.logits(model.program.run(ids, None, None))


def test_packing_changes_nothing_but_the_layout(folder: Path) -> None:
    resolver = PackingResolver()
    plain, packing = build(ReferenceResolver()), build(resolver)
    for model in (plain, packing):
        load_weights(model.weight_map(), folder)
        model.prepare()
    ids = torch.arange(VOCAB)
    torch.testing.assert_close(run(plain, ids), run(packing, ids))
    assert resolver.packed == ["linear", "head"]


def test_a_tied_head_shares_storage_unless_its_kernel_packs(folder: Path) -> None:
    for resolver, shared in ((ReferenceResolver(), True), (PackingResolver(), False)):
        model = build(resolver)
        load_weights(model.weight_map(), folder)
        model.prepare()
        embed, _, head = (layer.weight for layer in model._layers)  # type: ignore[attr-defined]
        assert (embed.data_ptr() == head.data_ptr()) is shared
        assert embed.shape == (VOCAB, HIDDEN)


def test_prepare_comes_once_and_after_the_weight_map(folder: Path) -> None:
    model = build(ReferenceResolver())
    load_weights(model.weight_map(), folder)
    model.prepare()
    with pytest.raises(RuntimeError, match=r"take the weight map before prepare\(\)"):
        model.weight_map()
    with pytest.raises(RuntimeError, match="it was called before"):
        model.prepare()


def test_a_parameter_that_no_tensor_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Linear, "map_weights", lambda self, weights: None)
    with pytest.raises(WeightError, match=r"layer 'linear' holds a parameter 'weight' that no"):
        build(ReferenceResolver()).weight_map()


def test_several_ranks_need_collectives() -> None:
    with pytest.raises(GraphError, match="there is no collective backend; run on one rank"):
        build(ReferenceResolver(), Mesh(size=2), spread=True)


def test_unknown_dtype() -> None:
    context = plain_context("int4")
    with pytest.raises(ValueError, match="dtype 'int4' is unknown; use one of float32"):
        Toy.build({}, context)
