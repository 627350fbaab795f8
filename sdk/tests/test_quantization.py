# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Weights of eight bits: what checkpoints say of them, how they are loaded, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenspeed_sdk import ops
from tokenspeed_sdk.modeling import (
    BuildContext,
    WeightError,
    WeightMap,
    load_dummy,
    load_weights,
    read_quantization,
)
from tokenspeed_sdk.modeling.layers.attention import Attention, CachePlace
from tokenspeed_sdk.modeling.layers.embedding import Embedding, Head
from tokenspeed_sdk.modeling.layers.linear import Linear
from tokenspeed_sdk.ops import int8
from tokenspeed_sdk.ops.fp8 import DTYPE, dequantize_weight, quantize_weight
from tokenspeed_sdk.testing.model.runner import plain_context

FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
PARTS = {"gate": 256, "up": 72}
K = 192


def context(quantization: str) -> BuildContext:
    return plain_context(quantization=quantization)


def linear(parts: dict[str, int] | None = None, quantization: str = "fp8") -> Linear:
    return Linear(context(quantization), "mlp.both", k=K, n=parts or PARTS)


def weight_map(layer: Linear) -> WeightMap:
    weights = WeightMap()
    layer.map_weights(weights)
    return weights


def store(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file(tensors, folder / "model.safetensors")
    return folder


def coded(parts: dict[str, int] = PARTS) -> dict[str, torch.Tensor]:
    """A checkpoint of codes and scales, these in bfloat16 as some are published."""
    tensors = {}
    for name, rows in parts.items():
        codes, scale = quantize_weight(torch.randn(rows, K))
        tensors[f"mlp.{name}.weight"] = codes
        tensors[f"mlp.{name}.weight_scale_inv"] = scale.bfloat16()
    return tensors


def test_a_checkpoint_says_its_format() -> None:
    assert read_quantization({}) is None
    assert read_quantization({"quantization_config": FP8}) == "fp8"
    listed = FP8 | {"modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm"]}
    assert read_quantization({"quantization_config": listed}) == "fp8"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"quant_method": "gptq"}, "quant_method must be one of fp8; got 'gptq'"),
        ({"activation_scheme": "static"}, "activation_scheme must be one of dynamic; got 'static'"),
        ({"fmt": "e5m2"}, "fmt must be one of e4m3; got 'e5m2'"),
        ({"weight_block_size": None}, r"weight_block_size must be \[128, 128\]; got None"),
        ({"weight_block_size": [64, 128]}, r"weight_block_size must be .*; got \[64, 128\]"),
        ({"ignored_layers": ["model.layers.1.mlp.up_proj"]}, "ignored_layers names 'model.layers"),
    ],
)
def test_other_formats_are_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=f"config.json: quantization_config: {problem}"):
        read_quantization({"quantization_config": FP8 | change})


