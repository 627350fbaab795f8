# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What ``tools/gpu_check`` found: outcomes of commands and tests, and the table of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree


@dataclass(frozen=True)
class Step:
    """One command: what, how it ended (ok, failed or left), how long, the end of what it said."""

    name: str
    result: str
    seconds: float = 0.0
    output: str = ""


@dataclass(frozen=True)
class Test:
    """One test's outcome: passed, failed, error or skipped."""

    name: str
    outcome: str
    seconds: float
    message: str = ""

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]


@dataclass
class Report:
    """All that the run found, as it is written to gpu_check.json."""

    facts: dict[str, str]
    builds: list[Step] = field(default_factory=list)
    tests: list[Test] = field(default_factory=list)
    pytest_status: int = -1
    others: list[Step] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        ran = [test for test in self.tests if test.outcome != "skipped"]
        return (
            all(step.result != "failed" for step in self.builds + self.others)
            and bool(ran)
            and all(test.outcome == "passed" for test in ran)
            and self.pytest_status == 0
        )


def read_results(path: Path) -> list[Test]:
    """The outcomes in a file of pytest's --junitxml."""
    return [read_case(case) for case in ElementTree.parse(path).getroot().iter("testcase")]


def read_case(case: ElementTree.Element) -> Test:
    module = case.get("classname", "").replace(".", "/")
    name = f"{module}::{case.get('name')}"
    seconds = round(float(case.get("time", 0)), 2)
    for tag, outcome in (("failure", "failed"), ("error", "error"), ("skipped", "skipped")):
        if (found := case.find(tag)) is not None:
            return Test(name, outcome, seconds, found.get("message", "")[:2000])
    return Test(name, "passed", seconds)


def print_table(report: Report) -> None:
    """Facts, what was built, outcomes by file, and what went wrong."""
    for name, value in report.facts.items():
        print(f"{name:14}{value}")
    print_steps("build", report.builds)
    print(f"\n{'tests':48}{'passed':>10}{'failed':>10}{'skipped':>10}{'seconds':>10}")
    for file in sorted({test.file for test in report.tests}):
        tests = [test for test in report.tests if test.file == file]
        count = Counter(test.outcome for test in tests)
        failed = count["failed"] + count["error"]
        spent = sum(test.seconds for test in tests)
        print(f"{file:48}{count['passed']:10}{failed:10}{count['skipped']:10}{spent:10.1f}")
    print_steps("other", report.others)
    print_problems(report)
    print(f"\n{'OK' if report.ok else 'NOT OK'}: pytest ended with status {report.pytest_status}")


def print_steps(title: str, steps: list[Step]) -> None:
    print(f"\n{title:48}{'result':>10}{'seconds':>10}")
    for step in steps:
        print(f"{step.name:48}{step.result:>10}{step.seconds:10.1f}")


def print_problems(report: Report) -> None:
    for step in report.builds:
        if step.result != "ok":
            print(f"\n{step.result.upper()} {step.name}\n{step.output[-1500:]}")
    for step in report.others:
        print(f"\n{step.name}: {step.result}\n{step.output[-3000:]}")
    for test in report.tests:
        if test.outcome in ("failed", "error"):
            print(f"\n{test.outcome.upper()} {test.name}\n    {test.message[:300]}")
    for reason, count in Counter(t.message for t in report.tests if t.outcome == "skipped").items():
        print(f"skipped {count}: {reason[:200]}")
