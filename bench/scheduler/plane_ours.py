# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Our control plane, called as the engine's loop calls it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from plane import PAGE_SIZE, Facts, Level, Sizes
from tokenspeed._scheduler import (
    CacheGroupConfig,
    Config,
    Plan,
    PlanBuffers,
    Rejection,
    RowFlag,
    Scheduler,
    max_copies,
    max_transfer_pages,
)

MAX_MODEL_LEN = 131_072
EMITS = int(RowFlag.EMITS)
NO_STOP_IDS = np.zeros(0, np.int32)
ROW_ARRAYS = ("row_request", "row_slot", "row_epoch", "row_flags", "row_kv_len")
TOKEN_ARRAYS = ("token_ids", "positions")
DELTA_ARRAYS = ("delta_slot", "delta_epoch", "delta_index", "delta_page")
COPY_ARRAYS = ("copy_source", "copy_target")
STORE_ARRAYS = ("store_transfer", "store_source", "store_target")
LOAD_ARRAYS = ("load_transfer", "load_source", "load_target")


class OurPlane:
    """``plane.ControlPlane`` over ``tokenspeed._scheduler``."""

    def __init__(self, sizes: Sizes) -> None:
        config = Config(
            groups=[CacheGroupConfig("full", PAGE_SIZE)],
            num_pages=sizes.pages,
            max_seqs=sizes.rows,
            max_model_len=MAX_MODEL_LEN,
            max_step_tokens=sizes.step_tokens,
            host_pages=sizes.host_pages,
        )
        self._scheduler = Scheduler(config)
        self._arrays = _arrays(config, sizes)
        self._buffers = PlanBuffers(**self._arrays)
        self._sampled = np.full(sizes.rows, 7, np.int32)  # what the device would have sampled
        self._plan: Plan
        self._views: list[NDArray[Any]]
        self._updates: list[NDArray[Any]]

    def submit(self, request: int, tokens: NDArray[np.int32], max_new_tokens: int) -> None:
        result = self._scheduler.submit(
            request, tokens, max_new_tokens=max_new_tokens, stop_ids=NO_STOP_IDS, now_ms=0
        )
        if result.rejection != Rejection.ACCEPTED:
            raise RuntimeError(f"request {request}: {result.rejection!r}")

    def plan(self) -> None:
        plan = self._plan = self._scheduler.plan(0, self._buffers)
        arrays, rows = self._arrays, plan.num_rows
        views = self._views = [arrays[name][:rows] for name in ROW_ARRAYS]
        views.append(arrays["row_query_start"][: rows + 1])
        views += [arrays[name][: plan.num_tokens] for name in TOKEN_ARRAYS]
        for name in DELTA_ARRAYS:
            views += [row[:count] for row, count in zip(arrays[name], plan.num_deltas, strict=True)]
        if plan.num_copies:
            views += [arrays[name][: plan.num_copies] for name in COPY_ARRAYS]
        if plan.num_stores:
            views += [arrays[name][: plan.num_stores] for name in STORE_ARRAYS]
        if plan.num_loads:
            views += [arrays[name][: plan.num_loads] for name in LOAD_ARRAYS]

    def commit(self) -> None:
        plan, rows = self._plan, self._plan.num_rows
        emits = (self._arrays["row_flags"][:rows] & EMITS) != 0
        tokens = np.zeros((rows, 1), np.int32)
        tokens[emits, 0] = self._sampled[: plan.num_emits]
        failed = (tokens[:, 0] < 0).astype(np.uint8)
        self._scheduler.commit(plan.step, emits.astype(np.int32), tokens, failed)
        updates = self._scheduler.take_updates()
        self._updates = [
            *(updates.request, updates.token_start, updates.tokens),
            *(updates.finish, updates.stop_token, updates.cached_tokens),
        ]

    def gauges(self) -> tuple[int, int]:
        gauges = self._scheduler.gauges()
        available = gauges.free_pages + gauges.cached_pages
        return available, gauges.total_pages - available

    def settle(self) -> None:
        """Requests end by themselves, when the commit brings their last token."""
        stores = self._arrays["store_transfer"][: self._plan.num_stores]
        for transfer in np.unique(stores).tolist():
            self._scheduler.ack(transfer, True)

    def abort(self, request: int) -> None:
        self._scheduler.abort(request)
        self._scheduler.take_updates()

    def facts(self) -> Facts:
        plan = self._plan
        return Facts(plan.num_rows, plan.num_tokens, plan.num_stores)

    def level(self) -> Level:
        gauges = self._scheduler.gauges()
        return Level(
            running=gauges.running + gauges.loading + gauges.draining,
            waiting=gauges.waiting,
            held_pages=gauges.total_pages - gauges.free_pages - gauges.cached_pages,
            empty_pages=gauges.free_pages,
            empty_host_pages=gauges.host_free_pages,
        )


def _arrays(config: Config, sizes: Sizes) -> dict[str, NDArray[Any]]:
    rows, tokens = sizes.rows, sizes.step_tokens
    deltas = (1, -(-MAX_MODEL_LEN // PAGE_SIZE) + rows)
    copies, transfers = max_copies(config), max_transfer_pages(config)
    types = {"row_request": np.uint64, "row_epoch": np.uint32, "row_flags": np.uint8}
    types |= {"delta_epoch": np.uint32, "store_transfer": np.uint64, "load_transfer": np.uint64}
    shapes: dict[str, int | tuple[int, int]] = {
        **dict.fromkeys(ROW_ARRAYS, rows),
        "row_query_start": rows + 1,
        **dict.fromkeys(TOKEN_ARRAYS, tokens),
        **dict.fromkeys(DELTA_ARRAYS, deltas),
        **dict.fromkeys(COPY_ARRAYS, copies),
        **dict.fromkeys((*STORE_ARRAYS, *LOAD_ARRAYS), transfers),
    }
    return {name: np.zeros(shape, types.get(name, np.int32)) for name, shape in shapes.items()}
