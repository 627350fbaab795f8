# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""One rank of two in lockstep: the same messages to a scheduler, and every digest exchanged.

    lockstep_rank.py STEPS HASH_SEED SWAP_AT

Its peer's digests come on stdin and its own go to stdout, EXCHANGE steps at a time. From step
SWAP_AT on (never, if negative) it hears of two failed transfers in the other order than its peer:
nothing differs but the order in which pages come free, and so the ids of pages. Prints to stderr
what it counted, or ends with the scheduler's RuntimeError.
"""

from __future__ import annotations

import random
import struct
import sys
from collections import deque
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from tokenspeed._scheduler import (
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

EXCHANGE = 16  # a digest is remembered for 64 steps
RECORD = struct.Struct("<qQ")  # step, digest
MAX_SEQS, STEP_TOKENS, MODEL_LEN, ROW_TOKENS = 4, 24, 48, 3
GROUPS = [("full", 2, 0), ("sliding", 2, 5)]
VOCAB = 4

Array = NDArray[np.generic]


def make_config(hash_seed: int) -> Config:
    return Config(
        groups=[CacheGroupConfig(*group) for group in GROUPS],
        num_pages=46,
        host_pages=40,
        max_seqs=MAX_SEQS,
        max_model_len=MODEL_LEN,
        max_step_tokens=STEP_TOKENS,
        max_row_tokens=ROW_TOKENS,
        hash_seed=hash_seed,
    )


def make_arrays(config: Config) -> dict[str, Array]:
    rows, deltas = MAX_SEQS, (len(GROUPS), MODEL_LEN + MAX_SEQS + 8)
    copies, moves = max_copies(config), max_transfer_pages(config)
    shapes = {
        "row_request": (rows, "u8"),
        "row_slot": (rows, "i4"),
        "row_epoch": (rows, "u4"),
        "row_flags": (rows, "u1"),
        "row_query_start": (rows + 1, "i4"),
        "row_kv_len": (rows, "i4"),
        "token_ids": (STEP_TOKENS, "i4"),
        "positions": (STEP_TOKENS, "i4"),
        "delta_slot": (deltas, "i4"),
        "delta_epoch": (deltas, "u4"),
        "delta_index": (deltas, "i4"),
        "delta_page": (deltas, "i4"),
        "copy_source": (copies, "i4"),
        "copy_target": (copies, "i4"),
        "store_transfer": (moves, "u8"),
        "store_source": (moves, "i4"),
        "store_target": (moves, "i4"),
        "load_transfer": (moves, "u8"),
        "load_source": (moves, "i4"),
        "load_target": (moves, "i4"),
    }
    return {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}


class Rank:
    """The messages follow from one seed and from what the scheduler answers."""

    def __init__(self, hash_seed: int, swap_at: int) -> None:
        config = make_config(hash_seed)
        self.scheduler = Scheduler(config)
        self.arrays = make_arrays(config)
        self.buffers = PlanBuffers(**self.arrays)
        self.random = random.Random(7)
        self.swap_at = swap_at
        self.open: dict[int, list[int]] = {}  # request to prompt, oldest first
        self.prompts: deque[list[int]] = deque(maxlen=8)
        self.last_request = 0
        self.in_flight: deque[tuple[int, Array, Array, Array]] = deque()
        self.transfers: dict[int, str] = {}  # in flight, and which way
        self.now_ms = 0

    def step(self, number: int) -> tuple[int, int]:
        """Messages of one step; its number and digest."""
        self.now_ms += self.random.randrange(3)
        if len(self.open) < 10 and self.random.random() < 0.3:
            self.submit()
        if len(self.open) > 2 and self.random.random() < 0.02:
            self.abort_oldest()
        if list(self.transfers.values()).count("store") > 1 and self.random.random() < 0.1:
            self.fail_two_stores(swapped=0 <= self.swap_at <= number)
        plan = self.scheduler.plan(self.now_ms, self.buffers)
        self.execute(plan)
        self.commit(leave=1 if plan.num_rows else 0)
        self.ack(plan)
        self.hear()
        return plan.step, plan.digest

    def submit(self) -> None:
        draw = self.random
        if self.prompts and draw.random() < 0.6:  # the next turn of a conversation
            prompt = draw.choice(self.prompts)[:30] + draw.choices(range(VOCAB), k=3)
        else:
            prompt = draw.choices(range(VOCAB), k=draw.randint(1, 30))
        self.last_request += 1
        result = self.scheduler.submit(
            self.last_request,
            np.array(prompt, np.int32),
            max_new_tokens=draw.randint(1, 12),
            stop_ids=np.array([0] if draw.random() < 0.3 else [], np.int32),
            priority=draw.choice([0, 0, 0, 1, -1]),
            draft_tokens=draw.randrange(ROW_TOKENS),
            deadline_ms=self.now_ms + 40 if draw.random() < 0.1 else 0,
            now_ms=self.now_ms,
        )
        assert result.rejection == Rejection.ACCEPTED
        self.open[self.last_request] = prompt
        self.prompts.append(prompt)

    def abort_oldest(self) -> None:
        request = next(iter(self.open))
        assert self.scheduler.abort(request)
        del self.open[request]

    def fail_two_stores(self, *, swapped: bool) -> None:
        """Their pages of the host tier come free in this order."""
        pair = [transfer for transfer, kind in self.transfers.items() if kind == "store"][:2]
        for transfer in reversed(pair) if swapped else pair:
            del self.transfers[transfer]
            assert self.scheduler.ack(transfer, False)

    def execute(self, plan: Plan) -> None:
        """Tokens that depend on the request and the length alone; some rows fail."""
        if plan.num_rows == 0:
            return
        n = plan.num_rows
        counts, failed = np.zeros(n, np.int32), np.zeros(n, np.uint8)
        tokens = np.zeros((n, ROW_TOKENS), np.int32)
        columns = [
            self.arrays[name][:n].tolist() for name in ("row_request", "row_kv_len", "row_flags")
        ]
        starts = self.arrays["row_query_start"][: n + 1].tolist()
        for i, (request, length, flags) in enumerate(zip(*columns, strict=True)):
            luck = crc32(b"%d,%d" % (request, length))
            failed[i] = luck % 211 == 0
            if flags & RowFlag.EMITS and not failed[i]:
                drafts = starts[i + 1] - starts[i] - 1 if flags & RowFlag.DECODE else 0
                counts[i] = 1 + luck % (1 + drafts)
                tokens[i] = [(luck >> shift) % VOCAB for shift in (4, 8, 12)]
        self.in_flight.append((plan.step, counts, tokens, failed))

    def commit(self, leave: int) -> None:
        while len(self.in_flight) > leave:
            self.scheduler.commit(*self.in_flight.popleft())

    def ack(self, plan: Plan) -> None:
        """Transfers end in any order, a few steps later, and some fail."""
        for kind, count in (("store", plan.num_stores), ("load", plan.num_loads)):
            for transfer in self.arrays[f"{kind}_transfer"][:count].tolist():
                self.transfers[transfer] = kind
        while self.transfers and (plan.num_rows == 0 or self.random.random() < 0.5):
            transfer = self.random.choice(list(self.transfers))
            del self.transfers[transfer]
            assert self.scheduler.ack(transfer, self.random.random() < 0.9)

    def hear(self) -> None:
        updates = self.scheduler.take_updates()
        for request, finish in zip(updates.request.tolist(), updates.finish.tolist(), strict=True):
            if finish != Finish.NONE:
                self.open.pop(request, None)  # an aborted one is gone already


def main() -> None:
    steps, hash_seed, swap_at = (int(word) for word in sys.argv[1:])
    rank = Rank(hash_seed, swap_at)
    for begin in range(0, steps, EXCHANGE):
        own = [rank.step(number) for number in range(begin, begin + EXCHANGE)]
        sys.stdout.buffer.write(b"".join(RECORD.pack(*digest) for digest in own))
        sys.stdout.buffer.flush()
        theirs = sys.stdin.buffer.read(RECORD.size * EXCHANGE)
        for step, digest in RECORD.iter_unpack(theirs):
            rank.scheduler.check_digest(step, digest)
    counters = rank.scheduler.counters()
    names = ("steps", "retractions", "evictions", "stored_pages", "loaded_pages", "page_copies")
    print(" ".join(f"{name}={getattr(counters, name)}" for name in names), file=sys.stderr)
    ledger = rank.scheduler.ledger()
    assert ledger.balanced, ledger.detail
    assert rank.scheduler.take_rejected_events() == []


if __name__ == "__main__":
    main()
