# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""An engine that says what a script tells it to, over the real socket, from a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import zmq
from tokenspeed.front.finish import Finish
from tokenspeed.messages import (
    CacheLedger,
    EngineInput,
    EngineLoading,
    EngineOutput,
    EngineReady,
    FromEngine,
    Guessed,
    KvEventColumns,
    Load,
    PromptLogprobs,
    Rejected,
    Started,
    StepReport,
    Submit,
    TokenLogprobs,
)

Script = Callable[[Submit], Iterator[list[int]]]
"""What a submit is answered with: the tokens of each step."""

READY = EngineReady(
    max_model_len=128,
    vocab_size=512,
    page_size=16,
    total_pages=64,
    max_num_seqs=8,
    dtype="float32",
    platform="fake",
    architecture="FakeForCausalLM",
    weight_bytes=1_000_000,
    kv_bytes=2_000_000,
)


def count_up(submit: Submit) -> Iterator[list[int]]:
    """One token a step: the last of the prompt + 1, + 2, ..."""
    last = int(np.frombuffer(submit.tokens, np.int32)[-1])
    while True:
        last = (last + 1) % 500
        yield [last]


class FakeEngine(threading.Thread):
    """Speaks messages.py. Change ``script`` and the flags at any time.

    Attributes:
        submits, aborts: all that came, in order.
        step_s: seconds that a step takes.
        frozen: messages are read but nothing is computed.
        expires: deadlines are kept.
        reject, fail: the next submits are refused, or fail at their first step.
        unanswered: questions for the ledger that a later one overtakes.
        host_tier: fields of its load that tell of the host tier.
        asked: request to how many of the likeliest tokens it asks for; -1 for none.
        guesses: told with each token, as (verified, right); (0, 0): none are made.
        kv_events: said as soon as possible, one message each.
    """

    def __init__(self, address: str, ready: EngineReady = READY, *, hold: bool = False) -> None:
        super().__init__(daemon=True)
        self.script: Script = count_up
        self.step_s = 0.001
        self.frozen = False
        self.reject: Rejected | None = None
        self.fail: str | None = None
        self.cached = 4
        self.unanswered = 0
        self.submits: list[Submit] = []
        self.aborts: list[int] = []
        self.messages: list[EngineInput] = []
        self.loading: list[EngineLoading] = []
        self.host_tier: dict[str, int] = {}
        self.kv_events: list[KvEventColumns] = []
        self.asked: dict[int, int] = {}
        self.guesses = (0, 0)
        self.go = threading.Event()
        self._address = address
        self._ready = ready
        self._quit = threading.Event()
        self._news: list[Started] = []
        self._running: dict[int, tuple[Submit, Iterator[list[int]], int]] = {}
        if not hold:
            self.go.set()

    @property
    def running(self) -> int:
        return len(self._running)

    def die(self) -> None:
        """Close the socket without a word."""
        self._quit.set()
        self.join()

    def run(self) -> None:
        context = zmq.Context()
        self._socket = context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 5)  # the front may bind a moment later
        self._socket.connect(self._address)
        while not self.go.wait(0.01) and not self._quit.is_set():
            while self.loading:
                self._send(self.loading.pop(0))
        if self.go.is_set():
            self._send(self._ready)
        while not self._quit.is_set():
            if self._socket.poll(5 if not self._running or self.frozen else 0):
                self._apply(msgspec.msgpack.decode(self._socket.recv(), type=EngineInput))
            while self.kv_events:
                self._send(EngineOutput(load=self._load(), kv_events=self.kv_events.pop(0)))
            if self._running and not self.frozen:
                time.sleep(self.step_s)
                self._step()
        self._socket.close()
        context.term()

    def _send(self, message: FromEngine) -> None:
        self._socket.send(msgspec.msgpack.encode(message))

    def _apply(self, message: EngineInput) -> None:
        self.messages.append(message)
        for submit in message.submits:
            self.submits.append(submit)
            if self.reject is not None:
                self._send(
                    EngineOutput(
                        rejected=[msgspec.structs.replace(self.reject, request=submit.request)]
                    )
                )
            else:
                self._running[submit.request] = (submit, self.script(submit), 0)
                self.asked[submit.request] = submit.sampling.logprobs
                self._tell_prompt(submit)
                self._news.append(Started(submit.request, time.monotonic_ns() // 1000, 3))
        for request in message.aborts:
            self.aborts.append(request)
            self._running.pop(request, None)
        if message.reset_cache and not self._running:
            self.cached = 0
        if message.ask_ledger and self.unanswered:
            self.unanswered -= 1
        elif message.ask_ledger:
            self._send(EngineOutput(load=self._load(), ledger=self._ledger(message.ask_ledger)))

    def _step(self) -> None:
        rows = []
        for request, (submit, script, count) in list(self._running.items()):
            tokens = next(script, [])[: submit.max_new_tokens - count]
            finish, stop = Finish.NONE, -1
            for i, token in enumerate(tokens):
                if token in submit.stop_ids:
                    tokens, finish, stop = tokens[: i + 1], Finish.STOP, token
                    break
            if finish == Finish.NONE and count + len(tokens) == submit.max_new_tokens:
                finish = Finish.LENGTH
            if submit.deadline_ms and time.monotonic_ns() // 1_000_000 >= submit.deadline_ms:
                tokens, finish, stop = [], Finish.EXPIRED, -1
            if self.fail is not None:
                tokens, finish, stop = [], Finish.FAILED, -1
            self._running[request] = (submit, script, count + len(tokens))
            if finish != Finish.NONE:
                del self._running[request]
            if tokens or finish != Finish.NONE:
                rows.append((request, tokens, finish, stop))
        if rows:
            self._send(self._output(rows))

    def _output(self, rows: list[tuple[int, list[int], Finish, int]]) -> EngineOutput:
        starts = np.cumsum([0] + [len(row[1]) for row in rows])
        return EngineOutput(
            request=np.array([row[0] for row in rows], np.uint64).tobytes(),
            token_start=starts.astype(np.int32).tobytes(),
            tokens=np.array([t for row in rows for t in row[1]], np.int32).tobytes(),
            finish=np.array([row[2] for row in rows], np.uint8).tobytes(),
            stop_token=np.array([row[3] for row in rows], np.int32).tobytes(),
            cached_tokens=np.full(len(rows), 3, np.int32).tobytes(),
            failure={row[0]: self.fail or "" for row in rows if row[2] == Finish.FAILED},
            started=self._take_started(),
            steps=[StepReport(int(self.step_s * 1e6), 0, len(rows))],
            load=self._load(),
            logprobs=[
                self._logprobs(request, token)
                for request, tokens, _, _ in rows
                for token in tokens
                if self.asked.get(request, -1) >= 0
            ],
            guessed=[Guessed(row[0], *self.guesses) for row in rows if self.guesses != (0, 0)],
        )

    def _tell_prompt(self, submit: Submit) -> None:
        """In pieces of three, the second of which is told twice."""
        tokens, top = np.frombuffer(submit.tokens, np.int32), submit.sampling.prompt_logprobs
        for first in (1, 4, 4, *range(7, len(tokens), 3)) if top >= 0 else ():
            ids = np.array([[t, *range(top)] for t in tokens[first : first + 3]], np.int32)
            found = (ids.tobytes(), (-ids / 8).astype(np.float32).tobytes())
            told = PromptLogprobs(submit.request, first, 1 + top, *found)
            if len(ids):
                self._send(EngineOutput(load=self._load(), prompt_logprobs=[told]))

    def _logprobs(self, request: int, token: int) -> TokenLogprobs:
        """-token / 8, and tokens 0, 1, ... with -1, -2, ..."""
        count = self.asked[request]
        ids = np.array([token, *range(count)], np.int32)
        values = np.array([-token / 8, *(-1.0 - i for i in range(count))], np.float32)
        return TokenLogprobs(request, ids.tobytes(), values.tobytes())

    def _take_started(self) -> list[Started]:
        started, self._news = self._news, []
        return started

    def _load(self) -> Load:
        return Load(
            running=len(self._running),
            free_pages=self._ready.total_pages - self.cached,
            cached_pages=self.cached,
            total_pages=self._ready.total_pages,
            prompt_tokens=10,
            cached_tokens=3,
            output_tokens=7,
            **self.host_tier,
        )

    def _ledger(self, asked: int) -> CacheLedger:
        total = self._ready.total_pages
        return CacheLedger(
            asked=asked,
            total=total,
            free=total - self.cached,
            cached=self.cached,
            active=0,
            in_transfer=0,
            balanced=True,
            idle=not self._running,
            detail="",
            host_total=32,
            host_free=20,
            host_cached=11,
            host_in_transfer=1,
        )
