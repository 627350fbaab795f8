# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Every plugin that a launch activates ends up somewhere, or the start fails and names it.

check_wired(plan.of("observer"), [Wired(planned, 3, "3 hooks") for ...])
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tokenspeed.plugins.discover.origin import mend
from tokenspeed.plugins.errors import NotWiredError
from tokenspeed.plugins.plan import Planned


@dataclass(frozen=True)
class Wired:
    """Where a provision ended up.

    Attributes:
        places: number of things that use it: ops it is a candidate for, hooks it implements.
        what: the same for people, such as "candidate for 12 ops, chosen at 211 sites".
    """

    planned: Planned
    places: int
    what: str


def check_wired(active: Iterable[Planned], wired: Iterable[Wired]) -> None:
    """NotWiredError names a provision that was activated and that nothing uses."""
    used = {found.planned for found in wired if found.places}
    for planned in active:
        if planned not in used:
            raise NotWiredError(
                f"{planned.contract} {planned.name} of {planned.owner} was activated, "
                "and nothing uses it",
                where=planned.value,
                fix=f"deny it: --deny {planned.contract}={planned.name}, "
                f"or {mend(planned.distribution)}",
            )
