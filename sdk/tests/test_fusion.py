# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which runs of layers become one layer, and that the fused layers do the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenspeed_sdk.contracts.kernel import Binding, CallSite
from tokenspeed_sdk.contracts.model import CacheGroup
from tokenspeed_sdk.modeling import BuildContext, CausalLM, Graph, Mesh, RopeConfig, load_dummy
from tokenspeed_sdk.modeling.fusion import fuse
from tokenspeed_sdk.modeling.layers import (
    AddRMSNorm,
    Attention,
    ColumnLinear,
    Embedding,
    Head,
    Linear,
    RMSNorm,
    Rope,
    SiluAndMul,
    SplitHeads,
    cache_place,
    rope_table,
)
from tokenspeed_sdk.modeling.layers.fused import (
    MANY_ROWS,
    MOST_ROWS,
    AddNormLinear,
    AddNormMlp,
    RopeAttention,
)
from tokenspeed_sdk.ops import OPS, ReferenceResolver
from tokenspeed_sdk.testing.model.runner import ModelRunner, PagedCache, plain_context

HIDDEN, INTER, VOCAB, EPS = 8, 12, 11, 0.03
SHAPE = {"heads": 4, "kv_heads": 2, "head_dim": 4}
GROUP = CacheGroup("full", (0,), SHAPE["kv_heads"], SHAPE["head_dim"])
ROPE = RopeConfig(rotary=4, theta=100.0)

Change = Callable[[BuildContext, Graph], None]


class Spy(ReferenceResolver):
    """Fuses; remembers the fused sites and calls, and packs the weights of each op its own way."""

    def __init__(self, *, without: Collection[str] = ()) -> None:
        super().__init__(fuse=True)
        self.without = without
        self.fused: list[tuple[CallSite, Collection[str]]] = []
        self.rows: list[tuple[str, int]] = []

    def bind_fused(self, site: CallSite, parts: Collection[str]) -> Binding | None:
        self.fused.append((site, parts))
        return None if site.op in self.without else super().bind_fused(site, parts)

    def bind(self, site: CallSite) -> Binding:
        plain = super().bind(site)
        place = {"linear@1": 1, "add_norm_linear@1": 4}.get(site.op)
        sign = {"linear@1": 2.0, "add_norm_linear@1": 4.0}.get(site.op, 1.0)

        def call(*args: Any) -> Any:
            self.rows.append((site.op, len(args[0])))
            if place is not None:
                args = (*args[:place], args[place] / sign, *args[place + 1 :])
            return plain.call(*args)

        return Binding("spy", call, lambda weight: weight * sign)


