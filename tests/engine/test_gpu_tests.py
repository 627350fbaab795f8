# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The GPU's tests of captured steps, on a device that captures and replays without one.

No machine of CI has a GPU; so what these tests call is called here, and a change of it is seen.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tokenspeed_cpu.platform import CpuPlatform
from tokenspeed_sdk.ops import ReferenceResolver
from tokenspeed_sdk.testing.platform.devices import ReplayingDevice

FOLDER = Path(__file__).parents[1] / "gpu"


def module(name: str) -> ModuleType:
    """A file of the GPU's tests."""
    spec = importlib.util.spec_from_file_location(f"on_the_cpu_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def device() -> Any:
    return ReplayingDevice(CpuPlatform().open())


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = module("conftest").make_llama(
        tmp_path_factory.mktemp("llama"), hidden=64, head_dim=16
    )
    return folder


@pytest.mark.parametrize("verifies", [False, True], ids=["one_token", "guesses"])
def test_replay_equals_eager_bit_for_bit(device: Any, llama: Path, verifies: bool) -> None:
    tests = module("test_gpu_replay")
    tests.MIXES = 40
    tests.test_replay_equals_eager_bit_for_bit(
        device, ReferenceResolver(), llama, "float32", verifies
    )


@pytest.fixture(scope="module")
def taught(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return module("test_gpu_speculation").teach(llama, tmp_path_factory.mktemp("head"))


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_a_model_guesses_within_the_step(device: Any, taught: Any, graphs: bool) -> None:
    tests = module("test_gpu_speculation")
    tests.test_a_model_guesses_within_the_step(device, ReferenceResolver(), taught, graphs)


def test_answers_with_guesses_are_those_of_transformers(device: Any, llama: Path) -> None:
    tests = module("test_gpu_speculation")
    tests.test_answers_are_those_of_transformers(device, ReferenceResolver(), llama, True, 0.3)


def test_penalties_behind_guesses(device: Any, llama: Path) -> None:
    tests = module("test_gpu_speculation")
    tests.test_penalties_behind_guesses(device, ReferenceResolver(fuse=True), llama, True, 0.9)
