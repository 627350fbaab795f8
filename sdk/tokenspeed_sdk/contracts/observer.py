# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Contract ``observer``: what happens in a server, told to plugins that log, count or trace.

An entry point in ``tokenspeed.observer`` is a zero-argument callable that returns an object. Each
of its public methods is a hook of ``ObserverHooks``, written exactly as there: it takes one
argument, ``event``. A plugin has the hooks that it wants, at least one; a public method of another
name is refused at the start, so a misspelt hook is found at once. State and helpers go into names
that begin with an underscore. The one public method that is no hook is ``close()``: it is called
once, after the last event, when the server ends.

    class Slow:
        def request_finished(self, event: RequestFinished) -> None:
            if event.seconds > 10:
                print(event.request_id, event.seconds)

Hooks only observe: what they return is discarded, what they raise is reported and ends nothing,
and no event can be changed. An observer has a thread of its own in the front process and gets its
events in the order in which they happened, behind a bounded queue: one that cannot keep up loses
events of its own, which are counted, and slows no request down by waiting. Computing is another
matter: Python code of all threads shares one interpreter, so do little, and hand heavy work to
another process.

Of one request come, in this order: ``request_received``; for each of its sequences
``sequence_started`` and any number of ``tokens_generated``; ``request_finished``, always, and
nothing of it afterwards. A request that is refused starts no sequence.

Every event has ``time``, wall-clock seconds since the epoch, to compare with other logs. It can
jump with the clock: durations come as fields of their own, in seconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal, TypeAlias

Outcome: TypeAlias = Literal[
    "stop", "length", "abort", "cancelled", "invalid", "rejected", "expired", "failed", "shutdown"
]
"""How a request ended. With an answer: ``stop`` (an end token or a stop string), ``length`` (as
many tokens as it was allowed). Because the client wanted so: ``abort`` (the gateway asked for it),
``cancelled`` (the call was given up). With an error: ``invalid`` (it can never be served here),
``rejected`` (no place for it: the queue is full, or the server shuts down), ``expired`` (out of
time), ``failed`` (the server's fault), ``shutdown`` (the server had taken it, and shut down before
its end; new in 1.4)."""

OUTCOMES: tuple[Outcome, ...] = (
    "stop",
    "length",
    "abort",
    "cancelled",
    "invalid",
    "rejected",
    "expired",
    "failed",
    "shutdown",
)
"""All of them."""

StepKind: TypeAlias = Literal["prefill", "decode", "mixed"]
"""What a step computed: prompt tokens, the next tokens of answers, or both."""


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """One kernel that the model runs on, and for how many of its call sites.

    Attributes:
        op: "name@major", such as "linear@1".
        kernel: name of the kernel.
        owner: distribution and version that it comes from, such as "acme-kernels 1.2.0".
        dtype: dtype of the activations.
        role: part of the engine: "main" for the model itself.
        sites: call sites of the model with this choice; more than 0.
    """

    op: str
    kernel: str
    owner: str
    dtype: str
    role: str
    sites: int


