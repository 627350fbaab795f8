# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What front and engine say to each other: one flat message per step each way.

msgpack over an ipc socket. Arrays travel as little-endian bytes and are read in place with numpy.
Times are milliseconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from tokenspeed_sdk.contracts.observer import KernelChoice

MAX_BIASES = 1536
"""Entries in a request's list of biases: 1024 of its own, and end tokens that must wait."""


MAX_TOP_LOGPROBS = 20
"""As the OpenAI API has it."""


class Bias(msgspec.Struct, frozen=True, array_like=True):
    """Something to add to the logit of a token.

    Attributes:
        value: finite, or -inf, which bans the token.
        until: at positions of the request below this one; at least 1.
    """

    token: int
    value: float
    until: int


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """Resolved sampling parameters: every field has a value, the seed too.

    Attributes:
        biases: at most MAX_BIASES, applied in this order.
        logprobs: how many of the likeliest tokens are told with each one that is drawn, at most
            MAX_TOP_LOGPROBS; -1: nothing is told.
        prompt_logprobs: likewise with each token of the prompt but the first.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    biases: tuple[Bias, ...] = ()
    logprobs: int = -1
    prompt_logprobs: int = -1

    @property
    def penalties(self) -> tuple[float, float, float]:
        """Repetition, frequency, presence."""
        return self.repetition_penalty, self.frequency_penalty, self.presence_penalty

    @property
    def penalizes(self) -> bool:
        """Whether tokens of the request must be counted."""
        return self.penalties != (1.0, 0.0, 0.0)

    @property
    def adjusts(self) -> bool:
        """Whether it asks anything of its logits but to draw from them."""
        return self.penalizes or bool(self.biases) or self.logprobs >= 0


Marks: TypeAlias = tuple[int, int]
"""Tokens between which a model thinks: the first, the last."""


class Thinking(msgspec.Struct, frozen=True, array_like=True):
    """What may come before the part of an answer that a grammar is about.

    Attributes:
        begin, end: tokens between which the model thinks.
        begun: the prompt has the first of them already; else it may be the answer's first token.
        end_ids: tokens that end an answer, which may not come within a thought.
    """

    begin: int
    end: int
    begun: bool
    end_ids: list[int]


class Submit(msgspec.Struct, frozen=True, array_like=True):
    """One sequence to generate.

    Attributes:
        tokens: int32 bytes.
        deadline_ms: 0 for none.
        grammar: number of a NewGrammar; 0 for none.
        thinking: what may come before it begins; None: nothing.
    """

    request: int
    tokens: bytes
    max_new_tokens: int
    stop_ids: list[int]
    sampling: Sampling
    namespace: int = 0
    deadline_ms: int = 0
    priority: int = 0
    grammar: int = 0
    thinking: Thinking | None = None


class NewGrammar(msgspec.Struct, frozen=True, array_like=True):
    """A compiled grammar.

    Attributes:
        number: above 0; names it in submits that follow.
        backend: name of the grammar backend that compiled it.
    """

    number: int
    backend: str
    data: bytes


class EngineInput(msgspec.Struct, array_like=True, tag="input"):
    """Front to engine. ``ask_ledger``: answer with a CacheLedger, echoing the number (0: don't).

    Attributes:
        new_grammars: before the submits, which may name them.
        old_grammars: numbers that no later submit names.
    """

    submits: list[Submit] = []
    aborts: list[int] = []
    ask_ledger: int = 0
    reset_cache: bool = False
    stop: bool = False
    new_grammars: list[NewGrammar] = []
    old_grammars: list[int] = []


class Load(msgspec.Struct, frozen=True, array_like=True):
    """How busy the engine is, with every EngineOutput.

    Attributes:
        host_us: microseconds that the loop worked so far, its waits for the device left out.
    """

    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    free_pages: int = 0
    cached_pages: int = 0
    total_pages: int = 0
    steps: int = 0
    retractions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    host_us: int = 0
    loading: int = 0
    transfers: int = 0
    host_free_pages: int = 0
    host_total_pages: int = 0
    host_cached_tokens: int = 0
    stored_pages: int = 0
    loaded_pages: int = 0
    failed_transfers: int = 0
    retractions_to_host: int = 0
    sessions_returned: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class Rejected(msgspec.Struct, frozen=True, array_like=True):
    """A submit that the scheduler refused."""

    request: int
    reason: str
    needed: int
    available: int


class Started(msgspec.Struct, frozen=True, array_like=True):
    """A sequence became part of a step for the first time.

    Attributes:
        at_us: when the step was planned, in microseconds of the monotonic clock.
        cached_tokens: prompt tokens that need not be computed.
    """

    request: int
    at_us: int
    cached_tokens: int


class StepReport(msgspec.Struct, frozen=True, array_like=True):
    """A step that the device ended.

    Attributes:
        duration_us: from when the device could begin it to when the loop saw its end.
    """

    duration_us: int
    prefill_tokens: int
    decode_rows: int


class CacheLedger(msgspec.Struct, frozen=True, array_like=True):
    """Accounts of all pages, found by walking their owners."""

    asked: int
    total: int
    free: int
    cached: int
    active: int
    in_transfer: int
    balanced: bool
    idle: bool
    detail: str
    host_total: int = 0
    host_free: int = 0
    host_cached: int = 0
    host_in_transfer: int = 0


class KvEventColumns(msgspec.Struct, frozen=True, array_like=True):
    """What became resident in the prefix cache and what went: the columns of
    ``tokenspeed._scheduler.KvEvents`` as bytes, n events in order."""

    kind: bytes
    tier: bytes
    group: bytes
    block: bytes
    parent: bytes
    namespace: bytes
    token_start: bytes
    tokens: bytes


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Of one token that was drawn: log-probabilities by the model's own logits.

    Attributes:
        ids: int32[1 + k], the token and the k likeliest.
        values: float32[1 + k], theirs.
    """

    request: int
    ids: bytes
    values: bytes


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The same of n tokens of a prompt, the first at position ``first``; may be told again.

    Attributes:
        count: 1 + k.
        ids: int32[n, 1 + k].
        values: float32[n, 1 + k].
    """

    request: int
    first: int
    count: int
    ids: bytes
    values: bytes


class Guessed(msgspec.Struct, frozen=True, array_like=True):
    """Guesses at tokens of one request that a step verified.

    Attributes:
        drafted, accepted: all of them, and those that were right.
    """

    request: int
    drafted: int
    accepted: int


class EngineOutput(msgspec.Struct, array_like=True, tag="output"):
    """Engine to front, at most one a step: n updates in order of happening.

    Attributes:
        request: uint64[n].
        token_start: int32[n + 1] into tokens.
        tokens: int32.
        finish: uint8[n], values of tokenspeed._scheduler.Finish.
        stop_token: int32[n], the stop id that matched, else -1.
        cached_tokens: int32[n], prompt tokens that were not computed.
        failure: request -> what failed it, for rows with Finish.FAILED; and for submits that the
            scheduler never saw.
        started: sequences that started since the last message.
        steps: steps that ended since the last message, in order.
        logprobs: of the tokens of requests that asked, in order.
        prompt_logprobs: of prompts of requests that asked.
        guessed: of requests for which tokens were guessed.
        stuck: request -> how, for people; each is told once.
    """

    request: bytes = b""
    token_start: bytes = b""
    tokens: bytes = b""
    finish: bytes = b""
    stop_token: bytes = b""
    cached_tokens: bytes = b""
    failure: dict[int, str] = {}
    started: list[Started] = []
    steps: list[StepReport] = []
    rejected: list[Rejected] = []
    load: Load = Load()
    ledger: CacheLedger | None = None
    kv_events: KvEventColumns | None = None
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[PromptLogprobs] = []
    guessed: list[Guessed] = []
    stuck: dict[int, str] = {}


class EngineLoading(msgspec.Struct, frozen=True, array_like=True, tag="loading"):
    """Engine to front while it starts."""

    phase: str
    bytes_done: int
    bytes_total: int


class EngineReady(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """Engine to front, once: what it can serve.

    Attributes:
        max_model_len: tokens of prompt and answer together, min(context, KV pool).
        kernels: what the model's call sites were bound to.
        block_size: tokens of one block of the prefix cache.
        host_pages: pages of the host tier; 0 for none.
    """

    max_model_len: int
    vocab_size: int
    page_size: int
    total_pages: int
    max_num_seqs: int
    dtype: str
    platform: str
    architecture: str
    weight_bytes: int
    kv_bytes: int
    kernels: list[KernelChoice] = []
    block_size: int = 0
    host_pages: int = 0


class EngineFailed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """Engine to front, as its last words: why it ends."""

    error: str


FromEngine = EngineOutput | EngineLoading | EngineReady | EngineFailed
