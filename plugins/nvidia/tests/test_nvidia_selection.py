# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which kernel serves a site on which GPU, and why the others do not. Needs no torch or triton."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib.resources import files

import pytest
from tokenspeed_sdk import testing
from tokenspeed_sdk.contracts.kernel import CallSite, Trait
from tokenspeed_sdk.contracts.platform import Capabilities
from tokenspeed_sdk.contracts.probe import Accept, Decline, Verdict
from tokenspeed_sdk.testing import B200, CPU, H100, MI350, V100, chosen

from tokenspeed_nvidia import catalog

ATTENTION: dict[str, Trait] = {
    "heads": 32, "kv_heads": 8, "head_dim": 128, "page_size": 16, "window": None,
}  # fmt: skip


def verdicts(
    op: str, device: Capabilities, dtype: str = "bfloat16", **traits: Trait
) -> dict[str, Verdict]:
    return testing.verdicts(catalog.kernels(), op, device, dtype, **traits)


@pytest.mark.parametrize("op", ["attention_decode@1", "attention_prefill@1"])
class TestAttention:
    def test_h100_runs_triton(self, op: str) -> None:
        found = verdicts(op, H100, **ATTENTION)
        assert chosen(found) == "triton"
        assert found["triton"] == Accept(100, "triton on sm_90")

    def test_flashinfer_prefills_where_installed(
        self, op: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(catalog, "find_spec", lambda name: object())
        prefill = op == "attention_prefill@1"
        found = verdicts(op, H100, **ATTENTION)
        assert found["flashinfer"] == Accept(120 if prefill else 80, "flashinfer on sm_90")
        assert chosen(found) == ("flashinfer" if prefill else "triton")
        assert chosen(verdicts(op, B200, **ATTENTION)) == "triton"

    def test_flashinfer_says_how_to_install_it(
        self, op: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(catalog, "find_spec", lambda name: None)
        found = verdicts(op, H100, **ATTENTION)
        assert found["flashinfer"] == Decline(catalog.FLASHINFER_MISSING)

    def test_b200_is_compiled_not_run(self, op: str) -> None:
        found = verdicts(op, B200, **ATTENTION)
        assert found["triton"] == Accept(50, "triton, compiled for sm_100, not run on it")

    def test_mi350_gets_triton_and_flashinfer_refuses(self, op: str) -> None:
        found = verdicts(op, MI350, **ATTENTION)
        assert found["triton"] == Accept(50, "triton, compiled for gfx950, not run on it")
        refusal = found["flashinfer"]
        assert isinstance(refusal, Decline)
        assert refusal.why.startswith("FlashInfer has no code for gfx950")

    def test_fp32_is_not_for_flashinfer(self, op: str) -> None:
        found = verdicts(op, H100, "float32", **ATTENTION)
        assert chosen(found) == "triton"
        refusal = found["flashinfer"]
        assert isinstance(refusal, Decline)
        assert "the site asks for float32" in refusal.why

    def test_odd_head_dim_is_refused_by_both(self, op: str) -> None:
        found = verdicts(op, H100, **(ATTENTION | {"head_dim": 80}))
        assert all(isinstance(v, Decline) and "the site has 80" in v.why for v in found.values())


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (CPU, "needs a device of type cuda; this one is cpu"),
        (V100, "not compiled for sm_70"),
    ],
)
def test_other_devices_are_refused(device: Capabilities, why: str) -> None:
    (found,) = verdicts("rms_norm@1", device, hidden=4096).values()
    assert isinstance(found, Decline)
    assert found.why.startswith(why)


def test_a_row_too_wide_for_one_program_is_refused() -> None:
    (found,) = verdicts("rms_norm@1", H100, hidden=32768).values()
    assert found == Decline("takes hidden up to 16384; the site has 32768")


def few(rows: tuple[int, int | None], op: str, dtype: str = "bfloat16") -> dict[str, Verdict]:
    site = CallSite(op, "layers.0", dtype, H100, ATTENTION, rows=rows)
    return {kernel.name: kernel.accept(site) for kernel in catalog.kernels() if kernel.op == op}


@pytest.mark.parametrize("op", ["attention_decode@1", "attention_decode_fp8@1"])
class TestDecodeOfFewRows:
    def test_a_row_alone_is_split(self, op: str) -> None:
        assert few((1, 1), op)["split"] == Accept(110, "split on sm_90")
        assert chosen(few((9, 16), op)) == "split"

    def test_many_rows_are_cut_evenly(self, op: str) -> None:
        assert chosen(few((17, 32), op)) == "triton"
        assert few((65, 128), op)["split"] == Accept(90, "split on sm_90"), "to be measured"
        assert few((1, None), op)["split"] == Decline(
            "takes up to 128 rows; the site may have any number"
        )


@pytest.mark.parametrize("op", ["attention_decode_fp8@1", "attention_prefill_fp8@1"])
def test_eight_bit_kv_is_for_half_precision_and_gpus_that_convert_it(op: str) -> None:
    assert chosen(few((1, None), op)) == "triton"
    refusal = few((1, None), op, "float32")["triton"]
    assert isinstance(refusal, Decline)
    assert "the site asks for float32" in refusal.why
    older = replace(H100, arch="sm_80")
    refusal = verdicts(op, older, **ATTENTION)["triton"]
    assert isinstance(refusal, Decline)
    assert refusal.why.startswith("sm_80 does not convert to float8_e4m3fn")


FP8_LINEAR: dict[str, Trait] = {"n": 6144, "k": 4096, "bias": False}


def test_many_rows_of_an_eight_bit_linear_are_cublas_work() -> None:
    assert chosen(verdicts("linear_fp8@1", H100, **FP8_LINEAR)) == "cublaslt"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"k": 4224}, "reads the scales of four blocks of 128 at once; the site has k=4224"),
        ({"n": 6100}, "writes 16 features at once; the site has n=6100"),
        ({"bias": True}, "adds no bias; the site has one"),
    ],
)
def test_what_cublas_refuses_is_served_by_tiles(change: dict[str, Trait], why: str) -> None:
    found = verdicts("linear_fp8@1", H100, **(FP8_LINEAR | change))
    assert found["cublaslt"] == Decline(why)
    assert chosen(found) == "tiles"


def test_flashinfer_prefills_from_eight_bit_kv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "find_spec", lambda name: object())
    found = verdicts("attention_prefill_fp8@1", H100, **ATTENTION)
    assert found["flashinfer"] == Accept(120, "flashinfer on sm_90")
    assert chosen(found) == "flashinfer"
    assert chosen(verdicts("attention_prefill_fp8@1", B200, **ATTENTION)) == "triton"


def test_manifest_claims_what_the_catalog_holds() -> None:
    text = files("tokenspeed_nvidia").joinpath("tokenspeed_plugin.toml").read_text()
    provided = {entry["contract"]: entry for entry in tomllib.loads(text)["provides"]}
    held = [f"{kernel.op}:{kernel.name}" for kernel in catalog.kernels()]
    assert provided["kernel"]["claims"] == held
    assert set(provided) == {"platform", "kernel"}


def test_discovery_is_light() -> None:
    code = (
        "import sys\n"
        "from tokenspeed_nvidia.catalog import kernels\n"
        "from tokenspeed_nvidia.platform import NvidiaPlatform\n"
        "kernels(), NvidiaPlatform().probe()\n"
        "heavy = {'torch', 'triton', 'flashinfer', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
