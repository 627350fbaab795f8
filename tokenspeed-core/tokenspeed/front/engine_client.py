# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The front's end of the socket to the engine."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import zmq
from zmq.utils.monitor import recv_monitor_message

from tokenspeed.front.errors import EngineGone, FailedInEngine, RejectedByScheduler
from tokenspeed.front.finish import Finish
from tokenspeed.front.kv_log import KvEventLog
from tokenspeed.front.logprobs import TokenLogprobs, read_logprobs, read_prompt_logprobs
from tokenspeed.front.request import GenerationRequest
from tokenspeed.front.stream import Stream
from tokenspeed.messages import (
    CacheLedger,
    EngineFailed,
    EngineInput,
    EngineLoading,
    EngineOutput,
    EngineReady,
    FromEngine,
    Load,
    NewGrammar,
)

if TYPE_CHECKING:
    from tokenspeed.front.grammars import FrontGrammar
    from tokenspeed.observe.events import EventStream, RequestRecord

log = logging.getLogger(__name__)

STALL_S = 60.0
"""An engine that has work and says nothing for so long does not serve."""
_CLOSED = "its process closed the connection; its last log lines say why"
MAX_GRAMMARS = 256
MAX_GRAMMAR_BYTES = 128 << 20
"""What the engine keeps of compiled grammars, beside those of running requests."""
_LAST_WORDS_S = 0.1
"""Messages that the engine sent before it died are read for so long."""
_CAUSE_S = 1.0
"""In which whoever started it says how it ended."""


