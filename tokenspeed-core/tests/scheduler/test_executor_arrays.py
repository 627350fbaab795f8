# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the border derives from a plan for an executor, and results that it reads itself."""

from itertools import pairwise

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
        "sampled": np.full(S, -7, np.int64),
    }


def submit(scheduler, request, count):
    prompt = np.arange(count, dtype=np.int32)
    none = np.zeros(0, np.int32)
    scheduler.submit(request, prompt, max_new_tokens=9, stop_ids=none, now_ms=0)


def plan_three(scheduler, arrays):
    """A step with a decode row, a whole prompt and the first chunk of a long one."""
    buffers = PlanBuffers(**arrays)
    submit(scheduler, 1, 3)
    arrays["sampled"][:] = 8
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


def test_sampled_tokens_are_read_in_their_order_and_below_zero_a_row_failed():
    scheduler, arrays = Scheduler(CONFIG), executor_arrays()
    plan, buffers = plan_three(scheduler, arrays)
    arrays["sampled"][:] = -9  # the row that does not emit has no token to fail with
    arrays["sampled"][:2] = 77, -1
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
    arrays["sampled"][:] = 3
    scheduler.commit_sampled(plan.step, buffers)
    updates = scheduler.take_updates()
    names = ("request", "token_start", "tokens", "finish", "stop_token", "cached_tokens")
    assert len(updates) == 2
    assert updates.columns() == tuple(getattr(updates, name).tobytes() for name in names)
    assert updates.ended() == []


DRAFTS = 3
DRAFTING = Config(
    groups=[CacheGroupConfig("full", 4)],
    num_pages=32,
    max_seqs=S,
    max_model_len=100,
    max_step_tokens=T,
    max_row_tokens=1 + DRAFTS,
)


def drafting(prompts):
    """A scheduler whose requests have their first token, 8, and its buffers."""
    scheduler, arrays = Scheduler(DRAFTING), executor_arrays()
    for name in ("emit_token", "emit_slot", "emit_position", "sampled"):
        arrays[name] = np.full(S * (1 + DRAFTS), -7, np.int64)
    buffers = PlanBuffers(**arrays)
    for request, count in enumerate(prompts, 1):
        submit(scheduler, request, count)
    arrays["sampled"][:] = 8
    scheduler.commit_sampled(scheduler.plan(0, buffers).step, buffers)
    scheduler.take_updates()
    return scheduler, arrays, buffers


def tokens_of(updates):
    starts, tokens = updates.token_start.tolist(), updates.tokens.tolist()
    rows = pairwise(starts)
    return dict(zip(updates.request.tolist(), (tokens[a:b] for a, b in rows), strict=True))


def test_a_row_verifies_the_drafts_that_were_set():
    scheduler, arrays, buffers = drafting([3, 2])
    assert scheduler.set_drafts(1, np.array([5, 6, 7], np.int32))
    plan = scheduler.plan(0, buffers)
    assert (plan.num_rows, plan.num_decode_rows, plan.num_tokens, plan.num_emits) == (2, 2, 5, 5)
    assert arrays["token_ids"][:5].tolist() == [8, 5, 6, 7, 8]
    assert arrays["positions"][:5].tolist() == [3, 4, 5, 6, 2]
    assert arrays["emit_token"][:5].tolist() == [0, 1, 2, 3, 4]
    assert arrays["emit_position"][:5].tolist() == [4, 5, 6, 7, 3]
    slots = arrays["row_slot"][:2].tolist()
    assert arrays["emit_slot"][:5].tolist() == [slots[0]] * 4 + slots[1:]


@pytest.mark.parametrize(
    ("sampled", "kept"),
    [
        ([5, 6, 7, 9], [5, 6, 7, 9]),
        ([5, 6, 1, 9], [5, 6, 1]),
        ([4, 6, 7, 9], [4]),
        ([5, 9, 7, 9], [5, 9]),
    ],
)
def test_tokens_count_up_to_the_first_wrong_draft(sampled, kept):
    scheduler, arrays, buffers = drafting([3, 2])
    scheduler.set_drafts(1, np.array([5, 6, 7], np.int32))
    plan = scheduler.plan(0, buffers)
    arrays["sampled"][:5] = [*sampled, 2]
    scheduler.commit_sampled(plan.step, buffers)
    assert tokens_of(scheduler.take_updates()) == {1: kept, 2: [2]}
    plan = scheduler.plan(0, buffers)
    assert arrays["token_ids"][:2].tolist() == [kept[-1], 2]
    assert arrays["positions"][:2].tolist() == [3 + len(kept), 3]
    assert arrays["row_kv_len"][:2].tolist() == [4 + len(kept), 4]


