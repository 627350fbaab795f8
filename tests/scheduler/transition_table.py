# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The transition table of the control plane as text, to be written back with one thing changed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

CSRC = Path(__file__).resolve().parents[2] / "tokenspeed-core" / "csrc"
HEADER = CSRC / "fsm" / "transitions.h"

TABLE = re.compile(r"(?<=using Transitions = Table<\n)(.*?)(?=^>;)", re.DOTALL | re.MULTILINE)
LINE = re.compile(r"^\s*(On|From)<(.*)>,?$")


def split_cells(text: str) -> list[str]:
    return [cell.strip() for cell in text.split(",")]


@dataclass
class Table:
    """``lines[i]`` is [state, outcome of every event in order]."""

    events: list[str]
    lines: list[list[str]]

    @classmethod
    def read(cls) -> Table:
        found = TABLE.search(HEADER.read_text())
        assert found, f"{HEADER} has no table in the form that this test reads"
        matches = [LINE.match(line) for line in found[1].splitlines() if line.strip()]
        assert all(matches), f"{HEADER}: a line of the table is neither On<> nor From<>"
        kinds = [match[1] for match in matches if match]
        cells = [split_cells(match[2]) for match in matches if match]
        assert kinds == ["On"] + ["From"] * (len(kinds) - 1)
        return cls(cells[0], cells[1:])

    def states(self) -> list[str]:
        return [line[0] for line in self.lines]

    def line(self, state: str) -> list[str]:
        return self.lines[self.states().index(state)]

    def outcome(self, state: str, event: str) -> str:
        return self.line(state)[1 + self.events.index(event)]

    def set(self, state: str, event: str, outcome: str) -> None:
        assert self.outcome(state, event) != outcome, "that changes nothing"
        self.line(state)[1 + self.events.index(event)] = outcome

    def text(self) -> str:
        """The text of transitions.h with this table in it."""
        rows = [f"  On<{', '.join(self.events)}>"]
        rows += [f"  From<{', '.join(line)}>" for line in self.lines]
        return TABLE.sub(lambda _: ",\n".join(rows) + "\n", HEADER.read_text(), count=1)
