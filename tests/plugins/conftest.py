# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A copy of the running environment from which wheels can be taken without touching it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

OURS = (
    *("tokenspeed-core", "tokenspeed-sdk", "tokenspeed-cpu", "tokenspeed-models"),
    "tokenspeed-llguidance",
)

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    for name in OURS:
        try:
            distribution(name)
        except PackageNotFoundError:
            pytest.skip(f"{name} is not installed; these tests are about installed wheels")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a small Llama's config and nothing else."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def ts_without(tmp_path: Path) -> Callable[[str | None], Run]:
    """ts_without("wheel")("plugins", "list"): runs ts where that wheel is not installed."""

    def without(wheel: str | None) -> Run:
        python = _environment_without(wheel, tmp_path / "environment")
        code = "from tokenspeed.cli.main import main; main(prog_name='ts')"
        variables = {k: v for k, v in os.environ.items() if not k.startswith("TOKENSPEED_")}
        variables.pop("PYTHONPATH", None)

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [str(python), "-c", code, *arguments],
                env=variables,
                capture_output=True,
                text=True,
                timeout=180,
                check=False,
            )

        return run

    return without


def _environment_without(wheel: str | None, folder: Path) -> Path:
    """The python of a new environment that links to every installed file but the wheel's."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    here = Path(sysconfig.get_path("purelib"))
    there = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    files = distribution(wheel).files if wheel else []
    owned = {file.parts[0] for file in files or []}
    for entry in here.iterdir():
        if entry.name not in owned and entry.name != "__pycache__":
            (there / entry.name).symlink_to(entry)
    return python
