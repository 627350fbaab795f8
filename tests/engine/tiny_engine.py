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


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two layers, 97 tokens of vocabulary; logits far enough apart to compare ids."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.5,
    )
    folder = tmp_path_factory.mktemp("tiny-llama")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


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
