# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The kernel on the page of the ABI compiles, runs and is right; every field is explained there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenspeed_sdk.contracts.kernel import CallSite
from tokenspeed_sdk.contracts.probe import Accept, Decline
from tokenspeed_sdk.native import abi, open_library
from tokenspeed_sdk.native.kernel import load_kernels
from tokenspeed_sdk.ops import OPS
from tokenspeed_sdk.testing import CPU, H100

PAGE = Path(__file__).parents[3] / "docs" / "contracts" / "native.md"


@pytest.fixture
def page() -> str:
    if not PAGE.exists():
        pytest.skip("the documentation is not beside the sdk")
    return PAGE.read_text()


def test_the_example(page: str, tmp_path: Path, compiled: Callable[..., Path]) -> None:
    source = tmp_path / "example.c"
    (example,) = re.findall(r"^```c\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    source.write_text(example)
    (kernel,) = load_kernels(open_library(compiled(source=source)))
    site = CallSite("silu_and_mul@1", "act", "float32", CPU, {"inter": 24})
    assert isinstance(kernel.accept(site), Accept)
    elsewhere = CallSite("silu_and_mul@1", "act", "bfloat16", H100, {"inter": 24})
    declined = kernel.accept(elsewhere)
    assert declined == Decline("float32 on a CPU only; the site is bfloat16 on cuda")
    x = torch.randn(1000, 60)[:, 6:54]
    torch.testing.assert_close(kernel.bind(site)(x), OPS[site.op].reference(x))
    with pytest.raises(ValueError, match="x must be float32 and 48 wide"):
        kernel.bind(site)(x[:, :46])


def test_every_field_that_an_author_meets_is_explained(page: str) -> None:
    why = page[page.index("## Why each field exists") : page.index("## What was left out")]
    structs = {
        "ts_site": abi.Site,
        "ts_verdict": abi.Verdict,
        "ts_kernel": abi.Kernel,
        "ts_library": abi.LibraryTable,
    }
    counted = ("size", "abi", "reserved")
    for name, struct in structs.items():
        rows = "\n".join(line for line in why.splitlines() if f"`{name}." in line)
        for field in (field[0] for field in struct._fields_):
            if field not in counted and not field.startswith("num_") and field != "kernels":
                assert re.search(rf"`({name}\.)?{field}`", rows), f"{name}.{field}"
