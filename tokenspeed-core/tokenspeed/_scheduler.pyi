# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The C++ control plane as Python sees it: flat data in, flat data out.

No page, slot, tree pin or request ever crosses this border as an object; a request is a
64-bit id, a page is an int32. No call reads a clock: time enters as ``now_ms``.
"""

import enum

import numpy as np
from numpy.typing import NDArray

class Finish(enum.IntEnum):
    """Why a request ended."""

    NONE = 0  # it has not
    STOP = 1  # the model produced one of the request's stop ids
    LENGTH = 2  # max_new_tokens reached
    ABORTED = 3  # abort() was called
    EXPIRED = 4  # its deadline passed
    FAILED = 5  # the executor reported the row as failed

class RowFlag(enum.IntFlag):
    EMITS = 1  # the row's last token is sampled from in this step
    DECODE = 2  # the row's input is the slot's last sampled token, which lives on the device
    NEW_TENANT = 4  # first step of this (slot, epoch): install its sampling state

class Rejection(enum.IntEnum):
    ACCEPTED = 0
    DUPLICATE_ID = 1
    EMPTY_PROMPT = 2
    NEVER_FITS = 3  # `needed` and `available` say why (pages)
    TOO_LONG = 4  # `needed` and `available` say why (tokens, against max_model_len)

class CacheGroupConfig:
    """One cache group. ``kind`` is "full"; further kinds come with their own fields."""

    kind: str
    page_size: int  # tokens per page
    def __init__(self, kind: str, page_size: int) -> None: ...

class Config:
    def __init__(
        self,
        *,
        groups: list[CacheGroupConfig],
        num_pages: int,  # usable pages; the null page 0 is extra, ids are 1..num_pages
        max_seqs: int,  # slots 1..max_seqs; 0 is reserved, max_seqs + 1 is the sentinel
        max_model_len: int,  # tokens of prompt and answer together
        max_step_tokens: int,  # query tokens in one step; at least max_seqs
        prefill_share: float = 0.75,  # of max_step_tokens while at least one row decodes
        prefix_cache: bool = True,
        max_wait_steps: int = 256,  # without progress, for a page that another request computes
        max_row_tokens: int = 1,  # output tokens that one row may return in one step
        hash_bits: int = 64,  # of a page key; tests lower it to force collisions
    ) -> None: ...

class SubmitResult:
    """``rejection`` is ACCEPTED or the reason; a rejected request left no trace."""

    rejection: Rejection
    needed: int
    available: int

class PlanBuffers:
    """Borrowed views of the arrays that ``plan`` fills. The caller owns the memory and keeps it.

    Arrays are C-contiguous; S = max_seqs, T = max_step_tokens, G = groups, D = any capacity
    >= pages per request + S (a step that would write more deltas admits fewer requests):

        row_request u64[S]   row_slot i32[S]   row_epoch u32[S]   row_flags u8[S]
        row_query_start i32[S + 1]     row_kv_len i32[S]   (KV length after this step)
        token_ids i32[T]     positions i32[T]
        delta_slot i32[G, D] delta_epoch u32[G, D] delta_index i32[G, D] delta_page i32[G, D]
    """

    def __init__(self, **arrays: NDArray[np.generic]) -> None: ...

class Plan:
    """What was written: rows [0, num_rows), the first num_decode_rows of which decode."""

    step: int
    num_rows: int
    num_decode_rows: int
    num_tokens: int
    num_emits: int
    num_deltas: list[int]  # per group
    digest: int  # u64 over rows, tokens and deltas: equal on every rank or they diverged

class Updates:
    """What happened to requests since the last call, in order of happening.

    A request's end is reported once, when it is known, and its id is free from then on (its
    pages may drain longer). A stop id is the last of the tokens.
    """

    request: NDArray[np.uint64]
    token_start: NDArray[np.int32]  # [n + 1] into tokens
    tokens: NDArray[np.int32]
    finish: NDArray[np.uint8]  # Finish
    stop_token: NDArray[np.int32]  # the stop id that matched, else -1
    cached_tokens: NDArray[np.int32]  # prompt tokens that were not computed for this request

class Ledger:
    """Every page has exactly one account; found by walking owners, never by subtraction."""

    total: int
    free: int
    cached: int  # owned by the prefix tree only
    active: int  # owned or pinned by requests
    in_transfer: int
    balanced: bool
    detail: str  # names every term when it does not balance

class Gauges:
    running: int
    waiting: int
    draining: int
    free_pages: int
    cached_pages: int
    total_pages: int
    waiting_tokens: int  # uncomputed prompt tokens of waiting requests

class Counters:
    steps: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    retractions: int
    evictions: int
    ignored_events: int
    rejected_events: int
    prefix_waits: int

class Scheduler:
    def __init__(self, config: Config) -> None: ...
    def submit(
        self,
        request: int,
        tokens: NDArray[np.int32],
        *,
        max_new_tokens: int,
        stop_ids: NDArray[np.int32],
        namespace: int = 0,
        deadline_ms: int = 0,  # 0: none
        now_ms: int,
    ) -> SubmitResult: ...
    def abort(self, request: int) -> bool:
        """False when the id is unknown or already over: late aborts are legal and counted."""
    def plan(self, now_ms: int, buffers: PlanBuffers) -> Plan: ...
    def commit(
        self,
        step: int,
        num_tokens: NDArray[np.int32],  # [num_rows]: output tokens of the row (0 if it emits none)
        tokens: NDArray[np.int32],  # [num_rows, max_row_tokens]
        failed: NDArray[np.uint8],  # [num_rows]
    ) -> None:
        """Results of ``step``; steps are committed in the order in which they were planned.

        A step without rows has no results: its commit may be left out. ValueError, and nothing
        changed, when the step or the shape of its results is not the expected one.
        """
    def take_updates(self) -> Updates: ...
    def has_work(self) -> bool:
        """True while any request is alive or any step is uncommitted."""
    def page_table(self, request: int) -> NDArray[np.int32]:
        """Pages of a request in the order of its tokens, once the planned deltas are applied.

        For verification: costs O(context). Empty when it owns none, or the id is unknown or over.
        """
    def ledger(self) -> Ledger: ...
    def gauges(self) -> Gauges: ...
    def counters(self) -> Counters: ...
    def take_rejected_events(self) -> list[tuple[str, str, str]]:
        """(request, state, event) of events that the transition table rejects: bugs of ours."""
    def reset_prefix_cache(self) -> bool:
        """Drop the tree; False (and nothing dropped) while a request is alive."""

def transition_table() -> list[tuple[str, str, str]]:
    """(state, event, outcome) rows: the source of the diagram in the docs."""
