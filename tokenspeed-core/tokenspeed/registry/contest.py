# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Who serves a call site for a range of rows: the fastest where times are known, else by score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tokenspeed.registry import by_rows
from tokenspeed.registry.candidates import Judged, rank, why_not
from tokenspeed.registry.timings import Timing

NEAR = 1.02
"""Times within 2 % of the least are a tie, which the score decides: the next measuring may swap
them, and choices should stay."""

Source: TypeAlias = Literal["measured", "cache", "score", "pin"]


@dataclass(frozen=True)
class Contest:
    """What decided for one range of rows of a call site.

    Attributes:
        source: times measured in this process, times from the cache, the score, or a pin.
        chosen: name of the kernel.
        times: of the kernels that were measured, by name.
    """

    rows: by_rows.RowRange
    source: Source
    chosen: str
    times: Mapping[str, Timing] = field(default_factory=dict)


def best(fit: Sequence[Judged], times: Mapping[str, Timing]) -> tuple[Judged, bool]:
    """The winner of those that serve a site, and whether its time made it so.

    A kernel that plans its steps has no time, for one call tells nothing of what planning costs the
    host nor of running outside a captured graph: where its score is the highest, scores decide.
    """
    first = min(fit, key=rank)
    timed = {j.candidate.name: us for j in fit if (us := _us(j, times)) is not None}
    if not timed or _plans(first, times):
        return first, False
    limit = min(timed.values()) * NEAR
    tied = [j for j in fit if timed.get(j.candidate.name, limit + 1) <= limit]
    return min(tied, key=rank), True


def why_chosen(judged: Judged, contest: Contest) -> str:
    """The reason for the winner."""
    said = f"score {judged.score}: {judged.reason}"
    us = _us(judged, contest.times)
    if contest.source == "pin":
        return f"pinned; {judged.reason}"
    if us is None or contest.source == "score":
        return said
    least = min(t.us for t in contest.times.values() if t.us is not None)
    return f"{'fastest' if us == least else 'as fast as the fastest'} as measured; {said}"


def why_lost(judged: Judged, contest: Contest) -> str:
    """The reason against one of the others."""
    pin = contest.chosen if contest.source == "pin" else None
    timing = contest.times.get(judged.candidate.name)
    if timing is None or pin or judged.score is None:
        return why_not(judged, pin)
    said = f"score {judged.score}: {judged.reason}"
    if timing.failed:
        return f"failed while it was measured: {timing.failed}; {said}"
    return why_not(judged, None) if timing.us is None else f"not faster as measured; {said}"


def _us(judged: Judged, times: Mapping[str, Timing]) -> float | None:
    timing = times.get(judged.candidate.name)
    return None if timing is None else timing.us


def _plans(judged: Judged, times: Mapping[str, Timing]) -> bool:
    timing = times.get(judged.candidate.name)
    return timing is not None and timing.us is None and not timing.failed
