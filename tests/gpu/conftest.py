# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The GPU that the tests of this folder need, small models for it, and kernels for them.

``tools/gpu_check`` runs them. Without a GPU every one is skipped.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))  # harness and churn
sys.path.insert(0, str(Path(__file__).parent))


ORACLE_THREADS = 4
"""Small models on the CPU gain nothing from more, and their spinning starves the engine's loop."""


@pytest.fixture(scope="session")
def gpu() -> Any:
    """The platform's device; skips where there is no NVIDIA GPU."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    torch.set_num_threads(ORACLE_THREADS)
    torch.backends.cuda.matmul.allow_tf32 = False
    from tokenspeed_nvidia.platform import NvidiaPlatform

    return NvidiaPlatform().open(0)


@pytest.fixture(scope="session")
def plugins() -> Any:
    """The resolved plugins of the platform ``nvidia``."""
    from tokenspeed.plugins.host import resolve_installed

    return resolve_installed(platform="nvidia", pins={}).plan


@pytest.fixture
def kernels(gpu: Any, plugins: Any) -> Any:
    """The kernels that an engine on the GPU would take."""
    from tokenspeed.registry.kernels import KernelRegistry

    return KernelRegistry(plugins, {})


def make_llama(folder: Path, *, hidden: int, head_dim: int) -> Path:
    """Two layers, 97 tokens of vocabulary; logits far enough apart to compare ids."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=256,
        initializer_range=4 / hidden**0.5,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def small_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with heads of 16, the narrowest that the kernels take."""
    return make_llama(tmp_path_factory.mktemp("small-llama"), hidden=64, head_dim=16)


@pytest.fixture(scope="session")
def wide_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with heads of 128, which FlashInfer takes."""
    return make_llama(tmp_path_factory.mktemp("wide-llama"), hidden=256, head_dim=128)


@pytest.fixture(scope="session")
def qwen3_8b() -> Path:
    """A folder with the config of Qwen3-8B alone, for random weights."""
    return Path(__file__).parents[2] / "bench" / "configs" / "qwen3-8b"


@pytest.fixture(scope="session")
def smollm2(gpu: Any) -> Path:
    """SmolLM2-135M-Instruct; skips where it is neither cached nor to be had."""
    import demo_model

    try:
        return demo_model.ensure()
    except (subprocess.CalledProcessError, ImportError) as error:
        pytest.skip(f"the demo weights are not here: {error}")
