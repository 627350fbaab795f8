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

class Blocked(enum.IntEnum):
    """Why a plan has no rows."""

    NO = 0  # it has some
    IDLE = 1  # no request is alive
    COMMIT = 2  # results of steps in flight come first
    TRANSFER = 3  # transfers in flight come first
    PAGES = 4  # the first in the queue does not fit, and nothing in flight gives pages back

class Tier(enum.IntEnum):
    DEVICE = 1
    HOST = 2

class KvEvent(enum.IntEnum):
    STORED = 1
    REMOVED = 2
    CLEARED = 3  # nothing is cached any more, on any tier

class CacheGroupConfig:
    """One cache group: layers whose KV has one shape and one retention rule.

    kind: "full" (every token), "sliding" (the last ``window`` tokens count, the token itself
        included), "state" (one recurrent state, which fits one page).
    page_size: tokens per page. For "state": tokens between two checkpoints.
    """

    kind: str
    page_size: int
    window: int
    def __init__(self, kind: str, page_size: int, window: int = 0) -> None: ...

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
        max_row_tokens: int = 1,  # output tokens that one row may return: 1 + most draft tokens
        host_pages: int = 0,  # usable pages of the host tier (0: none); ids are 1..host_pages
        aging_ms: int = 10_000,  # one priority class is worth so much waiting
        max_bypass: int = 16,  # how often the head of the queue is passed before all wait for it
        itl_target_ms: float = 0.0,  # the prefill share follows from it; 0: prefill_share holds
        retention: bool = True,  # keep what came back before longer than plain LRU does
        kv_events: bool = False,  # log what the prefix cache holds, for take_kv_events
        hash_bits: int = 64,  # of a page key; tests lower it to force collisions
        hash_seed: int = 0,  # of page keys; no plan depends on it
    ) -> None: ...

    block_size: int
    """Tokens of one node of the prefix tree: the least common multiple of the page sizes."""

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
        copy_source i32[C]   copy_target i32[C]    (device pages)
        store_transfer u64[X] store_source i32[X] store_target i32[X]   (device page to host page)
        load_transfer u64[X]  load_source i32[X]  load_target i32[X]    (host page to device page)

    C >= max_copies() of the config, X >= max_transfer_pages(); both are 0 where nothing needs them.
    A decode row of 1 + k query tokens verifies k drafts. Where no step of the request is in flight,
    its ``token_ids`` are its last token and the drafts of ``set_drafts``. Else they are 0: they are
    on the device, and positions and KV length are upper bounds, as the step in flight may accept
    fewer.

    In a step, deltas are applied first, then copies, then the forward runs: all in one stream.
    Stores and loads run beside it, in any order: nobody else touches either end before the ack.

    With ``sampled`` come arrays that an executor reads, all of them or none. A row that emits does
    so at its last token, and a decode row at each of its tokens; E >= S * max_row_tokens:

        delta_count i32[G]   token_slot i32[T]
        emit_token i64[E]    emit_slot i64[E]    emit_position i64[E]   (the first ``num_emits``:
                             index of the token, slot, position of the token that is sampled)
        sampled i64[E]       not filled, but read by ``commit_sampled``
    """

    def __init__(self, **arrays: NDArray[np.generic]) -> None: ...

class Plan:
    """What was written: rows [0, num_rows), the first num_decode_rows of which decode."""

    step: int
    num_rows: int
    num_decode_rows: int
    num_tokens: int
    num_emits: int  # tokens that are sampled
    num_new_tenants: int
    max_query_len: int
    max_kv_len: int
    num_deltas: list[int]  # per group
    num_copies: int
    num_stores: int
    num_loads: int
    blocked: Blocked  # NO if and only if num_rows > 0
    digest: int  # u64 over all that was written: equal on every rank or they diverged

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
    def __len__(self) -> int: ...
    def columns(self) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes]:
        """The arrays as bytes, in the order in which they stand above."""
    def ended(self) -> list[tuple[int, int]]:
        """(request, Finish) of those that ended."""

class Ledger:
    """Every page has exactly one account; found by walking owners, never by subtraction."""

    total: int
    free: int
    cached: int  # owned by the prefix tree only
    active: int  # owned or pinned by requests
    in_transfer: int  # neither: a transfer reads or writes them
    host_total: int
    host_free: int
    host_cached: int
    host_in_transfer: int
    balanced: bool
    detail: str  # names every term when it does not balance

class Gauges:
    running: int  # those that load included
    waiting: int
    loading: int  # admitted, and their KV is on its way from the host tier
    draining: int
    free_pages: int
    cached_pages: int
    total_pages: int
    host_free_pages: int
    host_total_pages: int
    transfers: int  # in flight
    waiting_tokens: int  # uncomputed prompt tokens of waiting requests

class Counters:
    steps: int
    prompt_tokens: int
    cached_tokens: int  # of all tiers
    host_cached_tokens: int  # of these, loaded from the host tier
    output_tokens: int
    retractions: int
    retractions_to_host: int  # of these, with all full blocks in the host tier
    evictions: int  # device pages
    host_evictions: int  # host pages
    page_copies: int
    adoptions: int  # of a leaf's last page, where a copy was not needed
    stored_pages: int  # acked
    loaded_pages: int  # acked
    failed_transfers: int
    sessions_returned: int
    kept_sessions: int  # kept beyond LRU, ever
    ignored_events: int
    rejected_events: int
    prefix_waits: int
    bypasses: int

class KvEvents:
    """What became resident and what went, in order; parents come first. Full blocks only.

    A model without a full group reports none: its chain of blocks has gaps, so a reader could make
    nothing of it. After an overflow of the log: CLEARED, then everything that is resident.
    """

    kind: NDArray[np.uint8]  # KvEvent
    tier: NDArray[np.uint8]  # Tier; 0 with CLEARED
    group: NDArray[np.uint8]
    block: NDArray[np.uint64]  # names a block
    parent: NDArray[np.uint64]  # 0: it is a first block
    namespace: NDArray[np.uint64]
    token_start: NDArray[np.int32]  # [n + 1] into tokens; none unless STORED
    tokens: NDArray[np.int32]

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
        priority: int = 0,  # -100..100, higher goes first; a class is worth ``aging_ms``
        draft_tokens: int = 0,  # a decode row verifies up to so many; below max_row_tokens
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
        # How long the device took; feeds the inter-token-latency target. The same on every rank.
        elapsed_us: int = 0,
    ) -> None:
        """Results of ``step``; steps are committed in the order in which they were planned.

        A step without rows has no results: its commit may be left out. ValueError, and nothing
        changed, when the step or the shape of its results is not the expected one.
        """
    def commit_sampled(self, step: int, buffers: PlanBuffers, elapsed_us: int = 0) -> None:
        """Results of ``step``, whose plan ``buffers`` still hold, are in ``sampled``.

        Of a row that verifies drafts, the tokens count before which every draft was what had been
        sampled. A token below zero that counts: the row failed. Errors as in ``commit``, and
        ValueError where the buffers hold another plan.
        """
    def set_drafts(self, request: int, tokens: NDArray[np.int32]) -> bool:
        """Guesses at what follows a request's tokens, fewer than ``max_row_tokens``.

        The next plan has them verified, as many as there is room for, if no step of the request is
        in flight then. False, and no effect, when the id is unknown or over.
        """
    def ack(self, transfer: int, ok: bool) -> bool:
        """A transfer ended. False when it is unknown or acked before: legal, counted, no effect.

        After a failed load its host pages are not trusted again and its request waits once more.
        """
    def check_digest(self, step: int, digest: int) -> None:
        """Compare with the digest that another rank computed for the same step, of the last 64.

        RuntimeError: the ranks have diverged, and nothing that follows can be trusted.
        """
    def take_updates(self) -> Updates: ...
    def take_kv_events(self) -> KvEvents: ...
    def has_work(self) -> bool:
        """True while any request is alive, any step uncommitted or any transfer in flight."""
    def page_table(self, request: int, group: int = 0) -> NDArray[np.int32]:
        """Pages of a request in the order of its tokens, once the planned deltas are applied.

        For verification: costs O(context). Empty when it owns none, or the id is unknown or over.
        0 where a sliding window has passed: the device's table may still name the old page.
        """
    def tokens(self, request: int) -> tuple[NDArray[np.int32], int]:
        """(prompt and committed output, how many of them are the prompt). Costs O(context).

        ValueError: the id is unknown or over.
        """
    def ledger(self) -> Ledger: ...
    def gauges(self) -> Gauges: ...
    def counters(self) -> Counters: ...
    def take_rejected_events(self) -> list[tuple[str, str, str]]:
        """(request, state, event) of events that the transition table rejects: bugs of ours."""
    def reset_prefix_cache(self) -> bool:
        """Drop the tree, on both tiers; False (and nothing dropped) while has_work()."""

def max_copies(config: Config) -> int:
    """The most page copies that one step may hold."""

def max_transfer_pages(config: Config) -> int:
    """The least X of PlanBuffers: the most pages of one transfer."""

def transition_table() -> list[tuple[str, str, str]]:
    """(state, event, outcome) rows: the source of the diagram in the docs."""
