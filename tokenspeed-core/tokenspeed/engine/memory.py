# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How many KV pages fit, and what that means for the longest request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed_sdk.contracts.platform import HOST_MEMORY

from tokenspeed.cache.slab import page_bytes

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.model import CacheGroup
    from tokenspeed_sdk.contracts.platform import Capabilities, MemoryReport

    from tokenspeed.config import EngineConfig

KV_SHARE = 0.9
"""Share of the free memory that KV may take on a device of its own."""
HOST_KV_SHARE = 0.15
"""The same where the device's memory is the host's, which other processes need too."""


@dataclass(frozen=True)
class KvBudget:
    """Pages of the pool, and the longest prompt and answer together that fit in it, in tokens."""

    pages: int
    max_model_len: int


def plan_kv(
    config: EngineConfig,
    group: CacheGroup,
    dtype: str,
    model_context: int,
    memory: MemoryReport,
    capabilities: Capabilities,
) -> KvBudget:
    """Size the pool from ``--kv-pages``, else from free memory.

    Raises:
        ValueError: --max-model-len is beyond the model's context.
        MemoryError: not one page fits; says needed and available.
    """
    asked = config.max_model_len or model_context
    if asked > model_context:
        raise ValueError(
            f"--max-model-len {asked} is beyond the model's context of {model_context} tokens; "
            f"give {model_context} or less"
        )
    per_page = page_bytes(group, config.page_size, dtype)
    pages = config.kv_pages or _pages_that_fit(config, asked, per_page, memory, capabilities)
    # The KV of a request's last token is never written, yet this keeps the rule simple: all fits.
    return KvBudget(pages, min(asked, pages * config.page_size))


def _pages_that_fit(
    config: EngineConfig,
    max_model_len: int,
    per_page: int,
    memory: MemoryReport,
    capabilities: Capabilities,
) -> int:
    useful = config.max_num_seqs * -(-max_model_len // config.page_size)
    share = HOST_KV_SHARE if HOST_MEMORY in capabilities.features else KV_SHARE
    budget = int(memory.free * share)
    pages = min(useful, budget // per_page)
    if pages < 1:
        raise MemoryError(
            f"no memory is left for KV: one page needs {per_page} bytes and {budget} are available "
            "after the weights; use a smaller model or a machine with more memory"
        )
    return pages
