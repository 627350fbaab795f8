# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How much memory steps need beside weights and KV: measured, by running the largest ones.

The null page holds the KV of these steps, so one page is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.cache.slab import Slab
from tokenspeed.engine.buffers import Limits, StepBuffers, StepLayout
from tokenspeed.engine.device_step import DeviceStep, StepShape
from tokenspeed.engine.draft_model import Drafting
from tokenspeed.engine.graphs import DecodeGraphs, graph_sizes

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.drafter import DraftModel
    from tokenspeed_sdk.contracts.model import CacheGroup, Model
    from tokenspeed_sdk.contracts.platform import Device
    from tokenspeed_sdk.modeling.context import BuildContext

    from tokenspeed.cache.slab import Beside
    from tokenspeed.config import EngineConfig

MARGIN = 1.1
"""The smaller graphs and the allocator's rounding come on top of what is measured."""


def measure_workspace(
    model: Model,
    groups: tuple[CacheGroup, ...],
    device: Device,
    context: BuildContext,
    config: EngineConfig,
    vocab_size: int,
    draft_model: DraftModel | None = None,
    beside: Beside | None = None,
) -> int:
    """Bytes of the largest prefill step and the largest decode graph together.

    A graph keeps its memory to itself, so the two add up. The peak only rises: where the graph is
    the larger one, it is counted twice.
    """
    limits = Limits(
        sequences=config.max_num_seqs,
        tokens=config.max_step_tokens,
        groups=len(groups),
        max_kv_len=config.max_step_tokens,
        page_size=config.page_size,
        row_tokens=config.row_tokens,
    )
    before = device.memory().used
    slab = Slab(device, groups, config.page_size, 1, context.cache_dtype, beside)
    caches = [slab.layers(group) for group in groups]
    drafting = Drafting.of(draft_model, slab, groups[0])
    step = DeviceStep(model, device, context, caches, limits, vocab_size, drafting)
    buffers = StepBuffers(device, StepLayout(limits), limits)
    shape = _one_long_prompt(buffers, limits.tokens)
    stream = device.stream()
    largest = {kind: sizes[-1:] for kind, sizes in graph_sizes(limits).items()}
    DecodeGraphs(step, device, stream, limits, largest if config.graphs else {})
    graphs = device.memory().peak - before
    stream.run(lambda: step.upload(buffers))
    stream.run(lambda: step.run(shape, buffers.arrays))
    stream.close()
    return int((graphs + device.memory().peak - before) * MARGIN)


def _one_long_prompt(buffers: StepBuffers, tokens: int) -> StepShape:
    """Fill in a step that prefills ``tokens`` tokens of slot 1 into the null page."""
    host = buffers.host
    host["row_slot"][0] = 1
    host["row_query_start"][:2] = (0, tokens)
    host["row_kv_len"][0] = tokens
    host["positions"][:tokens] = np.arange(tokens)
    host["token_slot"][:tokens] = 1
    return StepShape(
        rows=1,
        decode_rows=0,
        tokens=tokens,
        emits=0,
        has_deltas=False,
        max_query_len=tokens,
        max_kv_len=tokens,
    )