@dataclass(frozen=True, slots=True)
class ServerReady:
    """The engine can serve. The first event, once: what all others are to be read with.

    Attributes:
        time: seconds since the epoch.
        version: of the engine's distribution.
        model: name of the model in the API.
        architecture: class of the model, as its config names it.
        platform: name of the platform that it runs on.
        dtype: dtype of weights and activations.
        max_model_len: tokens that a prompt and its answer may have together.
        max_num_seqs: sequences that may run at once.
        page_size: tokens in a KV page.
        total_pages: KV pages; the pages of ``LoadReported`` sum up to it.
        weight_bytes: memory of the weights on the device.
        kv_bytes: memory of the KV pages on the device.
        kernels: the kernels that were chosen.
    """

    hook: ClassVar[str] = "server_ready"

    time: float
    version: str
    model: str
    architecture: str
    platform: str
    dtype: str
    max_model_len: int
    max_num_seqs: int
    page_size: int
    total_pages: int
    weight_bytes: int
    kv_bytes: int
    kernels: tuple[KernelChoice, ...]


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A request came, whether or not it will be served: it is not checked yet.

    Attributes:
        time: seconds since the epoch.
        request: counts the requests of this server, from 1. Events of one request share it.
        request_id: the gateway's name for it, to find it in the gateway's log. Empty or taken names
            are refused, so it is no key.
        prompt_tokens: length of the prompt.
        sequences: answers that it asks for (``n`` in the API).
    """

    hook: ClassVar[str] = "request_received"

    time: float
    request: int
    request_id: str
    prompt_tokens: int
    sequences: int


@dataclass(frozen=True, slots=True)
class SequenceStarted:
    """A sequence got its place and became part of a step for the first time.

    One that later had to give up its pages, and starts again, is not told again: see
    ``LoadReported.retractions``.

    Attributes:
        time: seconds since the epoch, when the front heard of it.
        request: number of its request.
        index: which of the request's sequences, from 0.
        queue_seconds: from the front's receipt of the request to its first step.
        prompt_tokens: length of the prompt.
        cached_tokens: prompt tokens that the prefix cache held, so that nothing computes them.
    """

    hook: ClassVar[str] = "sequence_started"

    time: float
    request: int
    index: int
    queue_seconds: float
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class TokensGenerated:
    """New tokens of a sequence reached the front. By far the most frequent event.

    Attributes:
        time: seconds since the epoch.
        request: number of its request.
        index: which of the request's sequences, from 0.
        count: tokens, at least 1. An end token counts, though clients don't see it; so does what a
            stop string cuts off.
        seconds_since_received: since the front received the request: for the first tokens, the time
            to first token.
        seconds_since_previous: since the sequence's last ``tokens_generated``; None for the first.
        token_ids: ``count`` ids, or None unless the plugin's manifest has
            ``needs = ["token_ids"]``: copies of private text are made for none who did not ask.
    """

    hook: ClassVar[str] = "tokens_generated"

    time: float
    request: int
    index: int
    count: int
    seconds_since_received: float
    seconds_since_previous: float | None
    token_ids: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """A request ended, in whatever way. The last event of a request.

    Attributes:
        time: seconds since the epoch.
        request: its number.
        request_id: the gateway's name for it.
        outcome: how it ended; of several sequences, how the last one did.
        seconds: since the front received it.
        prompt_tokens: length of the prompt, once, however many sequences it has.
        cached_tokens: sum over its ``sequence_started``; a part of ``started_prompt_tokens``.
        output_tokens: sum over its ``tokens_generated``.
        error: what the client was told, for outcomes that are errors; else None.
        drafted_tokens: guesses at its tokens that were verified. (New in 1.3, as the next.)
        accepted_tokens: those of them that were right.
        started_prompt_tokens: sum over its ``sequence_started``, of their ``prompt_tokens``: each
            sequence has the whole prompt. 0 of a request that is refused. (New in 1.5.)
    """

    hook: ClassVar[str] = "request_finished"

    time: float
    request: int
    request_id: str
    outcome: Outcome
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    error: str | None
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    started_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepFinished:
    """The device ended a step. Told with the engine's next message, at most a second later.

    Attributes:
        time: seconds since the epoch, when the front heard of it.
        seconds: from when the device could begin it (it was dispatched and the step before had
            ended) to when the engine saw its end.
        prefill_tokens: prompt tokens that it computed.
        decode_rows: sequences that it computed one more token for.
    """

    hook: ClassVar[str] = "step_finished"

    time: float
    seconds: float
    prefill_tokens: int
    decode_rows: int

    @property
    def kind(self) -> StepKind:
        """What it computed."""
        if not self.prefill_tokens:
            return "decode"
        return "mixed" if self.decode_rows else "prefill"


@dataclass(frozen=True, slots=True)
class LoadReported:
    """How busy the engine is, with each of its messages: after a step, and when it becomes idle.

    Attributes:
        time: seconds since the epoch.
        running: sequences that hold a place in the batch.
        waiting: sequences that wait for one.
        waiting_tokens: prompt tokens of those that wait.
        free_pages: KV pages that nobody owns.
        cached_pages: KV pages that only the prefix cache owns; they are given up when pages run
            short.
        active_pages: KV pages that sequences use.
        retractions: how often, so far, a sequence gave up its pages to others and had to start
            again.
        loop_seconds: what the engine's own thread has worked so far, its waits for the device left
            out.
        loading: sequences, of those that run, whose KV is on its way from the host tier. (All from
            here on are new in 1.1.)
        transfers: transfers of pages between device and host tier that are under way.
        host_free_pages: pages of the host tier that nobody owns.
        host_used_pages: pages of the host tier that hold KV, or are about to.
        device_hit_tokens: prompt tokens, so far, that need not be computed because the device had
            their KV.
        host_hit_tokens: the same, because the host tier had it.
        stored_pages: pages that were copied to the host tier so far.
        loaded_pages: pages that were copied from it so far.
        failed_transfers: transfers that failed so far; what they carried is computed again.
        retractions_to_host: of the ``retractions``, those whose KV the host tier kept.
        sessions_returned: how often, so far, a prompt went on where a finished answer had ended.
        drafted_tokens: guesses at tokens that were verified so far. (New in 1.2, as the next.)
        accepted_tokens: those of them that were right.
    """

    hook: ClassVar[str] = "load_reported"

    time: float
    running: int
    waiting: int
    waiting_tokens: int
    free_pages: int
    cached_pages: int
    active_pages: int
    retractions: int
    loop_seconds: float
    loading: int = 0
    transfers: int = 0
    host_free_pages: int = 0
    host_used_pages: int = 0
    device_hit_tokens: int = 0
    host_hit_tokens: int = 0
    stored_pages: int = 0
    loaded_pages: int = 0
    failed_transfers: int = 0
    retractions_to_host: int = 0
    sessions_returned: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


Event: TypeAlias = (
    ServerReady
    | RequestReceived
    | SequenceStarted
    | TokensGenerated
    | RequestFinished
    | StepFinished
    | LoadReported
)
"""What a hook is called with."""

EVENTS: Mapping[str, type[Event]] = MappingProxyType(
    {
        event.hook: event
        for event in (
            ServerReady,
            RequestReceived,
            SequenceStarted,
            TokensGenerated,
            RequestFinished,
            StepFinished,
            LoadReported,
        )
    }
)
"""Name of each hook to the event that it takes."""

HOOKS: tuple[str, ...] = tuple(EVENTS)
"""The names of all hooks."""


class ObserverHooks:
    """The hooks, for reading and checking. Do not inherit: write the methods that you want."""

    def server_ready(self, event: ServerReady) -> None:
        """The engine can serve. Once, before all other events."""

    def request_received(self, event: RequestReceived) -> None:
        """A request came. Once for each."""

    def sequence_started(self, event: SequenceStarted) -> None:
        """A sequence became part of a step. At most once for each."""

    def tokens_generated(self, event: TokensGenerated) -> None:
        """New tokens came. For each sequence in nearly every step: do little."""

    def request_finished(self, event: RequestFinished) -> None:
        """A request ended. Once for each that was received, unless the server is killed."""

    def step_finished(self, event: StepFinished) -> None:
        """The device ended a step. Once for each."""

    def load_reported(self, event: LoadReported) -> None:
        """The engine said how busy it is. About once a step."""


ObserverFactory: TypeAlias = Callable[[], object]
"""What an entry point in ``tokenspeed.observer`` is: returns an object that has hooks."""