def test_a_failed_token_behind_a_draft_fails_nothing_yet():
    scheduler, arrays, buffers = drafting([3, 2])
    scheduler.set_drafts(1, np.array([5, 6], np.int32))
    scheduler.set_drafts(2, np.array([5, 6], np.int32))
    plan = scheduler.plan(0, buffers)
    arrays["sampled"][:6] = [4, -1, 9, 5, -1, 9]  # of the second, behind a right one
    scheduler.commit_sampled(plan.step, buffers)
    assert tokens_of(scheduler.take_updates()) == {1: [4], 2: [5]}
    plan = scheduler.plan(0, buffers)  # the next step finds it again, where it counts
    arrays["sampled"][:2] = 3, -1
    scheduler.commit_sampled(plan.step, buffers)
    assert scheduler.take_updates().ended() == [(2, Finish.FAILED)]


def test_drafts_are_for_one_plan_and_for_known_inputs():
    scheduler, arrays, buffers = drafting([3])
    scheduler.set_drafts(1, np.array([5], np.int32))
    first = scheduler.plan(0, buffers)
    scheduler.set_drafts(1, np.array([6], np.int32))  # the first step is still in flight
    ahead = PlanBuffers(**{name: each.copy() for name, each in arrays.items()})
    second = scheduler.plan(0, ahead)
    assert (first.num_tokens, second.num_tokens) == (2, 1)
    arrays["sampled"][:2] = 5, 7
    scheduler.commit_sampled(first.step, buffers)
    assert tokens_of(scheduler.take_updates()) == {1: [5, 7]}


def test_drafts_that_cannot_be_are_refused():
    scheduler, _, _ = drafting([3])
    assert not scheduler.set_drafts(77, np.array([5], np.int32))
    with pytest.raises(ValueError, match="at most max_row_tokens - 1"):
        scheduler.set_drafts(1, np.arange(4, dtype=np.int32))
    with pytest.raises(ValueError, match="negative"):
        scheduler.set_drafts(1, np.array([-1], np.int32))


def test_results_need_room_for_every_draft():
    scheduler, buffers = Scheduler(DRAFTING), PlanBuffers(**executor_arrays())
    with pytest.raises(ValueError, match="sampled: expected at least max_seqs"):
        scheduler.plan(0, buffers)


@pytest.mark.parametrize("steps", range(1, 7))
def test_guesses_take_no_page_from_anybody(steps):
    """Whoever has a row without them has one with them, however full the pool is."""
    config = Config(
        groups=[CacheGroupConfig("full", 4)],
        num_pages=6,
        max_seqs=S,
        max_model_len=20,
        max_step_tokens=T,
        max_row_tokens=1 + DRAFTS,
        prefix_cache=False,
    )
    found = []
    for drafts in ([], [7, 7, 7]):
        scheduler, arrays = Scheduler(config), executor_arrays()
        for name in ("emit_token", "emit_slot", "emit_position", "sampled"):
            arrays[name] = np.full(S * (1 + DRAFTS), -7, np.int64)
        buffers = PlanBuffers(**arrays)
        submit(scheduler, 1, 5)
        submit(scheduler, 2, 10)
        arrays["sampled"][:] = 8
        for _ in range(steps):
            scheduler.commit_sampled(scheduler.plan(0, buffers).step, buffers)
        for request in (1, 2):
            scheduler.set_drafts(request, np.array(drafts, np.int32))
        plan = scheduler.plan(0, buffers)
        rows = arrays["row_request"][: plan.num_rows].tolist()
        found.append((rows, scheduler.counters().retractions))
        assert plan.num_tokens >= plan.num_rows
    assert found[0] == found[1]
