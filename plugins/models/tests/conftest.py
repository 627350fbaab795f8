# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Oracles are made once per session: importing Transformers is the slowest part of these tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from tokenspeed_models import llama, qwen3

from .oracles import BASE, LLAMAS, QWEN3S, Oracle


@pytest.fixture(autouse=True)
def quiet_torch() -> None:
    """One thread, and the same random numbers in every test."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def oracle_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Oracle]:
    """Key of LLAMAS or QWEN3S -> oracle, made once."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    @cache
    def make(name: str) -> Oracle:
        torch.manual_seed(1)
        if name in LLAMAS:
            entry = llama.EntryClass
            model = LlamaForCausalLM(LlamaConfig(**BASE | LLAMAS[name])).eval()
        else:
            entry = qwen3.EntryClass
            model = Qwen3ForCausalLM(Qwen3Config(**BASE | QWEN3S[name])).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # all of them: biases and norms start trivial
                parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.3)
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        return Oracle(entry, folder, model)

    return make
