# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Draw the scheduler's transition table into docs/scheduler.md, between its two markers.

python tools/scheduler_diagram.py          # after a change of the table
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from tokenspeed._scheduler import transition_table

PAGE = Path(__file__).parent.parent / "docs" / "scheduler.md"
START, END = "<!-- transitions -->\n", "<!-- end of transitions -->\n"


def diagram() -> str:
    """The rows that lead somewhere as a Mermaid state diagram; parallel arrows share a line."""
    arrows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for state, event, outcome in transition_table():
        if outcome not in ("ignore", "reject"):
            arrows[state, outcome].append(event)
    first = transition_table()[0][0]
    lines = [f"    [*] --> {first}"]
    lines += [f"    {a} --> {b}: {', '.join(events)}" for (a, b), events in arrows.items()]
    lines.append("    Finished --> [*]")
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


def drawn(page: str) -> str:
    """The page with the diagram of today's table."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}{diagram()}{END}{after}"


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(drawn(PAGE.read_text()))


if __name__ == "__main__":
    main()
