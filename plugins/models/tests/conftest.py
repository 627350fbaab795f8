# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Oracles are made once per session: importing Transformers is the slowest part of these tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch

from .oracles import BASE, LLAMAS, Oracle


@pytest.fixture(autouse=True)
def quiet_torch() -> None:
    """One thread, and the same random numbers in every test."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Oracle]:
    """Key of LLAMAS -> oracle, made once."""
    from transformers import LlamaConfig, LlamaForCausalLM

    @cache
    def make(name: str) -> Oracle:
        torch.manual_seed(1)
        model = LlamaForCausalLM(LlamaConfig(**BASE | LLAMAS[name])).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # all of them: biases and norms start trivial
                parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.3)
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        return Oracle(folder, model)

    return make
