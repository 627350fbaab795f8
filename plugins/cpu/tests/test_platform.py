# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The platform, the device, and what the wheel says about itself."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tokenspeed_cpu
from tokenspeed_cpu import cores, library, memory
from tokenspeed_cpu.kernels import kernels
from tokenspeed_cpu.platform import CpuPlatform
from tokenspeed_sdk.contracts.kernel import CallSite
from tokenspeed_sdk.contracts.manifest import CONTRACTS, ContractNumber
from tokenspeed_sdk.contracts.platform import GRAPH_CAPTURE, Capabilities
from tokenspeed_sdk.contracts.probe import Accept, Decline
from tokenspeed_sdk.testing import platform_conformance

from .support import find, site

test_platform = platform_conformance(CpuPlatform)


def in_a_fresh_process(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**environment},
    )
    return done.stdout.strip()


def test_threads_are_set_before_torch_is_imported() -> None:
    code = """
import os, sys
from tokenspeed_cpu.platform import CpuPlatform
from tokenspeed_cpu.kernels import kernels
platform = CpuPlatform()
print(platform.probe().why)
platform.prepare(3)
assert "torch" not in sys.modules, "the kernels import torch"
assert os.environ["OMP_NUM_THREADS"] == "3"
assert os.environ["OMP_WAIT_POLICY"] == "passive"
device = platform.open()
import torch
assert torch.get_num_threads() == 3
assert device.capabilities.units == 3
"""
    why = in_a_fresh_process(code)
    assert library.arch() in why
    assert "core" in why


def test_the_platform_is_the_embedded_default() -> None:
    platform = CpuPlatform()
    assert platform.embedded
    assert platform.name == "cpu"
    assert isinstance(platform.probe(), Accept)


@pytest.mark.parametrize("threads", [0, -2])
def test_prepare_refuses_no_threads(threads: int) -> None:
    with pytest.raises(ValueError, match=str(threads)):
        CpuPlatform().prepare(threads)


def test_it_computes_in_float32_and_captures_nothing() -> None:
    device = CpuPlatform().open()
    assert device.torch_device == "cpu"
    assert device.capabilities.dtypes == ("float32",)
    assert GRAPH_CAPTURE not in device.capabilities.features


def test_memory_is_the_lesser_of_machine_and_cgroup(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(
        "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 800 kB\nHugePages_Total: 0\n"
    )
    assert memory.report(meminfo, tmp_path).total == 1000 * 1024
    assert memory.report(meminfo, tmp_path).free == 800 * 1024
    (tmp_path / "memory.max").write_text("512000\n")
    (tmp_path / "memory.current").write_text("300000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 100000\n")
    report = memory.report(meminfo, tmp_path)
    assert (report.total, report.free) == (512000, 312000)
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.report(meminfo, tmp_path).total == 1000 * 1024


def test_cores_respect_the_quota(tmp_path: Path) -> None:
    assert cores.usable_cores(tmp_path) >= 1
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert cores.usable_cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert cores.usable_cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores.usable_cores(tmp_path) >= 1
    assert cores.default_threads() >= 1


def test_manifest_claims_what_the_kernels_are() -> None:
    folder = next(
        Path(path) for path in tokenspeed_cpu.__path__ if (Path(path) / "platform.py").exists()
    )
    manifest = tomllib.loads((folder / "tokenspeed_plugin.toml").read_text())
    provides = {entry["contract"]: entry for entry in manifest["provides"]}
    assert manifest["id"] == "tokenspeed-cpu"
    assert provides["kernel"]["claims"] == [f"{kernel.op}:{kernel.name}" for kernel in kernels()]
    for contract, entry in provides.items():
        assert CONTRACTS[contract].serves(ContractNumber.parse(entry["number"]))


def test_kernels_decline_with_reasons() -> None:
    gpu = Capabilities("cuda", "sm_90", ("bfloat16",), frozenset(), 1)
    traits = {"n": 1, "k": 1, "bias": False}
    kernel = find("linear@1")
    for bad, words in (
        (CallSite("linear@1", "l", "bfloat16", site("x").device, traits), "float32"),
        (CallSite("linear@1", "l", "float32", gpu, traits), "cuda"),
        (CallSite("rope@1", "l", "float32", site("x").device, traits), "rope@1"),
    ):
        verdict = kernel.accept(bad)
        assert isinstance(verdict, Decline)
        assert words in verdict.why


@pytest.mark.parametrize(
    ("trait", "value", "words"),
    [("head_dim", 72, "72"), ("head_dim", 512, "512"), ("window", 128, "window")],
)
def test_attention_declines_what_it_cannot(trait: str, value: int, words: str) -> None:
    traits = {
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 64,
        "page_size": 16,
        "window": None,
        trait: value,
    }
    for op in ("attention_prefill@1", "attention_decode@1"):
        verdict = find(op).accept(site(op, **traits))
        assert isinstance(verdict, Decline)
        assert words in verdict.why


def test_scores_order_the_candidates_of_linear() -> None:
    scores = {}
    for kernel in kernels():
        if kernel.op == "linear@1":
            verdict = kernel.accept(site("linear@1", n=8, k=8, bias=False))
            assert isinstance(verdict, Accept)
            scores[kernel.name] = verdict.score
    assert max(scores, key=scores.__getitem__) == "cpu"
    assert set(scores) == {"cpu", "onednn", "torch"}


def test_a_missing_library_is_said_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "FILE", "libnot_there.so")
    library.load.cache_clear()
    try:
        verdict = CpuPlatform().probe()
        assert isinstance(verdict, Accept)
        assert "libnot_there.so" in verdict.why
        with pytest.raises(RuntimeError, match="install the wheel"):
            CpuPlatform().open()
    finally:
        library.load.cache_clear()
