# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Hit tokens with and without retention, on traces of agent sessions, at equal pool.

    python -m bench.retention.run --save bench/results/retention.json

(from the repository's root, with tokenspeed-core installed). It drives the real scheduler through
its binding, twice over each trace of ``bench/traces/agentic.py``: once with ``retention=False``,
which is plain LRU, and once with ``retention=True``. Only the device is not real: a step takes
STEP_US + TOKEN_US per query token of virtual time, answers are the trace's, and a session's next
turn comes its pause after the end of the one before. So a run is the same on every machine.

A hit token is a prompt token that was not computed, counted once for each request. Exit code 1 when
a ratio misses its bar.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenspeed._scheduler import (
    Blocked,
    CacheGroupConfig,
    Config,
    Finish,
    Plan,
    PlanBuffers,
    Rejection,
    RowFlag,
    Scheduler,
    max_copies,
    max_transfer_pages,
)
from tokenspeed.bench.report import Report, Row, new_report, save, show

from bench.traces.agentic import SEED, SHAPES, Trace, generate, pool_tokens

PAGE_SIZE = 16
MAX_SEQS = 64
MAX_STEP_TOKENS = 2048
STEP_US = 8000
TOKEN_US = 10

# The least ratio of hit tokens to those of plain LRU. `agents` is only reported: where most
# sessions return, LRU itself holds few pages for nothing.
BARS = {"agents": None, "mixed": 1.5, "one_shot": 1.0}

NO_STOP_IDS = np.zeros(0, np.int32)


@dataclass
class Outcome:
    """What a run over a trace came to; tokens and virtual time."""

    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    steps: int = 0
    sessions_returned: int = 0
    kept_sessions: int = 0
    evictions: int = 0
    retractions: int = 0
    end_s: float = 0.0
    first_token_ms: list[float] = field(default_factory=list)


@dataclass
class Live:
    """A request that the scheduler has: a session's turn, and how much of the answer it got."""

    session: int
    turn: int
    submitted_us: int
    answer: NDArray[np.int32]
    emitted: int = 0


def plan_arrays(config: Config, max_deltas: int) -> dict[str, NDArray[np.generic]]:
    """What a plan is written into, for one cache group; see PlanBuffers."""
    copies, moved = max_copies(config), max_transfer_pages(config)
    shapes: dict[str, tuple[str, int | tuple[int, int]]] = {
        "row_request": ("u8", MAX_SEQS),
        "row_slot": ("i4", MAX_SEQS),
        "row_epoch": ("u4", MAX_SEQS),
        "row_flags": ("u1", MAX_SEQS),
        "row_kv_len": ("i4", MAX_SEQS),
        "row_query_start": ("i4", MAX_SEQS + 1),
        "token_ids": ("i4", MAX_STEP_TOKENS),
        "positions": ("i4", MAX_STEP_TOKENS),
        "delta_slot": ("i4", (1, max_deltas)),
        "delta_epoch": ("u4", (1, max_deltas)),
        "delta_index": ("i4", (1, max_deltas)),
        "delta_page": ("i4", (1, max_deltas)),
        "copy_source": ("i4", copies),
        "copy_target": ("i4", copies),
    }
    for kind in ("store", "load"):
        shapes[f"{kind}_transfer"] = ("u8", moved)
        shapes[f"{kind}_source"] = shapes[f"{kind}_target"] = ("i4", moved)
    return {name: np.zeros(shape, dtype) for name, (dtype, shape) in shapes.items()}


class Replay:
    """One run of a trace through a scheduler."""

    def __init__(self, trace: Trace, num_pages: int, retention: bool) -> None:
        longest = max(session.turns[-1].end for session in trace.sessions)
        self._trace = trace
        config = Config(
            groups=[CacheGroupConfig("full", PAGE_SIZE)],
            num_pages=num_pages,
            max_seqs=MAX_SEQS,
            max_model_len=longest,
            max_step_tokens=MAX_STEP_TOKENS,
            retention=retention,
        )
        self._scheduler = Scheduler(config)
        self._arrays = plan_arrays(config, longest // PAGE_SIZE + 1 + MAX_SEQS)
        self._buffers = PlanBuffers(**self._arrays)
        self._now_us = 0
        self._next_id = 1
        self._live: dict[int, Live] = {}
        # (time in us, order, session, turn): who is to come.
        self._due = [(s.arrival_ms * 1000, i, i, 0) for i, s in enumerate(trace.sessions)]
        heapq.heapify(self._due)
        self._order = len(self._due)
        self.outcome = Outcome()

    def run(self) -> Outcome:
        while self._due or self._scheduler.has_work():
            self._submit_due()
            plan = self._scheduler.plan(self._now_us // 1000, self._buffers)
            if plan.num_rows == 0:
                self._wait(plan)
                continue
            self._now_us += STEP_US + TOKEN_US * plan.num_tokens
            self._commit(plan)
            self._take_updates()
        return self._finish()

    def _submit_due(self) -> None:
        while self._due and self._due[0][0] <= self._now_us:
            at_us, _, index, turn = heapq.heappop(self._due)
            session = self._trace.sessions[index]
            result = self._scheduler.submit(
                self._next_id,
                session.prompt(turn),
                max_new_tokens=session.turns[turn].output_tokens,
                stop_ids=NO_STOP_IDS,
                namespace=session.namespace,
                now_ms=at_us // 1000,
            )
            if result.rejection != Rejection.ACCEPTED:
                raise RuntimeError(f"session {index}, turn {turn}: {result.rejection.name}")
            self._live[self._next_id] = Live(index, turn, at_us, session.answer(turn))
            self._next_id += 1
            self.outcome.prompt_tokens += session.turns[turn].prompt_tokens

    def _wait(self, plan: Plan) -> None:
        """Nothing to compute: on to the next arrival."""
        if plan.blocked != Blocked.IDLE:
            raise RuntimeError(f"no step can be planned though requests wait: {plan.blocked.name}")
        self._now_us = max(self._now_us, self._due[0][0])

    def _commit(self, plan: Plan) -> None:
        rows = plan.num_rows
        num_tokens = np.zeros(rows, np.int32)
        tokens = np.zeros((rows, 1), np.int32)
        flags = self._arrays["row_flags"][:rows].tolist()
        requests = self._arrays["row_request"][:rows].tolist()
        for row, (request, flag) in enumerate(zip(requests, flags, strict=True)):
            if flag & RowFlag.EMITS:
                live = self._live[request]
                num_tokens[row] = 1
                tokens[row] = live.answer[live.emitted]
                live.emitted += 1
                if live.emitted == 1:
                    waited = (self._now_us - live.submitted_us) / 1000
                    self.outcome.first_token_ms.append(waited)
        self._scheduler.commit(plan.step, num_tokens, tokens, np.zeros(rows, np.uint8))

    def _take_updates(self) -> None:
        updates = self._scheduler.take_updates()
        for i in np.flatnonzero(updates.finish).tolist():
            if updates.finish[i] != Finish.LENGTH:
                raise RuntimeError(f"a request ended with {Finish(updates.finish[i]).name}")
            self.outcome.hit_tokens += int(updates.cached_tokens[i])
            self.outcome.requests += 1
            live = self._live.pop(int(updates.request[i]))
            turns = self._trace.sessions[live.session].turns
            if live.turn + 1 < len(turns):
                at_us = self._now_us + turns[live.turn + 1].pause_ms * 1000
                heapq.heappush(self._due, (at_us, self._order, live.session, live.turn + 1))
                self._order += 1

    def _finish(self) -> Outcome:
        outcome, counters = self.outcome, self._scheduler.counters()
        whole = (self._trace.requests, self._trace.prompt_tokens)
        if (outcome.requests, outcome.prompt_tokens) != whole:
            raise RuntimeError(f"{outcome.requests} requests ended, the trace has {whole[0]}")
        ledger = self._scheduler.ledger()
        if not ledger.balanced:
            raise RuntimeError(f"pages do not balance: {ledger.detail}")
        for name in ("steps", "sessions_returned", "kept_sessions", "evictions", "retractions"):
            setattr(outcome, name, getattr(counters, name))
        outcome.end_s = self._now_us / 1e6
        return outcome


def compare(name: str, seed: int) -> tuple[Row, dict[str, list[float]], str]:
    """A trace under both policies: the row, both runs' figures, and a note about the trace."""
    trace = generate(name, seed)
    num_pages = pool_tokens(name, seed) // PAGE_SIZE
    lru = Replay(trace, num_pages, retention=False).run()
    kept = Replay(trace, num_pages, retention=True).run()
    row = Row(
        what=f"{name}: hit tokens",
        unit="tokens",
        ours=kept.hit_tokens,
        versus="plain LRU",
        theirs=lru.hit_tokens,
        ratio=round(kept.hit_tokens / lru.hit_tokens, 4),
        bar=BARS[name],
    )
    figures = {f"{name}, LRU": columns(lru), f"{name}, retention": columns(kept)}
    before, after = (run.hit_tokens / trace.prompt_tokens for run in (lru, kept))
    note = (
        f"{trace.requests} requests of {len(trace.sessions)} sessions, {trace.last_turns:.0%} the "
        f"last of theirs; {trace.prompt_tokens} prompt tokens; seed {seed}, digest {trace.digest}; "
        f"pool {num_pages} pages of {PAGE_SIZE}; hit rate {before:.1%} to {after:.1%}, "
        f"mean time to the first token "
        f"{np.mean(lru.first_token_ms):.0f} to {np.mean(kept.first_token_ms):.0f} ms (virtual)"
    )
    return row, figures, note


# What `columns` holds, in order.
COLUMNS = "hit_tokens steps sessions_returned kept_sessions evictions retractions end_s"


def columns(outcome: Outcome) -> list[float]:
    return [float(getattr(outcome, name)) for name in COLUMNS.split()]


def measure(names: list[str], seed: int) -> Report:
    rows: list[Row] = []
    samples: dict[str, list[float]] = {}
    notes = {
        "samples": COLUMNS.replace(" ", ", "),
        "device": f"virtual: {STEP_US} us a step and {TOKEN_US} us a token; {MAX_SEQS} sequences, "
        f"{MAX_STEP_TOKENS} tokens a step",
    }
    for name in names:
        row, figures, note = compare(name, seed)
        rows.append(row)
        samples.update(figures)
        notes[name] = note
    command = f"python -m bench.retention.run {' '.join(names)} --seed {seed}"
    return new_report(command, "scheduler alone", rows, samples, notes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(SHAPES), help=", ".join(SHAPES))
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--save", type=Path, help="write the report as JSON")
    options = parser.parse_args()
    report = measure(options.names, options.seed)
    if options.save is not None:
        save(report, options.save)
    show(report)
    return 0 if all(row.reached for row in report.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
