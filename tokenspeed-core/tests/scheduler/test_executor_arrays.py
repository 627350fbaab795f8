# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the border derives from a plan for an executor, and results that it reads itself."""

import numpy as np
import pytest
from tokenspeed._scheduler import CacheGroupConfig, Config, Finish, PlanBuffers, RowFlag, Scheduler

from .device import Arrays

S, T = 4, 16
CONFIG = Config(
    groups=[CacheGroupConfig("full", 4)],
    num_pages=32,
    max_seqs=S,
    max_model_len=100,
    max_step_tokens=T,
)


def plan_arrays():
    return dict(Arrays(CONFIG, 1, S, T, max_deltas=64).by_name)


def executor_arrays():
    return plan_arrays() | {
        "delta_count": np.full(1, -1, np.int32),
        "token_slot": np.full(T, -1, np.int32),
        "emit_token": np.full(S, -1, np.int64),
        "emit_slot": np.full(S, -1, np.int64),
        "emit_position": np.full(S, -1, np.int64),
        "last_token": np.full(S + 2, -7, np.int64),
    }


def submit(scheduler, request, count):
    prompt = np.arange(count, dtype=np.int32)
    none = np.zeros(0, np.int32)
    scheduler.submit(request, prompt, max_new_tokens=9, stop_ids=none, now_ms=0)


def plan_three(scheduler, arrays):
    """A step with a decode row, a whole prompt and the first chunk of a long one."""
    buffers = PlanBuffers(**arrays)
    submit(scheduler, 1, 3)
    arrays["last_token"][:] = 8
    scheduler.commit_sampled(scheduler.plan(0, buffers).step, buffers)
    submit(scheduler, 2, 2)
    submit(scheduler, 3, 40)
    scheduler.take_updates()
    return scheduler.plan(0, buffers), buffers


def test_the_arrays_of_an_executor_follow_from_those_of_the_plan():
    scheduler, arrays = Scheduler(CONFIG), executor_arrays()
    plan, _ = plan_three(scheduler, arrays)
    rows, starts = plan.num_rows, arrays["row_query_start"][: plan.num_rows + 1]
    slots, lengths = arrays["row_slot"][:rows], arrays["row_kv_len"][:rows]
    emits = (arrays["row_flags"][:rows] & int(RowFlag.EMITS)) != 0
    assert (rows, plan.num_decode_rows, plan.num_emits, plan.num_new_tenants) == (3, 1, 2, 2)
    assert plan.max_query_len == np.diff(starts).max()
    assert plan.max_kv_len == lengths.max()
    assert arrays["delta_count"].tolist() == plan.num_deltas
    token_slot = np.repeat(slots, np.diff(starts))
    assert arrays["token_slot"][: plan.num_tokens].tolist() == token_slot.tolist()
    assert arrays["emit_token"][:2].tolist() == (starts[1:][emits] - 1).tolist()
    assert arrays["emit_slot"][:2].tolist() == slots[emits].tolist()
    assert arrays["emit_position"][:2].tolist() == lengths[emits].tolist()
    assert (arrays["emit_slot"][2:] == -1).all()


def test_sampled_tokens_are_read_by_slot_and_below_zero_a_row_failed():
    scheduler, arrays = Scheduler(CONFIG), executor_arrays()
    plan, buffers = plan_three(scheduler, arrays)
    first, second = arrays["emit_slot"][:2]
    arrays["last_token"][:] = -9  # the row that does not emit has no token to fail with
    arrays["last_token"][first], arrays["last_token"][second] = 77, -1
    scheduler.commit_sampled(plan.step, buffers, 5)
    updates = scheduler.take_updates()
    assert updates.request.tolist() == [1, 2]
    assert updates.tokens.tolist() == [77]
    assert updates.ended() == [(2, Finish.FAILED)]
    assert scheduler.gauges().running == 2


def test_only_the_buffers_that_hold_a_step_have_its_results():
    scheduler, arrays = Scheduler(CONFIG), executor_arrays()
    plan, buffers = plan_three(scheduler, arrays)
    for other in (PlanBuffers(**executor_arrays()), PlanBuffers(**plan_arrays())):
        with pytest.raises(ValueError, match=f"hold no results of step {plan.step}"):
            scheduler.commit_sampled(plan.step, other)
    later = scheduler.plan(0, buffers)
    with pytest.raises(ValueError, match=f"hold no results of step {plan.step}"):
        scheduler.commit_sampled(plan.step, buffers)
    with pytest.raises(ValueError, match="not the oldest"):
        scheduler.commit_sampled(later.step, buffers)


@pytest.mark.parametrize("name", ["delta_count", "token_slot", "emit_token", "emit_slot"])
def test_the_arrays_of_an_executor_come_together(name):
    arrays = executor_arrays()
    with pytest.raises(TypeError, match=f"^{name}: expected"):
        PlanBuffers(**(arrays | {name: arrays[name].astype(np.float32)}))
    del arrays[name]
    with pytest.raises(TypeError, match=f"missing: {name}"):
        PlanBuffers(**arrays)
    with pytest.raises(TypeError, match="not one of its arrays"):
        PlanBuffers(**plan_arrays(), **{name: executor_arrays()[name]})


def test_columns_are_the_bytes_of_the_updates():
    scheduler, arrays = Scheduler(CONFIG), executor_arrays()
    plan, buffers = plan_three(scheduler, arrays)
    arrays["last_token"][:] = 3
    scheduler.commit_sampled(plan.step, buffers)
    updates = scheduler.take_updates()
    names = ("request", "token_start", "tokens", "finish", "stop_token", "cached_tokens")
    assert len(updates) == 2
    assert updates.columns() == tuple(getattr(updates, name).tobytes() for name in names)
    assert updates.ended() == []
