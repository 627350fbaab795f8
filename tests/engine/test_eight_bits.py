# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Engines with weights and pages of eight bits, on the references: slow, right by definition.

What they answer is judged by a float model that has the same rounded weights: Transformers reads
the answer along, and no token may be further behind its favourite than rounding activations and KV
explains.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conversations import Conversations
from harness import ScriptedMailbox, all_at_once, engine, submit
from safetensors.torch import load_file, save_file
from test_host_tier import at_rest
from test_loop import prompts
from tokenspeed.config import EngineConfig
from tokenspeed.engine.formats import Formats, warn_of_default_scales
from tokenspeed_cpu.platform import CpuPlatform
from tokenspeed_sdk.contracts.platform import Device
from tokenspeed_sdk.modeling import FP8_KV, LoadReport
from tokenspeed_sdk.ops import fp8, int8
from tokenspeed_sdk.testing.platform.devices import ReplayingDevice

BEHIND, ON_AVERAGE = 1.0, 0.1
"""Of the logits' standard deviation: how far the worst token and all of them may be behind. Codes
of three bits are off by 2.6 % of a product's norm, and this model of large random weights carries
that far; tokens by chance are 2.5 behind."""

ROUNDINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fp8": lambda weight: fp8.dequantize_weight(*fp8.quantize_weight(weight)),
    "int8": lambda weight: int8.dequantize_weight(*int8.quantize_weight(weight)),
}

SMALL, HOST = 44, 400  # pages, as in test_host_tier


@pytest.fixture(scope="module")
def models(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, Path]:
    """Quantization to the tiny Llama with the weights that its codes stand for, fused as served."""
    rounded = {each: tmp_path_factory.mktemp(each) for each in ROUNDINGS}
    return {None: tiny_llama, **{q: rounded_copy(tiny_llama, rounded[q], q) for q in ROUNDINGS}}


def rounded_copy(source: Path, target: Path, quantization: str) -> Path:
    tensors = load_file(source / "model.safetensors")
    round_trip = ROUNDINGS[quantization]
    for layer in range(2):
        for block, parts in (
            ("self_attn", ("q_proj", "k_proj", "v_proj")),
            ("self_attn", ("o_proj",)),
            ("mlp", ("gate_proj", "up_proj")),
            ("mlp", ("down_proj",)),
        ):
            names = [f"model.layers.{layer}.{block}.{part}.weight" for part in parts]
            whole = round_trip(torch.cat([tensors[n] for n in names]))
            rows = [len(tensors[name]) for name in names]
            tensors |= {
                n: w.clone() for n, w in zip(names, whole.split_with_sizes(rows), strict=True)
            }
    if quantization == "int8":
        tensors["lm_head.weight"] = round_trip(tensors["lm_head.weight"])
    return copy(source, target, tensors)


