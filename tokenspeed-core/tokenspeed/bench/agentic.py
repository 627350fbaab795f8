# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Turns of users with long histories of their own, which are cached when the clock starts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenspeed.bench.answers import latencies
from tokenspeed.bench.floors import Turns
from tokenspeed.bench.prompts import random_prompt
from tokenspeed.bench.report import Report, Row, compare_times, new_report
from tokenspeed.bench.session import Progress, session
from tokenspeed.bench.turns import Conversation, Played, Tokens, play

if TYPE_CHECKING:
    from tokenspeed.bench.engine import MeasuredEngine
    from tokenspeed.config import EngineConfig

TURNS = Turns(users=8, history=24 * 1024, turns=6, added=512, output=128)


def name(work: Turns) -> str:
    """Such as agentic_8x24k_6turns."""
    whole, rest = divmod(work.history, 1024)
    size = f"{work.history}" if rest else f"{whole}k"
    return f"agentic_{work.users}x{size}_{work.turns}turns"


def measure(
    engine: MeasuredEngine, work: Turns, repetitions: int, progress: Progress, *, lockstep: bool
) -> list[Played]:
    """Cache the histories once; then all turns, several times, with new tokens each time."""
    histories = [random_prompt(work.history) for _ in range(work.users)]
    engine.answers(histories, 1)
    progress(f"{work.users} histories of {work.history} tokens are cached")
    taken = []
    for _ in range(repetitions):
        taken.append(play(engine, [_conversation(it, work) for it in histories], lockstep=lockstep))
        progress(f"agentic: {taken[-1].seconds:.3f} s, {taken[-1].hit_rate:.1%} of the prompts hit")
    return taken


def _conversation(history: Tokens, work: Turns) -> Conversation:
    return Conversation(
        history, [random_prompt(work.added) for _ in range(work.turns)], work.output
    )


def summary(played: Played) -> dict[str, object]:
    """What is worth keeping of one repetition."""
    return {
        "seconds": round(played.seconds, 4),
        "hit_rate": round(played.hit_rate, 4),
        "steps": played.work.steps,
        "prefill_steps": played.work.prefill_steps,
        "prefill_steps_s": round(played.work.prefill_s, 4),
        "decode_steps_s": round(played.work.decode_s, 4),
        "between_steps_s": round(played.between_steps_s, 4),
        "host_us": played.work.host_us,
        **latencies(played.answers),
    }


def run(
    config: EngineConfig, work: Turns, *, lockstep: bool, repetitions: int, progress: Progress
) -> Report:
    """Measure the turns beside their floor."""
    with session(
        config,
        rows=[work.users],
        prompts=[work.history],
        repetitions=repetitions,
        progress=progress,
    ) as it:
        taken = measure(it.engine, work, repetitions, progress, lockstep=lockstep)
        floor = it.floors.agentic(work)
    total = compare_times(
        f"{work.turns} turns of {work.users} users",
        unit="ms",
        ours_s=[played.seconds for played in taken],
        theirs_s=[floor],
        versus="floor",
    )
    notes = {
        "device": it.machine.name,
        "agentic": f"{work.users} users with {work.history} tokens each, cached before; turns of "
        f"+{work.added} tokens and {work.output} decoded; weights: {config.load}",
        "users": "in lockstep" if lockstep else "each sends the next turn when its answer ended",
        "between steps": f"{statistics.median(p.between_steps_s for p in taken):.3f} s",
    }
    samples = {"seconds": [played.seconds for played in taken]}
    samples["hit rate"] = [played.hit_rate for played in taken]
    return new_report("ts bench agentic", config.model, [total, *rows(taken)], samples, notes)


def rows(taken: Sequence[Played]) -> list[Row]:
    """Hit rate and latencies of all repetitions together."""
    hits = statistics.median(played.hit_rate for played in taken)
    answers = [answer for played in taken for answer in played.answers]
    return [
        Row(what="prompt tokens from the prefix cache", unit="%", ours=round(hits * 100, 2)),
        *(
            Row(what=f"{kind.removesuffix('_ms').upper()} {percent}", unit="ms", ours=ms)
            for kind, percentiles in latencies(answers).items()
            for percent, ms in percentiles.items()
        ),
    ]
