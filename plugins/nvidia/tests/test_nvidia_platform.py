# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The platform's probe, with the driver's library replaced."""

from __future__ import annotations

import ctypes

import pytest
from tokenspeed_sdk.contracts.probe import Accept, Decline

from tokenspeed_nvidia import nvml, platform
from tokenspeed_nvidia.nvml import Gpu, NvmlError
from tokenspeed_nvidia.platform import NvidiaPlatform


def pretend(monkeypatch: pytest.MonkeyPatch, *gpus: Gpu) -> None:
    monkeypatch.setattr(platform, "list_gpus", lambda: list(gpus))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_no_driver_is_declined_with_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(nvml.ctypes, "CDLL", missing)
    verdict = NvidiaPlatform().probe()
    assert verdict == Decline("no NVIDIA driver: libcuda.so.1: cannot open shared object file")


def test_a_driver_that_does_not_answer_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Gpu]:
        raise NvmlError("the NVIDIA driver does not answer: nvmlInit_v2: Driver/library mismatch")

    monkeypatch.setattr(platform, "list_gpus", broken)
    verdict = NvidiaPlatform().probe()
    assert isinstance(verdict, Decline)
    assert "mismatch" in verdict.why


def test_a_gpu_is_accepted_with_name_and_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Gpu("NVIDIA H200", 9, 0), Gpu("NVIDIA H200", 9, 0))
    assert NvidiaPlatform().probe() == Accept(100, "NVIDIA H200 x 2, sm_90")


def test_an_old_gpu_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Gpu("Tesla V100", 7, 0))
    expected = Decline("Tesla V100 is sm_70; the kernels need sm_80 or newer")
    assert NvidiaPlatform().probe() == expected


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_gpus_are_declined(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    pretend(monkeypatch, Gpu("NVIDIA H200", 9, 0))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    expected = Decline("CUDA_VISIBLE_DEVICES hides every GPU; unset it")
    assert NvidiaPlatform().probe() == expected


def test_a_machine_without_gpus_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    assert isinstance(NvidiaPlatform().probe(), Decline)


def test_open_names_a_cpu_build_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(RuntimeError, match="is built without CUDA; install a torch wheel"):
        NvidiaPlatform().open()
