# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a client saw of its requests, and the figures that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

PERCENTILES = (50, 90, 99)


@dataclass
class Answer:
    """One request: when it was sent and when its tokens came, in seconds of one clock.

    Attributes:
        arrivals: of each piece of the answer; several tokens may come in one piece.
        tokens: in all pieces together.
    """

    sent: float
    arrivals: list[float] = field(default_factory=list)
    tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.arrivals[0] - self.sent

    @property
    def ended(self) -> float:
        """When the last token came."""
        return self.arrivals[-1]

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces: inter-token latencies where a piece is a token."""
        gaps: list[float] = np.diff(self.arrivals).tolist()
        return gaps

    @property
    def tpot(self) -> float | None:
        """Seconds for each token after the first; None for an answer of one token."""
        return (self.ended - self.arrivals[0]) / (self.tokens - 1) if self.tokens > 1 else None


def percentile(values: Iterable[float], percent: float) -> float:
    """Linear between the two nearest ranks, as numpy's default; nan without values."""
    taken = np.fromiter(values, np.float64)
    return float(np.percentile(taken, percent)) if len(taken) else float("nan")


def latencies(answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """Percentiles in milliseconds: {"ttft_ms": {"p50": ...}, "itl_ms": ...}."""
    times = {
        "ttft_ms": [answer.ttft for answer in answers],
        "itl_ms": [gap for answer in answers for gap in answer.gaps],
    }
    return {
        name: {f"p{p}": round(percentile(taken, p) * 1e3, 3) for p in PERCENTILES}
        for name, taken in times.items()
        if taken
    }


def tokens_per_user(answers: Sequence[Answer]) -> float:
    """Tokens per second that a user sees while an answer comes: 1 / mean TPOT."""
    times = [answer.tpot for answer in answers if answer.tpot is not None]
    return len(times) / sum(times) if times else float("nan")
