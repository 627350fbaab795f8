# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How many KV pages fit, and what that means for the longest request."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed_sdk.contracts.platform import HOST_MEMORY

from tokenspeed.cache.slab import page_bytes

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.model import CacheGroup
    from tokenspeed_sdk.contracts.platform import Capabilities, MemoryReport

    from tokenspeed.cache.slab import Beside
    from tokenspeed.config import EngineConfig

KV_SHARE = 0.95
"""Share of the memory that is free beside weights and workspace, on a device of its own."""
HOST_KV_SHARE = 0.15
"""The same where the device's memory is the host's, which other processes need too."""
SHORTEST_REQUEST = 2
"""Tokens: one of the prompt, one of the answer."""


@dataclass(frozen=True)
class KvBudget:
    """Pages of the pool, and the longest prompt and answer together that fit in it, in tokens."""

    pages: int
    max_model_len: int


def kv_memory(memory: MemoryReport, capabilities: Capabilities, workspace: int) -> int:
    """Bytes that KV may take, once the weights are loaded.

    Args:
        workspace: bytes that steps need; counted on a device of its own only.
    """
    if HOST_MEMORY in capabilities.features:
        return int(memory.free * HOST_KV_SHARE)
    return int((memory.free - workspace) * KV_SHARE)


def longest_request(config: EngineConfig, model_context: int) -> int:
    """Tokens of the longest prompt and answer together that will be served, as asked.

    Raises:
        ValueError: --max-model-len is beyond the model's context.
    """
    asked = config.max_model_len or model_context
    if asked > model_context:
        raise ValueError(
            f"--max-model-len {asked} is beyond the model's context of {model_context} tokens; "
            f"give {model_context} or less"
        )
    return asked


def plan_kv(
    config: EngineConfig,
    group: CacheGroup,
    dtype: str,
    max_model_len: int,
    available: int,
    beside: Beside | None = None,
) -> KvBudget:
    """Size the pool from ``--kv-pages``, else from ``available`` bytes.

    Args:
        beside: what a drafter keeps in every page.

    Raises:
        MemoryError: not one page fits; says needed and available.
        ValueError: --kv-pages hold not even a token and its answer.
    """
    per_page = page_bytes(group, config.page_size, dtype, beside)
    useful = config.max_num_seqs * -(-max_model_len // config.page_size)
    pages = config.kv_pages or min(useful, available // per_page)
    if pages < 1:
        raise MemoryError(f"one page needs {per_page} bytes, {max(available, 0)} are left for KV")
    # The KV of a request's last token is never written, yet this keeps the rule simple: all fits.
    tokens = pages * config.page_size
    if tokens < SHORTEST_REQUEST:
        raise ValueError(
            f"--kv-pages {pages} of --page-size {config.page_size} hold {tokens} token, and a "
            f"request has {SHORTEST_REQUEST} at least; give --kv-pages 2 or more"
        )
    return KvBudget(pages, min(max_model_len, tokens))


def cut_short(config: EngineConfig, budget: KvBudget, wanted: int) -> str | None:
    """A warning where the pool makes the longest request shorter than wanted; else None."""
    if budget.max_model_len >= wanted:
        return None
    pages = -(-wanted // config.page_size)
    remedy = (
        f"use a machine with more memory, or be content with --max-model-len {budget.max_model_len}"
    )
    if config.kv_pages:
        remedy = f"give --kv-pages {pages} or more"
    return (
        f"requests of more than {budget.max_model_len} tokens, prompt and answer together, are "
        f"refused: the KV memory holds no more; for the {wanted} of "
        f"{'--max-model-len' if config.max_model_len else 'the model'} {remedy}"
    )


def host_tier_pages(config: EngineConfig, page_bytes: int) -> int:
    """Usable pages of the host tier: what ``--host-kv-gb`` holds, beside the null page.

    Raises:
        ValueError: it holds none.
        MemoryError: this machine does not have so much.
    """
    if not config.host_kv_gb:
        return 0
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    if config.host_kv_gb > machine:
        raise MemoryError(
            f"--host-kv-gb {config.host_kv_gb:g} is more than the {machine:.1f} GB of memory that "
            f"this machine has; give less"
        )
    pages = int(config.host_kv_gb * 1e9) // page_bytes - 1
    if pages < 1:
        raise ValueError(
            f"--host-kv-gb {config.host_kv_gb:g} holds no page: one takes {page_bytes} bytes, "
            f"beside one that is never used; give at least {2 * page_bytes / 1e9:.2g}, or 0"
        )
    return pages
