# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What must not compile does not, and for the reason that it should not.

Every case has a twin that differs in nothing but the mistake, and the twin compiles.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from transition_table import CSRC, Table

COMPILER = shlex.split(os.environ.get("CXX", "g++"))
SOURCES = sorted((CSRC / "tests" / "negative").glob("*.cpp"))
EXPECTED = re.compile(r"^// expect: (.+)$", re.MULTILINE)

pytestmark = pytest.mark.skipif(
    shutil.which(COMPILER[0]) is None, reason=f"there is no C++ compiler {COMPILER[0]}"
)


def errors_of(source: Path, *options: str) -> str:
    """What the compiler says against ``source``; empty when it compiles."""
    done = subprocess.run(
        [*COMPILER, "-std=c++20", "-fsyntax-only", *options, f"-I{CSRC}", str(source)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "LC_ALL": "C"},
    )
    assert (done.returncode == 0) == ("error:" not in done.stderr), done.stderr
    return done.stderr if done.returncode else ""


def assert_compiles(source: Path, *options: str) -> None:
    errors = errors_of(source, *options)
    assert not errors, errors


def assert_refused(expected: str, source: Path, *options: str) -> None:
    errors = errors_of(source, *options)
    assert errors, f"compiles: {source.name} {options}"
    assert expected in errors, errors


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_source(source: Path) -> None:
    """``// expect:`` names the words of the error under -DBREAK; without it the file compiles."""
    [expected] = EXPECTED.findall(source.read_text())
    assert_compiles(source)
    assert_refused(expected, source, "-DBREAK")


def test_there_are_sources() -> None:
    assert len(SOURCES) >= 5


# -- The table itself, with one thing changed ------------------------------------------------------


class Overlay:
    """A folder that stands before csrc in the include path, with a transitions.h of its own."""

    def __init__(self, folder: Path, program: str) -> None:
        self.options = f"-I{folder}"
        self.header = folder / "fsm" / "transitions.h"
        self.header.parent.mkdir()
        self.source = folder / "program.cpp"
        self.source.write_text(program)
        self.header.write_text(Table.read().text())
        assert_compiles(self.source, self.options)

    def check(self, expected: str, change: Callable[[Table], None]) -> None:
        """The table compiled as it is; with ``change`` it does not, and the error says why."""
        table = Table.read()
        change(table)
        self.header.write_text(table.text())
        assert_refused(expected, self.source, self.options)


@pytest.fixture(scope="module")
def table_alone(tmp_path_factory: pytest.TempPathFactory) -> Overlay:
    return Overlay(tmp_path_factory.mktemp("table"), '#include "fsm/transitions.h"\n')


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Overlay:
    """The table with its actions, every cell of it compiled."""
    steps = [
        f"template OutcomeKind step<{event}>(Request&, {event}&&, Effects&) noexcept;"
        for event in Table.read().events
    ]
    lines = ['#include "fsm/machine.h"', "namespace tokenspeed::fsm {", *steps, "}", ""]
    return Overlay(tmp_path_factory.mktemp("machine"), "\n".join(lines))


@pytest.mark.parametrize("index", range(len(Table.read().lines)))
def test_an_entry_is_missing(table_alone: Overlay, index: int) -> None:
    def remove(table: Table) -> None:
        del table.lines[index][1 + index % len(table.events)]

    table_alone.check("a line answers every event", remove)


def test_an_event_is_not_answered(table_alone: Overlay) -> None:
    table_alone.check("a line answers every event", lambda table: table.events.pop())


def test_an_entry_too_many(table_alone: Overlay) -> None:
    table_alone.check("a line answers every event", lambda table: table.lines[0].append("_"))


def test_a_state_is_missing(table_alone: Overlay) -> None:
    table_alone.check("each state and each event appears once", lambda table: table.lines.pop())


def test_a_state_twice(table_alone: Overlay) -> None:
    def double(table: Table) -> None:
        table.lines.append(list(table.lines[1]))

    table_alone.check("each state and each event appears once", double)


def test_an_event_twice(table_alone: Overlay) -> None:
    def double(table: Table) -> None:
        table.events.append(table.events[0])
        for line in table.lines:
            line.append(line[1])

    table_alone.check("each state and each event appears once", double)


def test_an_unreachable_state(table_alone: Overlay) -> None:
    def cut_off(table: Table) -> None:
        state = table.states()[-2]
        for line in table.lines:
            if line[0] != state:
                line[1:] = ["_" if cell == f"to<{state}>" else cell for cell in line[1:]]

    table_alone.check("every_state_reachable_from<Waiting>", cut_off)


def test_a_request_that_never_ends_by_itself(table_alone: Overlay) -> None:
    table_alone.check(
        "a request must be able to end by itself",
        lambda table: table.set("Draining", "Drained", "_"),
    )


def test_an_action_leads_elsewhere(machine: Overlay) -> None:
    machine.check(
        "the action leads elsewhere",
        lambda table: table.set("Retracting", "Drained", "to<Finished>"),
    )


@pytest.mark.parametrize("outcome", ["ignore", "reject"])
def test_an_action_for_a_cell_that_has_none(machine: Overlay, outcome: str) -> None:
    machine.check(
        "an action for a cell that says ignore or reject",
        lambda table: table.set("Waiting", "Expire", outcome),
    )


def test_a_cell_without_its_action(machine: Overlay) -> None:
    machine.check(
        "no matching function for call to",
        lambda table: table.set("Draining", "Abort", "to<Finished>"),
    )
