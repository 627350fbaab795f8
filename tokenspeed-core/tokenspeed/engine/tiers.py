# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The KV memory of an engine on both tiers, and what the scheduler is told of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tokenspeed._scheduler import CacheGroupConfig, Config
from tokenspeed.cache.host_pool import HostPool
from tokenspeed.cache.slab import Slab
from tokenspeed.engine.memory import KvBudget, cut_short, host_tier_pages, kv_memory, plan_kv

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.model import CacheGroup
    from tokenspeed_sdk.contracts.platform import Device
    from tokenspeed_sdk.modeling import BuildContext

    from tokenspeed.cache.slab import Beside
    from tokenspeed.config import EngineConfig

log = logging.getLogger(__name__)

Phase: TypeAlias = Callable[[str, str], AbstractContextManager[None]]
"""Inside, a named phase of the start goes on; the second text is what to do without memory."""


@dataclass(frozen=True)
class KvTiers:
    """All pages; ``pool`` is None without a host tier."""

    budget: KvBudget
    slab: Slab
    pool: HostPool | None

    @property
    def host_pages(self) -> int:
        """Usable pages of the host tier."""
        return 0 if self.pool is None else self.pool.pages

    def __str__(self) -> str:
        slab, pool = self.slab, self.pool
        host = "no host tier"
        if pool is not None:
            host = f"host tier {pool.bytes / 1e9:.2f} GB in {pool.pages} pages"
        return (
            f"KV {slab.bytes / 1e9:.2f} GB in {slab.pages} pages of {slab.page_size} tokens, {host}"
        )


def allocate_kv(
    config: EngineConfig,
    groups: tuple[CacheGroup, ...],
    context: BuildContext,
    device: Device,
    workspace: int,
    phase: Phase,
    beside: Beside | None = None,
) -> KvTiers:
    """Size and allocate both tiers, once the weights are loaded.

    Args:
        workspace: bytes that steps need.
        beside: what a drafter keeps in every page.

    Raises:
        MemoryError: there is not so much.
        ValueError: --host-kv-gb holds no page.
    """
    with phase("allocate KV", "lower --kv-pages, or leave it out"):
        available = kv_memory(device.memory(), device.capabilities, workspace)
        dtype, longest = context.cache_dtype, context.max_model_len
        budget = plan_kv(config, groups[0], dtype, longest, available, beside)
        slab = Slab(device, groups, config.page_size, budget.pages, dtype, beside)
    if warning := cut_short(config, budget, longest):
        log.warning(warning)
    host_pages = host_tier_pages(config, slab.page_bytes)
    if not host_pages:
        return KvTiers(budget, slab, pool=None)
    with phase("allocate the host tier", "lower --host-kv-gb"):
        return KvTiers(budget, slab, HostPool(device, host_pages, slab.page_bytes))


def scheduler_config(config: EngineConfig, groups: tuple[CacheGroup, ...], kv: KvTiers) -> Config:
    """What the scheduler must know; the sizes of the step buffers follow from it.

    ValueError: a group's kind is none that the kernels and step buffers of this engine know.
    """
    for group in groups:
        if group.kind != "full":
            raise ValueError(
                f'the model declares a cache group of kind "{group.kind}"; this engine runs models '
                f'whose groups are all "full"'
            )
    return Config(
        groups=[CacheGroupConfig(group.kind, config.page_size) for group in groups],
        num_pages=kv.budget.pages,
        max_seqs=config.max_num_seqs,
        max_model_len=kv.budget.max_model_len,
        max_step_tokens=config.max_step_tokens,
        prefill_share=config.prefill_share,
        prefix_cache=config.prefix_cache,
        host_pages=kv.host_pages,
        aging_ms=config.priority_aging_ms,
        itl_target_ms=config.itl_target_ms,
        retention=config.retention,
        kv_events=config.kv_events,
        max_row_tokens=config.row_tokens,
    )