@pytest.fixture(scope="module")
def scaled(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with scales of KV, each layer its own."""
    tensors = load_file(tiny_llama / "model.safetensors")
    for layer, (k, v) in enumerate(((0.11, 0.07), (0.05, 0.13))):
        tensors[f"model.layers.{layer}.self_attn.k_scale"] = torch.tensor([k])
        tensors[f"model.layers.{layer}.self_attn.v_scale"] = torch.tensor([v])
    return copy(tiny_llama, tmp_path_factory.mktemp("scaled"), tensors)


def copy(source: Path, target: Path, tensors: dict[str, torch.Tensor]) -> Path:
    shutil.copytree(source, target, dirs_exist_ok=True)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


@torch.inference_mode()
def behind(folder: Path, asked: list[list[int]], mailbox: ScriptedMailbox) -> list[float]:
    """How far each answered token's logit is behind the best one, in standard deviations."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = []
    for request, prompt in enumerate(asked):
        answer = mailbox.answers[request].tokens
        logits = model(torch.tensor([prompt + answer[:-1]])).logits[0, len(prompt) - 1 :]
        chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        found += ((logits.amax(1) - chosen) / logits.std(1)).tolist()
    return found


@pytest.mark.parametrize("kv_dtype", [None, FP8_KV], ids=["plain-pages", "eight-bit-pages"])
@pytest.mark.parametrize("quantization", [None, "fp8", "int8"])
def test_answers_are_those_of_the_rounded_weights(
    tiny_llama: Path,
    models: dict[str | None, Path],
    replaying: ReplayingDevice,
    quantization: str | None,
    kv_dtype: str | None,
) -> None:
    asked = prompts(4)
    with engine(tiny_llama, replaying, quantization=quantization, kv_dtype=kv_dtype) as built:
        mailbox = built.run(all_at_once([submit(i, p, 12) for i, p in enumerate(asked)]))
    gaps = behind(models[quantization], asked, mailbox)
    assert len(gaps) == 48
    exact = quantization is None and kv_dtype is None
    assert max(gaps) <= (1e-3 if exact else BEHIND)
    assert sum(gaps) / len(gaps) <= ON_AVERAGE


@pytest.fixture(scope="module")
def wanted(scaled: Path) -> dict[int, list[int]]:
    """The answers of an engine whose device pool holds everything."""
    with engine(scaled, CpuPlatform().open(), pages=400, kv_dtype=FP8_KV) as built:
        return tokens(built.run(conversations().script))


def conversations() -> Conversations:
    return Conversations(seed=31, number=4, turns=4, first=30, more=11, answer=6, most=2)


def tokens(mailbox: ScriptedMailbox) -> dict[int, list[int]]:
    return {request: answer.tokens for request, answer in mailbox.answers.items()}


def test_pages_that_moved_mean_the_same(
    scaled: Path, delaying: Device, wanted: dict[int, list[int]]
) -> None:
    """Evicted to the host, given to others, loaded elsewhere: scales belong to layers alone."""
    asked = conversations()
    with engine(scaled, delaying, pages=SMALL, host_pages=HOST, kv_dtype=FP8_KV) as built:
        mailbox = built.run(asked.script)
        counters = built.scheduler.counters()
        at_rest(built)
    assert tokens(mailbox) == wanted
    assert counters.evictions > 0, "the device pool held everything"
    assert counters.stored_pages > 0


CODED = {
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
}


@pytest.mark.parametrize(
    ("options", "model", "text"),
    [
        ({}, {}, "float32, KV in float32"),
        ({"quantization": "fp8"}, {}, "float32, linears in fp8, KV in float32"),
        ({"quantization": "int8"}, {}, "float32, linears in int8, KV in float32"),
        ({"kv_cache_dtype": "fp8"}, CODED, "float32, linears in fp8, KV in float8_e4m3fn"),
    ],
)
def test_formats_are_those_of_the_options_or_the_checkpoint(
    cpu: Device, options: dict[str, Any], model: dict[str, Any], text: str
) -> None:
    config = EngineConfig(model="m", **options)
    assert str(Formats.choose(config, model, cpu.capabilities)) == text


def test_a_checkpoint_of_codes_is_not_quantised_again(cpu: Device) -> None:
    config = EngineConfig(model="m", quantization="int8")
    with pytest.raises(ValueError, match=r"checkpoint's are fp8 already: leave --quantization out"):
        Formats.choose(config, CODED, cpu.capabilities)


def test_default_scales_are_told_about_once(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_default_scales(LoadReport((), {}, (), 0, ("a.k_scale", "a.v_scale")), "folder")
    warn_of_default_scales(LoadReport((), {}, (), 0), "folder")
    (record,) = caplog.records
    assert "folder has no scale for 2 keys and values" in record.getMessage()
    assert "leave --kv-cache-dtype fp8 out" in record.getMessage()


def test_a_page_of_eight_bits_has_half_the_bytes(tiny_llama: Path, cpu: Device) -> None:
    from tokenspeed.cache.slab import page_bytes
    from tokenspeed_models.llama import LlamaForCausalLM

    raw = json.loads((tiny_llama / "config.json").read_text())
    (group,) = LlamaForCausalLM.cache_groups(LlamaForCausalLM.read_config(raw))
    assert 2 * page_bytes(group, 16, FP8_KV) == page_bytes(group, 16, "bfloat16")