def test_contexts_know_their_formats() -> None:
    with pytest.raises(ValueError, match="kv_dtype must be 'float8_e4m3fn' or None; got 'fp8'"):
        plain_context(kv_dtype="fp8")
    with pytest.raises(ValueError, match="quantization must be 'fp8', 'int8' or None; got 'int4'"):
        context("int4")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_floating_weights_are_quantised_while_they_are_read(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    tensors = {f"mlp.{name}.weight": torch.randn(n, K).to(dtype) for name, n in PARTS.items()}
    layer, seen = linear(), []
    report = load_weights(weight_map(layer), store(tmp_path, tensors), lambda *a: seen.append(a))
    codes, scale = quantize_weight(torch.cat(list(tensors.values())))
    assert layer.weights[0].view(torch.uint8).equal(codes.view(torch.uint8))
    assert layer.weights[1].equal(scale)
    assert set(report.loaded) == set(tensors)
    assert seen[-1] == (report.bytes, report.bytes) == (328 * K * dtype.itemsize,) * 2


def test_integers_are_made_while_floats_are_read(tmp_path: Path) -> None:
    tensors = {f"mlp.{name}.weight": torch.randn(n, K).bfloat16() for name, n in PARTS.items()}
    layer = linear(quantization="int8")
    load_weights(weight_map(layer), store(tmp_path, tensors))
    whole = torch.cat(list(tensors.values())).float()
    codes, scale = int8.quantize_weight(whole)
    assert layer.weights[0].equal(codes)
    assert layer.weights[1].equal(scale)
    layer.pack_weights()
    out = layer.run(x := torch.randn(2, K))
    assert (out - x @ whole.T).norm() < 0.015 * out.norm()


def test_integers_are_not_made_of_codes(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=r"mlp\.gate\.weight is F8_E4M3, not one of F64"):
        load_weights(weight_map(linear(quantization="int8")), store(tmp_path, coded()))


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_of_integers_is_made_of_what_was_loaded(tmp_path: Path, tied: bool) -> None:
    embed = Embedding(context("int8"), "embed", vocab=50, hidden=64)
    head = Head(context("int8"), "head", vocab=50, hidden=64, tied=embed if tied else None)
    weights = WeightMap()
    embed.map_weights(weights)
    head.map_weights(weights)
    table = torch.randn(50, 64)
    tensors = {"embed.weight": table} | ({} if tied else {"head.weight": -table})
    load_weights(weights, store(tmp_path, tensors))
    embed.pack_weights()
    head.pack_weights()
    ids, x = torch.tensor([3, 49]), torch.randn(2, 64)
    assert embed.run(ids).equal(table[ids])
    codes, scale = int8.quantize_weight(table if tied else -table)
    assert head.run(x).equal(ops.linear_int8(x, codes, scale))


def test_codes_and_scales_are_loaded_as_they_are(tmp_path: Path) -> None:
    tensors = coded()
    layer = linear()
    report = load_weights(weight_map(layer), store(tmp_path, tensors))
    wanted = [
        dequantize_weight(
            tensors[f"mlp.{name}.weight"], tensors[f"mlp.{name}.weight_scale_inv"].float()
        )
        for name in PARTS
    ]
    assert dequantize_weight(layer.weights[0], layer.weights[1]).equal(torch.cat(wanted))
    assert set(report.loaded) == set(tensors)
    out = layer.run(x := torch.randn(2, K))
    assert (out - x @ torch.cat(wanted).T).norm() < 0.05 * out.norm()


@pytest.mark.parametrize(
    ("parts", "change", "problem"),
    [
        (PARTS, {"mlp.up.weight_scale_inv": None}, "mlp.up.weight has no mlp.up.weight_scale_inv"),
        (
            PARTS,
            {"mlp.up.weight_scale_inv": torch.ones(1, 1)},
            r"mlp.up.weight_scale_inv is \[1, 1\], \[1, 2\] are needed",
        ),
        (
            PARTS,
            {"mlp.up.weight": torch.zeros(72, K), "mlp.up.weight_scale_inv": None},
            "mlp.both.weight is filled by mlp.gate.weight, mlp.up.weight, of F32, F8_E4M3",
        ),
        ({"gate": 72, "up": 256}, {}, "mlp.gate.weight has 72 rows and shares mlp.both.weight"),
        (PARTS, {"mlp.down.weight_scale_inv": torch.ones(1)}, "no use for mlp.down.weight_scale"),
        (
            PARTS,
            {"mlp.gate.weight": torch.zeros(256, K, dtype=torch.int8)},
            "mlp.gate.weight is I8, not one of",
        ),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, parts: dict[str, int], change: dict[str, torch.Tensor | None], problem: str
) -> None:
    tensors = {k: v for k, v in (coded(parts) | change).items() if v is not None}
    with pytest.raises(WeightError, match=problem):
        load_weights(weight_map(linear(parts)), store(tmp_path, tensors))


def test_codes_for_a_floating_parameter_are_refused(tmp_path: Path) -> None:
    weights = WeightMap()
    weights.add("head.weight", torch.zeros(2, 2))
    folder = store(tmp_path, {"head.weight": torch.zeros(2, 2, dtype=DTYPE)})
    with pytest.raises(WeightError, match=r"head\.weight is F8_E4M3, not one of F64"):
        load_weights(weights, folder)


@pytest.mark.parametrize(
    ("quantization", "scales", "floats"),
    [("fp8", 3 * 2, dequantize_weight), ("int8", 6 * 328, int8.dequantize_weight)],
)
def test_dummy_codes_are_finite_and_as_large_as_other_weights(
    quantization: str, scales: int, floats: Callable[..., torch.Tensor]
) -> None:
    layer = linear(quantization=quantization)
    weights = weight_map(layer)
    assert load_dummy(weights) == 328 * K + 4 * scales
    values = floats(layer.weights[0], layer.weights[1])
    assert bool(values.isfinite().all())
    assert 0.019 < float(values.std()) < 0.021


def attention(kv_dtype: str | None) -> WeightMap:
    context = plain_context(kv_dtype=kv_dtype)
    place = CachePlace(0, 0)
    layer = Attention(context, "attn.attend", heads=2, kv_heads=1, head_dim=8, cache=place)
    weights = WeightMap()
    layer.map_weights(weights)
    return weights


@pytest.mark.parametrize("place", ["", "attn.", "k_proj."])
def test_scales_of_keys_and_values_are_read_where_checkpoints_have_them(
    tmp_path: Path, place: str
) -> None:
    weights, name = attention("float8_e4m3fn"), f"attn.{place}k_scale"
    report = load_weights(weights, store(tmp_path, {name: torch.tensor(0.25).bfloat16()}))
    assert weights.parameters["attn.k_scale"].item() == 0.25
    assert weights.parameters["attn.v_scale"].item() == 1.0
    assert report.loaded == (name,)
    assert report.defaulted == ("attn.v_scale",)


def test_scales_are_not_needed_for_plain_pages(tmp_path: Path) -> None:
    report = load_weights(attention(None), store(tmp_path, {"attn.v_scale": torch.ones(1)}))
    assert (report.loaded, report.ignored, report.defaulted) == ((), ("attn.v_scale",), ())


@pytest.mark.parametrize("value", [torch.zeros(1), torch.tensor(float("nan")), -torch.ones(1)])
def test_a_scale_must_be_positive(tmp_path: Path, value: torch.Tensor) -> None:
    folder = store(tmp_path, {"attn.k_scale": value})
    with pytest.raises(WeightError, match=r"attn\.k_scale .* must be one positive number"):
        load_weights(attention("float8_e4m3fn"), folder)