class Block(CausalLM[Mapping[str, Any]]):
    """One pre-norm block of the usual kind, written with plain layers."""

    architectures = ("Block",)

    @classmethod
    def read_config(cls, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return config

    @classmethod
    def cache_groups(cls, config: Mapping[str, Any]) -> tuple[CacheGroup, ...]:
        return (GROUP,)

    def define(self, graph: Graph) -> Head:
        context = self.context
        embed = Embedding(context, "embed", vocab=VOCAB, hidden=HIDDEN)
        first = RMSNorm(context, "first", hidden=HIDDEN, eps=EPS)
        graph.add(embed, ("token_ids",), ("residual",))
        graph.add(first, ("residual",), ("hidden",))
        define_block(context, graph, self.config)
        return Head(context, "head", vocab=VOCAB, hidden=HIDDEN)


def define_block(context: BuildContext, graph: Graph, config: Mapping[str, Any]) -> None:
    """Norm and projection, attention, norm and gated projection."""
    size, eps, shape = SHAPE["head_dim"], EPS, SHAPE
    width = size * (shape["heads"] + 2 * shape["kv_heads"])
    bias = bool(config.get("bias"))
    graph.add(AddRMSNorm(context, "b.norm", hidden=HIDDEN, eps=eps), PAIR, PAIR)
    qkv = ColumnLinear(context, "b.attn.qkv", k=HIDDEN, n=width, bias=bias)
    graph.add(qkv, ("hidden",), ("qkv",))
    graph.add(SplitHeads("b.attn.split", **shape), ("qkv",), ("q", "k", "v"))
    if config.get("head_norms"):
        for name, factor in (("q", 1.0), ("k", config.get("factor", 1.0))):
            norm = RMSNorm(context, f"b.attn.{name}_norm", hidden=size, eps=eps * factor)
            graph.add(norm, (name,), (name,))
    rope = Rope(context, "b.attn.rope", rope=ROPE, table=rope_table(context, ROPE), head_dim=size)
    graph.add(rope, ("q", "k", config.get("positions", "positions")), ("q", "k"))
    attend = Attention(context, "b.attn.attend", **shape, cache=cache_place([GROUP], 0))
    graph.add(attend, ("q", "k", "v", "rows"), ("attended",))
    out = Linear(context, "b.attn.out", k=shape["heads"] * size, n=HIDDEN, bias=bias)
    graph.add(out, ("attended",), ("hidden",))
    graph.add(AddRMSNorm(context, "b.norm2", hidden=HIDDEN, eps=eps), PAIR, PAIR)
    up = ColumnLinear(context, "b.mlp.up", k=HIDDEN, n=2 * INTER, bias=bias)
    graph.add(up, ("hidden",), ("gate_up",))
    graph.add(SiluAndMul(context, "b.mlp.act", inter=INTER), ("gate_up",), ("activated",))
    graph.add(Linear(context, "b.mlp.down", k=INTER, n=HIDDEN), ("activated",), ("hidden",))


PAIR = ("hidden", "residual")
FUSED = [
    "embed",
    "first",
    "b.{norm + attn.qkv}",
    "b.attn.{split + rope + attend}",
    "b.attn.out",
    "b.{norm2 + mlp.up + mlp.act}",
    "b.mlp.down",
]


def context_of(resolver: Any, mesh: Mesh | None = None) -> BuildContext:
    return plain_context(kernels=resolver, mesh=mesh or Mesh())


def graph_of(context: BuildContext, inputs: tuple[str, ...] = (), **config: Any) -> Graph:
    graph = Graph((*PAIR, "positions", "rows", *inputs), "hidden")
    define_block(context, graph, config)
    return graph


def names(graph: Graph) -> list[str]:
    return [step.layer.name for step in graph.steps]


def build(resolver: Any, **config: Any) -> Block:
    """With the same random weights whatever the resolver."""
    model = Block.build(config, context_of(resolver))
    fill(model.weight_map().parameters)
    model.prepare()
    return model


def fill(parameters: Mapping[str, torch.Tensor]) -> None:
    generator = torch.Generator().manual_seed(1)
    for name, parameter in parameters.items():
        if not name.endswith("scale"):
            parameter.normal_(0.0, 0.5, generator=generator)


def runner(model: Block, dtype: torch.dtype = torch.float32) -> ModelRunner:
    cache = PagedCache(
        [GROUP],
        slots=40,
        pages_per_slot=16,
        page_size=4,
        dtype=dtype,
        device="cpu",
        seed=0,
    )
    return ModelRunner(model, cache, dead_rows=1)


def test_the_usual_block_becomes_three_fused_layers() -> None:
    model = build(Spy())
    assert [line.partition(":")[0] for line in model.program.lines()] == FUSED
    assert "b.{norm + attn.qkv}: hidden, residual -> qkv shard(1), residual replicate" in (
        model.program.lines()
    )


def test_sites_say_what_the_parts_said() -> None:
    spy = Spy()
    build(spy, head_norms=True, bias=True)
    (first, first_parts), (many, _), (heads, head_parts), (second, second_parts) = spy.fused
    assert (first.op, first.rows, first.layer) == ("add_norm_linear@1", (1, MOST_ROWS), FUSED[2])
    assert many == replace(first, rows=(MANY_ROWS, None))
    assert first.traits == {"n": 32, "k": HIDDEN, "bias": True, "gated": False}
    assert first_parts == ("add_rms_norm@1", "linear@1")
    assert second.traits == {"n": 2 * INTER, "k": HIDDEN, "bias": True, "gated": True}
    assert second_parts == ("add_rms_norm@1", "linear@1", "silu_and_mul@1")
    assert (heads.op, heads.rows) == ("rope_kv_write@1", (1, None))
    rope = {"page_size": 4, "rotary": 4, "interleaved": False, "head_norm": True}
    assert heads.traits == {**SHAPE, **rope}
    assert head_parts == ("rms_norm@1", "rope@1", "kv_write@1")
    for site, _ in spy.fused:
        OPS[site.op].check_site(site)


@pytest.mark.parametrize("config", [{}, {"bias": True}, {"head_norms": True}])
def test_fused_equals_unfused(config: dict[str, Any]) -> None:
    """Alone and in batches of prefill and decode; below, at and above the most rows of a launch,
    and as many as another launch takes."""
    spy = Spy()
    plain, fused = runner(build(ReferenceResolver(), **config)), runner(build(spy, **config))
    generator = torch.Generator().manual_seed(2)
    for sizes in (
        {1: 1},
        {2: 5},
        {1: 1, 3: MOST_ROWS - 2},  # and the dead row: as many as a launch takes
        {1: 1, 4: MOST_ROWS - 1},
        {1: 1, 2: 1, 5: 3, 3: 1},
        dict.fromkeys(range(1, 40), 1),
        dict.fromkeys(range(10, 31), 6) | {3: 2},  # and the dead row
    ):
        tokens = {
            slot: torch.randint(VOCAB, (count,), generator=generator).tolist()
            for slot, count in sizes.items()
        }
        wanted, found = plain.step(tokens), fused.step(tokens)
        for slot, logits in wanted.items():
            torch.testing.assert_close(found[slot], logits)
    launches = {rows for op, rows in spy.rows if op == "add_norm_linear@1"}
    assert launches == {2, 6, MOST_ROWS, 7, MANY_ROWS}
    apart = {rows for op, rows in spy.rows if op == "add_rms_norm@1"}
    assert apart == {MOST_ROWS + 1, 40, MANY_ROWS}  # gated ones
    assert not any(op in ("rope@1", "kv_write@1") for op, _ in spy.rows)


def test_parts_keep_their_parameters_and_weights_are_packed_for_both() -> None:
    """The spy packs a weight one way for the launch and another way for the part."""
    plain, model = build(ReferenceResolver()), Block.build({}, context_of(spy := Spy()))
    assert list(model.weight_map().parameters) == [
        "embed.weight",
        "first.weight",
        "b.norm.weight",
        "b.attn.qkv.weight",
        "b.attn.out.weight",
        "b.norm2.weight",
        "b.mlp.up.weight",
        "b.mlp.down.weight",
        "head.weight",
    ]
    del spy
    packed = build(Spy())
    fused = next(s.layer for s in packed.program.steps if isinstance(s.layer, AddNormLinear))
    weight = next(w for w in vars(plain.program.steps[3].layer).values() if hasattr(w, "dtype"))
    for launch in (fused._few, fused._many):
        torch.testing.assert_close(launch.weights[0], 4 * weight)
    torch.testing.assert_close(fused._linear.weight, 2 * weight)


def test_plain_layouts_are_held_once() -> None:
    model = build(ReferenceResolver(fuse=True))
    fused = next(s.layer for s in model.program.steps if isinstance(s.layer, AddNormLinear))
    assert fused._few.weights[0] is fused._many.weights[0] is fused._linear.weight


def test_without_kernels_nothing_is_fused() -> None:
    class Bare:
        """A resolver that was written before there were fused ops."""

        def bind(self, site: CallSite) -> Binding:
            return ReferenceResolver().bind(site)

    for resolver in (ReferenceResolver(), Bare()):
        model = build(resolver)
        assert not any(
            isinstance(step.layer, AddNormLinear | RopeAttention) for step in model.program.steps
        )
        assert len(model.program.steps) == 12
    only = names(fuse(graph_of(c := context_of(Spy(without=["add_norm_linear@1"]))), c))
    assert only[:4] == ["b.norm", "b.attn.qkv", FUSED[3], "b.attn.out"]


def test_several_ranks_keep_the_graph() -> None:
    context = context_of(Spy(), Mesh(size=2))
    graph = graph_of(context)
    assert fuse(graph, context) is graph


def reads_again(value: str) -> Change:
    """Somebody reads a value behind the whole block."""

    def change(context: BuildContext, graph: Graph) -> None:
        graph.add(SiluAndMul(context, "again", inter=1), (value,), ("seen",))

    return change


KEPT = [
    # config, what is added, layers that must stay apart
    ({}, reads_again("gate_up"), ["b.mlp.act"]),
    ({}, reads_again("qkv"), ["b.attn.rope", "b.attn.attend"]),
    ({}, reads_again("k"), ["b.attn.rope", "b.attn.attend"]),
    ({"head_norms": True, "factor": 2.0}, None, ["b.attn.k_norm", "b.attn.attend"]),
    ({"positions": "others"}, None, ["b.attn.rope", "b.attn.attend"]),
]


@pytest.mark.parametrize(("config", "change", "apart"), KEPT)
def test_a_run_that_is_none(
    config: dict[str, Any], change: Change | None, apart: list[str]
) -> None:
    """A value inside is read later, norms have two eps, or positions are not the batch's."""
    context = context_of(Spy())
    graph = graph_of(context, ("others",), **config)
    if change is not None:
        change(context, graph)
    found = names(fuse(graph, context))
    assert set(apart) <= set(found), found


def test_the_output_of_the_graph_is_read() -> None:
    context = context_of(Spy())
    graph = Graph(PAIR, "hidden")
    graph.add(AddRMSNorm(context, "norm", hidden=HIDDEN, eps=EPS), PAIR, PAIR)
    graph.add(Linear(context, "up", k=HIDDEN, n=4), ("hidden",), ("wide",))
    assert names(fuse(graph, context)) == ["norm", "up"]
    graph.add(Linear(context, "down", k=4, n=HIDDEN), ("wide",), ("hidden",))
    assert names(fuse(graph, context)) == ["{norm + up}", "down"]


def test_eight_bit_pages() -> None:
    """Fused and unfused write the same codes with the loaded scales, and read them back."""
    logits = []
    for resolver in (ReferenceResolver(), spy := Spy()):
        context = replace(context_of(resolver), kv_dtype="float8_e4m3fn")
        model = Block.build({"head_norms": True}, context)
        weights = model.weight_map()
        fill(weights.parameters)
        weights.parameters["b.attn.k_scale"].fill_(0.5)
        weights.parameters["b.attn.v_scale"].fill_(0.25)
        model.prepare()
        run = runner(model, torch.float8_e4m3fn)
        logits.append([run.step({1: [3, 1, 4, 1, 5]})[1], run.step({1: [9], 2: [2, 6]})[1]])
        keys = run.cache.views[0].keys[0].float()
        logits[-1].append(keys[run.cache.page_table[1, 0]])
    for plain, fused in zip(*logits, strict=True):
        torch.testing.assert_close(plain, fused)
    (heads,) = (site for site, _ in spy.fused if site.op.startswith("rope"))
    assert heads.op == "rope_kv_write_fp8@1"
    exact = runner(build(ReferenceResolver(), head_norms=True)).step({1: [3, 1, 4, 1, 5]})[1]
    error = (logits[0][0] - exact).norm() / exact.norm()
    assert 0 < error < 0.1


def test_eight_bit_weights() -> None:
    """The linear part says op and arguments: its codes and their scales go into the launch. A gated
    block is one layer, whose activation is with many tokens part of the second product."""
    found = []
    for fused in (False, True):
        resolver = ReferenceResolver(fuse=fused)
        context = replace(context_of(resolver), quantization="fp8")
        model = Block.build({"bias": True}, context)
        load_dummy(model.weight_map())
        model.prepare()
        layers = [step.layer for step in model.program.steps]
        for kind in (AddNormLinear, AddNormMlp):
            assert sum(isinstance(layer, kind) for layer in layers) == (1 if fused else 0)
        run = runner(model)
        few, more = run.step({1: [3, 1, 4]})[1], run.step({1: [2], 2: [7] * 40})[2]
        many = run.step({slot: [7, slot % 9] * 7 for slot in range(3, 13)})
        found.append((few, more, many[3], many[12]))
    for plain, launched in zip(*found, strict=True):
        torch.testing.assert_close(plain, launched)


def test_scales_of_a_checkpoint_that_plain_pages_do_not_need() -> None:
    weights = Block.build({}, context_of(ReferenceResolver())).weight_map()
    for name in ("b.attn.k_scale", "b.attn.attn.v_scale"):
        assert weights.ignores(name)


def test_a_layer_with_a_run_of_its_own_is_no_part() -> None:
    class Doubled(Linear):
        def run(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().run(x)

    context = context_of(Spy())
    graph = Graph(PAIR, "wide")
    graph.add(AddRMSNorm(context, "norm", hidden=HIDDEN, eps=EPS), PAIR, PAIR)
    graph.add(Doubled(context, "up", k=HIDDEN, n=4), ("hidden",), ("wide",))
    assert names(fuse(graph, context)) == ["norm", "up"]
