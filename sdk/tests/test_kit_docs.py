# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The files that docs/test-kit.md shows run as they stand, against a vendor's package."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.rule("R19")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "test-kit.md"
TEXT = PAGE.read_text().partition("\n## Models")[0]
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
"""Blocks that begin with a file's name; those on models are tested with the models."""

ACME = """
import torch
from tokenspeed_sdk.contracts.probe import Accept, Decline

class GatherRows:
    op, name = "gather_rows@1", "acme"

    def accept(self, site):
        if site.device.arch == "x86-64-v2":
            return Decline("needs x86-64-v3 or newer")
        return Accept(10, f"torch indexing on {site.device.arch}")

    def bind(self, site):
        return lambda x, index: x[index]

    def pack_weight(self, site, weight):
        return weight

def kernels():
    return (GatherRows(),)
"""

ACME_NPU = """
from tokenspeed_sdk.contracts.probe import Decline
from tokenspeed_sdk.testing import FakePlatform

class AcmePlatform(FakePlatform):
    def probe(self):
        return Decline("no driver of Acme's in this machine")
"""


def _sound(test: str) -> str:
    """What a test of a kit has before its first test: the implementation that passes."""
    text = Path(__file__).with_name(test).read_text()
    return re.split(r"\n\n(?:@.*\n)*def test_", text)[0].replace("pytestmark", "# ")


ACME_GRAMMAR = _sound("test_kit_grammar.py") + "\n\nAcme = Regexes\n"

ACME_DRAFTER = _sound("test_kit_drafter.py") + "\n\nAcme = Follower\n"

ACME_HEAD = _sound("test_kit_draft_model.py") + "\n\nAcme, CONFIG = Recurrent, {}\n"


def test_every_block_is_a_file() -> None:
    assert len(FILES) == TEXT.count("```python") > 0


def test_every_file_runs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(acme_kernels=ACME)
    pytester.makepyfile(acme_grammar=ACME_GRAMMAR)
    pytester.makepyfile(acme_drafter=ACME_DRAFTER)
    pytester.makepyfile(acme_head=ACME_HEAD)
    pytester.mkpydir("acme_npu").joinpath("platform.py").write_text(ACME_NPU)
    for name, text in FILES.items():
        (pytester.path / name).write_text(text)
    run = pytester.runpytest_subprocess("--strict-markers", "-q", "-rs")
    run.stdout.fnmatch_lines(["*platform fake declines: no driver of Acme's in this machine"])
    counts = run.parseoutcomes()
    assert set(counts) <= {"passed", "skipped", "warnings"}
    assert counts["passed"] > 50
    assert pytester.run(sys.executable, "check.py").ret == 0
