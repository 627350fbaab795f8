# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the one line in a vendor's test file makes: which tests, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import pytest
import torch
from tokenspeed_sdk.contracts.kernel import BoundKernel, CallSite
from tokenspeed_sdk.contracts.probe import Accept, Decline, Verdict
from tokenspeed_sdk.testing import TINY, Call, Case, Inputs, kernel_conformance
from tokenspeed_sdk.testing.kernel.cases import cases_of

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.rule("R19")


@dataclass(frozen=True)
class Gather:
    """A right kernel that serves what ``when`` lets through."""

    op: str = "gather_rows@1"
    name: str = "acme"
    when: Callable[[CallSite], bool] = lambda site: True

    def accept(self, site: CallSite) -> Verdict:
        return Accept(1, "fits") if self.when(site) else Decline(f"not for {site.dtype}")

    def bind(self, site: CallSite) -> BoundKernel:
        return lambda x, index: x[index]

    def pack_weight(self, site: CallSite, weight: Any) -> Any:
        return weight


def outcomes(kernels: Any, **options: Any) -> dict[str, str]:
    """What becomes of each test that the one line makes: its id to "passed" or the reason."""
    test: Any = kernel_conformance(kernels, ops=["gather_rows@1"], grid=TINY, **options)
    (mark,) = test.pytestmark
    found = {}
    for param in mark.args[1]:
        try:
            test(*param.values)
            found[param.id] = "passed"
        except (pytest.skip.Exception, pytest.fail.Exception) as outcome:
            found[param.id] = f"{type(outcome).__name__}: {outcome}"
    return found


SIX = len(cases_of("gather_rows@1", TINY))
BINDING = "gather_rows@1:acme-one_binding-rows5-37-float32"
SERVES = "gather_rows@1:acme-serves_a_site"


def test_one_line_makes_one_test_per_case() -> None:
    found = outcomes(lambda: [Gather(), Gather("linear@1")])
    assert list(found.values()) == ["passed"] * (1 + SIX + 1)
    assert BINDING in found
    assert "gather_rows@1:acme-rows5-37-float32" in found


def test_declined_cases_are_skipped_with_the_reason() -> None:
    kernel = Gather(when=lambda site: site.dtype == "float32")
    found = outcomes([kernel], dtypes=["float32", "float16"])
    assert found[SERVES] == "passed"
    said = {why for name, why in found.items() if name.endswith("float16")}
    assert said == {"Skipped: gather_rows@1:acme declines: not for float16"}


def test_a_kernel_that_declines_everything_fails() -> None:
    found = outcomes([Gather(when=lambda site: False)])
    assert found[SERVES] == f"Failed: {SERVES}: declines every site of its op: not for float32"


def test_a_moody_kernel_fails() -> None:
    moods = cycle([True, False])
    found = outcomes([Gather(when=lambda site: next(moods))])
    assert found[SERVES] == f"Failed: {SERVES}: accept says different things to equal sites"


def test_a_missing_device_skips() -> None:
    found = outcomes([Gather()], device="cuda:7")
    assert found.pop(SERVES) == "passed"
    assert all(why.startswith("Skipped: no device cuda:7 here: ") for why in found.values())


def test_an_authors_case_runs_beside_the_others() -> None:
    def make(inputs: Inputs) -> Call:
        return Call((inputs.normal(4, 8), inputs.ints([3, 3], torch.int64)))

    case = Case("twice_the_last", "gather_rows@1", {}, make, rows=2)
    found = outcomes([Gather()], cases=[case])
    assert found["gather_rows@1:acme-twice_the_last-float32"] == "passed"
    assert len(found) == 2 + SIX + 1


VENDOR = """
from tokenspeed_sdk.contracts.probe import Accept
from tokenspeed_sdk.testing import kernel_conformance

class Gather:
    op, name = "gather_rows@1", "acme"
    def accept(self, site):
        return Accept(1, "acme")
    def bind(self, site):
        return lambda x, index: x[index.flip(0)]

test_kernels = kernel_conformance([Gather()], device="cpu", dtypes=["float32"])
"""


def test_pytest_reports_a_wrong_kernel(pytester: pytest.Pytester) -> None:
    run = pytester.runpytest_inprocess(str(pytester.makepyfile(test_vendor=VENDOR)))
    counts = run.parseoutcomes()
    assert counts["failed"] > 5 < counts["passed"]  # with one row, any order is right
    run.stdout.fnmatch_lines(
        ["gather_rows@1:acme, case rows17-37, float32: the result differs from the reference (*"]
    )


def test_nothing_to_test_and_strange_ops_are_errors() -> None:
    with pytest.raises(ValueError, match=r"no kernel is left to test with ops=.*held: rope@1:acme"):
        kernel_conformance([Gather("rope@1")], ops=["rope@2"])
    with pytest.raises(ValueError, match="no public op: acme::rope@1"):
        kernel_conformance([Gather("acme::rope@1")])
    with pytest.raises(LookupError, match="'rope@9' is no public op; use one of embedding@1"):
        cases_of("rope@9")
