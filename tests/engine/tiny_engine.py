# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Fixtures: a tiny Llama with random weights, and devices to run it on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenspeed_cpu.platform import CpuPlatform
from tokenspeed_sdk.contracts.platform import Device
from tokenspeed_sdk.testing.platform.devices import DelayingDevice, ReplayingDevice


def make_tiny_llama(folder: Path, heads: int) -> Path:
    """Two layers of width 32, 97 tokens of vocabulary; logits far enough apart to compare ids."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=256,
        initializer_range=0.5,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 8 elements, which torch's kernels serve."""
    return make_tiny_llama(tmp_path_factory.mktemp("tiny-llama"), heads=4)


@pytest.fixture(scope="session")
def tiny_llama_of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 16 elements, as large as the CPU's own kernels want them."""
    return make_tiny_llama(tmp_path_factory.mktemp("tiny-llama-of-two"), heads=2)


@pytest.fixture
def cpu() -> Device:
    """The CPU platform's device."""
    return CpuPlatform().open()


@pytest.fixture
def delaying(cpu: Device) -> Device:
    """The same, whose work ends at random times."""
    return DelayingDevice(cpu, seed=3)


@pytest.fixture
def replaying(cpu: Device) -> ReplayingDevice:
    """The same with graph capture."""
    return ReplayingDevice(cpu)
