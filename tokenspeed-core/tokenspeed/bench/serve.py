# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What clients of an HTTP server get: latencies, and how many answers came in time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.bench.answers import latencies, tokens_per_user
from tokenspeed.bench.http_load import Outcome, Traffic, drive
from tokenspeed.bench.report import Report, Row, new_report
from tokenspeed.bench.served import served

if TYPE_CHECKING:
    from tokenspeed.bench.session import Progress


@dataclass(frozen=True)
class Limits:
    """Milliseconds that a good answer may take: to its first token, and for each one after it."""

    ttft_ms: float
    itl_ms: float


def run(
    target: str, traffic: Traffic, limits: Limits, *, arguments: Sequence[str], progress: Progress
) -> Report:
    """Drive a running server, or one of its own.

    Args:
        target: the server's URL, or the folder of a model to serve with ``arguments``.
    """
    running = target.startswith(("http://", "https://"))
    with nullcontext() if running else served(target, arguments) as own:
        url = target if own is None else own.url
        outcome = asyncio.run(drive(url, traffic, progress))
    pace = f"{traffic.rate:g} requests/s" if traffic.rate else f"{traffic.concurrency} at once"
    notes = {
        "traffic": f"{traffic.requests} requests, {pace}, prompts of {traffic.words} random words, "
        f"{traffic.output} tokens answered",
        "server": target if running else " ".join(["ts serve", target, *arguments]),
        "goodput": f"answers with TTFT <= {limits.ttft_ms:g} ms and a mean ITL of "
        f"<= {limits.itl_ms:g} ms",
        **{f"error ({count} times)": text for text, count in outcome.errors.items()},
    }
    samples = {
        "ttft s": [answer.ttft for answer in outcome.answers],
        "tpot s": [answer.tpot for answer in outcome.answers if answer.tpot is not None],
    }
    return new_report("ts bench serve", target, _rows(outcome, limits), samples, notes)


def _rows(outcome: Outcome, limits: Limits) -> list[Row]:
    answers, seconds = outcome.answers, outcome.seconds
    sent = len(answers) + outcome.errors.total()
    good = outcome.good(limits.ttft_ms / 1e3, limits.itl_ms / 1e3)
    goodput = Row(
        what="goodput",
        unit="requests/s",
        ours=round(good / seconds, 3),
        versus="all requests",
        theirs=round(sent / seconds, 3),
        ratio=round(good / sent, 4),
    )
    figures = [
        ("errors", "requests", float(outcome.errors.total())),
        ("tokens answered", "tokens/s", sum(answer.tokens for answer in answers) / seconds),
        ("tokens of a user", "tokens/s", tokens_per_user(answers)),
    ]
    figures += [
        (f"{kind.removesuffix('_ms').upper()} {percent}", "ms", ms)
        for kind, percentiles in latencies(answers).items()
        for percent, ms in percentiles.items()
    ]
    return [
        goodput,
        *(Row(what=what, unit=unit, ours=round(value, 3)) for what, unit, value in figures),
    ]
