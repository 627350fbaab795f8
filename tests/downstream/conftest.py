# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Wheels of strangers over the environment, and small checkpoints to serve with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .checkpoints import Checkpoint, juniper
from .projects import PROJECTS, install

collect_ignore = list(PROJECTS)  # their tests run as a stranger runs them, in test_projects.py


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """The servers need the cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def strangers(pytestconfig: pytest.Config) -> dict[str, Path]:
    """Project -> folder that holds its installed wheel."""
    assert pytestconfig.cache is not None
    return install(pytestconfig.cache.mkdir("downstream"))


@pytest.fixture(scope="session")
def juniper_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Of the architecture that only a stranger's wheel provides."""
    return Checkpoint.make(juniper(), tmp_path_factory.mktemp("models") / "juniper")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Of an architecture that our own wheel provides."""
    from transformers import LlamaForCausalLM

    return Checkpoint.make(LlamaForCausalLM, tmp_path_factory.mktemp("models") / "llama")