class EngineClient:
    """Submits sequences and hands each what comes of it. Lives in one event loop.

        async with EngineClient("ipc:///run/engine") as client:
            ready = await client.wait_ready()
            stream = client.open(request)

    Attributes:
        loading: the last progress report before it was ready.
        ready: what the engine serves, once it does.
        load: how busy the engine was at its last message.
        kv_log: what its prefix cache holds; None when it does not tell.
        gone: why the engine is no more.
    """

    def __init__(
        self,
        address: str,
        events: EventStream | None = None,
        *,
        kv_events: bool = False,
        told: Callable[[], str] | None = None,
    ) -> None:
        """Args:
        events: told what the engine says of itself.
        kv_events: whether it tells what its prefix cache holds.
        told: why its process ended, "" while that is not known; None: nobody will know.
        """
        self.loading: EngineLoading | None = None
        self.ready: EngineReady | None = None
        self.load = Load()
        self.kv_log = KvEventLog() if kv_events else None
        self.gone: EngineGone | None = None
        self._address = address
        self._events = events
        self._told = told
        self._sequences: dict[int, tuple[Stream, int]] = {}
        self._numbers = itertools.count(1)
        self._grammars: OrderedDict[int, int] = OrderedDict()  # number -> bytes
        self._grammar_bytes = 0
        self._ledgers: dict[int, asyncio.Future[CacheLedger]] = {}
        self._outgoing = EngineInput()
        self._flush_planned = False
        self._changed = asyncio.Event()
        self._quiet_since = time.monotonic()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)

    async def __aenter__(self) -> EngineClient:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # an abort is never lost; the queue is bounded above
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.bind(self._address)
        loop = asyncio.get_running_loop()
        for socket, read in ((self._socket, self._receive), (self._monitor, self._receive_event)):
            loop.add_reader(socket.fileno(), read)
            loop.call_soon(read)  # the descriptor tells changes since the last look: look once
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._flush()
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        loop.remove_reader(self._monitor.fileno())
        self.fail("the front is shutting down")
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        self._context.term()  # at most as long as the socket lingers

    @property
    def alive(self) -> int:
        """Sequences that have not ended."""
        return len(self._sequences)

    def names(self, most: int) -> list[str]:
        """Of the sequences that came first and have not ended, for people."""
        return [stream.name_of(i) for stream, i in islice(self._sequences.values(), most)]

    @property
    def silent_s(self) -> float:
        """Seconds since the last message of the engine while it had work; 0 when it has none."""
        return time.monotonic() - self._quiet_since if self._sequences else 0.0

    @property
    def stalled(self) -> bool:
        """Whether the engine has work and has been silent for too long."""
        return self.silent_s > STALL_S

    async def wait_ready(self) -> EngineReady:
        """Wait until the engine can serve. EngineGone when it ends before."""
        while self.ready is None:
            self._raise_if_gone()
            self._changed.clear()
            await self._changed.wait()
        return self.ready

    def open(
        self,
        request: GenerationRequest,
        deadline_ms: int = 0,
        record: RequestRecord | None = None,
    ) -> Stream:
        """Submit all sequences of a request, with those of the same loop tick in one message.

        ``record``: told of their progress.
        """
        self._raise_if_gone()
        engine_is_idle = not self._sequences
        if engine_is_idle:
            self._quiet_since = time.monotonic()
        ids = [next(self._numbers) for _ in range(request.n)]
        stream = Stream(self.abort, ids, record)
        self._sequences.update((id_, (stream, i)) for i, id_ in enumerate(ids))
        if request.grammar is not None:
            self._send_grammar(request.grammar)
        self._outgoing.submits.extend(request.submits(ids, deadline_ms))
        if engine_is_idle:
            self._flush()  # it waits for this; others of the same tick follow in the next message
        else:
            self._plan_flush()
        return stream

    def _send_grammar(self, grammar: FrontGrammar) -> None:
        """Once, as long as the engine keeps it: it has the latest, as many as there is room for."""
        if grammar.number in self._grammars:
            self._grammars.move_to_end(grammar.number)
            return
        compiled = grammar.compiled
        if grammar.number in self._outgoing.old_grammars:  # it went with this message, unsent
            self._outgoing.old_grammars.remove(grammar.number)
        else:
            self._outgoing.new_grammars.append(
                NewGrammar(grammar.number, compiled.backend, compiled.data)
            )
        self._grammars[grammar.number] = len(compiled.data)
        self._grammar_bytes += len(compiled.data)
        while len(self._grammars) > MAX_GRAMMARS or self._grammar_bytes > MAX_GRAMMAR_BYTES:
            oldest, size = self._grammars.popitem(last=False)
            self._grammar_bytes -= size
            self._outgoing.old_grammars.append(oldest)

    def abort(self, sequence: int) -> None:
        """Stop a sequence; ignored when it has ended. The engine is told before it is forgotten."""
        if sequence not in self._sequences:
            return
        self._outgoing.aborts.append(sequence)
        self._plan_flush()
        del self._sequences[sequence]

    async def ledger(self, *, reset_cache: bool = False) -> CacheLedger:
        """The engine's accounts of its pages; ``reset_cache``: after dropping what is cached."""
        self._raise_if_gone()
        while self._outgoing.ask_ledger:  # one question a message
            await asyncio.sleep(0)
        number = next(self._numbers)
        answer: asyncio.Future[CacheLedger] = asyncio.get_running_loop().create_future()
        self._ledgers[number] = answer
        self._outgoing.ask_ledger = number
        self._outgoing.reset_cache |= reset_cache
        self._plan_flush()
        try:
            return await answer
        finally:
            self._ledgers.pop(number, None)

    def fail(self, cause: str) -> None:
        """End every stream and question with the cause; only the first cause counts."""
        if self.gone is not None:
            return
        self.gone = EngineGone(cause)
        for stream, _ in self._sequences.values():
            stream.fail(self.gone)
        self._sequences.clear()
        for answer in self._ledgers.values():
            if not answer.done():
                answer.set_exception(self.gone)
        self._changed.set()

    def _raise_if_gone(self) -> None:
        if self.gone is not None:
            raise self.gone

    def _plan_flush(self) -> None:
        if not self._flush_planned:
            self._flush_planned = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        message, self._outgoing = self._outgoing, EngineInput()
        if self.gone is None and message != EngineInput():
            try:
                self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)
            except zmq.Again:  # the queue has no limit, so there is nobody at its other end
                self._lose()
                return
            # Sending is a look at the socket too, and may have taken the change that is told.
            asyncio.get_running_loop().call_soon(self._receive)

    def _receive(self) -> None:
        """Dispatch all messages that have come; called whenever there may be some."""
        while self.gone is None:
            try:
                self._dispatch(self._decoder.decode(self._socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return
            except (msgspec.DecodeError, ValueError) as error:
                log.exception("cannot read the engine's message")
                self.fail(f"its message cannot be read ({error})")

    def _receive_event(self) -> None:
        """The only event that is watched: the engine closed the connection."""
        try:
            recv_monitor_message(self._monitor, zmq.NOBLOCK)
        except zmq.Again:
            return
        self._lose()

    def _lose(self) -> None:
        """Its process is gone: its own last message says why, or else its parent."""
        give_up = time.monotonic() + _CAUSE_S
        asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._fail_lost, give_up)

    def _fail_lost(self, give_up: float) -> None:
        told = "" if self._told is None else self._told()
        if told or self._told is None or time.monotonic() > give_up:
            self.fail(told or _CLOSED)
        elif self.gone is None:
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._fail_lost, give_up)

    def _dispatch(self, message: FromEngine) -> None:
        self._quiet_since = time.monotonic()
        if isinstance(message, EngineOutput):
            self._dispatch_output(message)
        elif isinstance(message, EngineReady):
            self.ready = message
            if self._events is not None:
                self._events.ready(message)
            self._changed.set()
        elif isinstance(message, EngineFailed):
            self.fail(message.error)
        else:
            self.loading = message

    def _dispatch_output(self, output: EngineOutput) -> None:
        self.load = output.load
        if self._events is not None:
            self._events.steps(output.steps)
        for started in output.started:
            entry = self._sequences.get(started.request)
            if entry is not None and entry[0].record is not None:
                entry[0].record.started(entry[1], started)
        self._name_stuck(output)
        self._dispatch_prompts(output)
        self._dispatch_guesses(output)
        self._dispatch_updates(output)
        for request, reason in output.failure.items():
            if entry := self._sequences.pop(request, None):  # the scheduler never saw it
                entry[0].news_of(entry[1]).error = FailedInEngine(reason)
        for rejected in output.rejected:
            if entry := self._sequences.pop(rejected.request, None):
                stream, index = entry
                stream.news_of(index).error = RejectedByScheduler(
                    rejected.reason, rejected.needed, rejected.available
                )
        if output.ledger is not None:
            # The engine answers the latest question: what it says answers those before it too.
            for number, answer in self._ledgers.items():
                if number <= output.ledger.asked and not answer.done():
                    answer.set_result(output.ledger)
        if output.kv_events is not None and self.kv_log is not None:
            self.kv_log.append(output.kv_events)
        if self._events is not None:
            self._events.load(output.load)

    def _name_stuck(self, output: EngineOutput) -> None:
        for request, how in output.stuck.items():
            if entry := self._sequences.get(request):
                log.warning("%s is stuck: it %s", entry[0].name_of(entry[1]), how)

    def _dispatch_prompts(self, output: EngineOutput) -> None:
        for found in output.prompt_logprobs:
            if entry := self._sequences.get(found.request):
                stream, index = entry
                stream.news_of(index).prompt_logprobs.update(read_prompt_logprobs(found))

    def _dispatch_guesses(self, output: EngineOutput) -> None:
        for guessed in output.guessed:
            entry = self._sequences.get(guessed.request)
            if entry is not None and entry[0].record is not None:
                entry[0].record.guessed(guessed)

    def _dispatch_updates(self, output: EngineOutput) -> None:
        requests = np.frombuffer(output.request, np.uint64).tolist()
        start = np.frombuffer(output.token_start, np.int32).tolist()
        tokens = np.frombuffer(output.tokens, np.int32).tolist()
        stop_token = np.frombuffer(output.stop_token, np.int32).tolist()
        cached_tokens = np.frombuffer(output.cached_tokens, np.int32).tolist()
        logprobs: dict[int, list[TokenLogprobs]] = {}
        for each in output.logprobs:
            logprobs.setdefault(each.request, []).append(read_logprobs(each))
        for i, request in enumerate(requests):
            entry = self._sequences.get(request)
            if entry is None:  # aborted here, its end is on the way
                continue
            stream, index = entry
            news = stream.news_of(index)
            new_tokens = tokens[start[i] : start[i + 1]]
            news.tokens += new_tokens
            news.logprobs += logprobs.pop(request, [])
            if stream.record is not None and new_tokens:
                stream.record.generated(index, new_tokens)
            news.cached_tokens = cached_tokens[i]
            if output.finish[i] != Finish.NONE:
                news.finish = Finish(output.finish[i])
                news.stop_token = stop_token[i]
                if news.finish == Finish.FAILED:
                    news.error = FailedInEngine(output.failure.get(request, "no reason given"))
                del self._sequences[request]
