# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The border itself: types, shapes, errors, and one request's life seen from Python."""

import ast
import enum
import gc
from pathlib import Path

import numpy as np
import pytest
from tokenspeed import _scheduler
from tokenspeed._scheduler import (
    CacheGroupConfig,
    Config,
    Finish,
    PlanBuffers,
    Rejection,
    RowFlag,
    Scheduler,
    transition_table,
)

S, T, D = 4, 16, 64


def make_config(**changes):
    options = {
        "groups": [CacheGroupConfig("full", 4)],
        "num_pages": 32,
        "max_seqs": S,
        "max_model_len": 200,
        "max_step_tokens": T,
    }
    return Config(**(options | changes))


def make_arrays():
    return {
        "row_request": np.zeros(S, np.uint64),
        "row_slot": np.zeros(S, np.int32),
        "row_epoch": np.zeros(S, np.uint32),
        "row_flags": np.zeros(S, np.uint8),
        "row_query_start": np.zeros(S + 1, np.int32),
        "row_kv_len": np.zeros(S, np.int32),
        "token_ids": np.zeros(T, np.int32),
        "positions": np.zeros(T, np.int32),
        "delta_slot": np.zeros((1, D), np.int32),
        "delta_epoch": np.zeros((1, D), np.uint32),
        "delta_index": np.zeros((1, D), np.int32),
        "delta_page": np.zeros((1, D), np.int32),
    }


def ids(*tokens):
    return np.array(tokens, np.int32)


def submit(scheduler, request, tokens, **options):
    options = {"max_new_tokens": 2, "stop_ids": ids(), "now_ms": 0} | options
    return scheduler.submit(request, tokens, **options)


def commit(scheduler, plan, arrays, token):
    n = plan.num_rows
    counts = (arrays["row_flags"][:n] & RowFlag.EMITS).astype(np.int32)
    tokens = np.full((n, 1), token, np.int32)
    scheduler.commit(plan.step, counts, tokens, np.zeros(n, np.uint8))


def test_one_request_from_submit_to_its_end():
    scheduler, arrays = Scheduler(make_config()), make_arrays()
    buffers = PlanBuffers(**arrays)
    result = submit(scheduler, 2**64 - 1, ids(5, 6, 7), stop_ids=ids(9), max_new_tokens=5)
    assert (result.rejection, result.needed, result.available) == (Rejection.ACCEPTED, 0, 0)
    gauges = scheduler.gauges()
    assert (gauges.waiting, gauges.waiting_tokens, gauges.free_pages) == (1, 3, 32)

    plan = scheduler.plan(1, buffers)
    assert (plan.step, plan.num_rows, plan.num_decode_rows) == (0, 1, 0)
    assert (plan.num_tokens, plan.num_emits, plan.num_deltas) == (3, 1, [1])
    assert arrays["row_request"][0] == 2**64 - 1
    assert arrays["row_flags"][0] == RowFlag.EMITS | RowFlag.NEW_TENANT
    assert arrays["row_query_start"][:2].tolist() == [0, 3]
    assert arrays["token_ids"][:3].tolist() == [5, 6, 7]
    assert arrays["positions"][:3].tolist() == [0, 1, 2]
    table = scheduler.page_table(2**64 - 1)
    assert table.dtype == np.int32
    assert table.tolist() == arrays["delta_page"][0, :1].tolist()
    commit(scheduler, plan, arrays, 8)
    plan = scheduler.plan(2, buffers)
    assert arrays["row_flags"][0] == RowFlag.EMITS | RowFlag.DECODE
    assert (arrays["row_kv_len"][0], arrays["positions"][0]) == (4, 3)
    commit(scheduler, plan, arrays, 9)

    updates = scheduler.take_updates()
    assert updates.request.tolist() == [2**64 - 1] * 2
    assert updates.token_start.tolist() == [0, 1, 2]
    assert updates.tokens.tolist() == [8, 9]
    assert updates.finish.tolist() == [Finish.NONE, Finish.STOP]
    assert updates.stop_token.tolist() == [-1, 9]
    assert updates.cached_tokens.tolist() == [0, 0]
    assert not scheduler.has_work()
    assert scheduler.page_table(2**64 - 1).shape == (0,)
    assert table.tolist() == arrays["delta_page"][0, :1].tolist()  # a copy: it does not change
    ledger = scheduler.ledger()
    assert (ledger.total, ledger.active, ledger.cached, ledger.in_transfer) == (32, 0, 1, 0)
    assert ledger.balanced
    assert "cached 1" in ledger.detail
    counters = scheduler.counters()
    assert (counters.steps, counters.prompt_tokens, counters.output_tokens) == (2, 3, 2)


def test_updates_are_read_only_and_outlive_their_object():
    scheduler, arrays = Scheduler(make_config()), make_arrays()
    submit(scheduler, 1, ids(1), max_new_tokens=1)
    commit(scheduler, scheduler.plan(0, PlanBuffers(**arrays)), arrays, 3)
    tokens = scheduler.take_updates().tokens
    gc.collect()
    assert tokens.tolist() == [3]
    assert tokens.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1
    nothing = scheduler.take_updates()
    assert nothing.request.shape == (0,)
    assert nothing.token_start.tolist() == [0]


def test_buffers_keep_their_arrays_alive():
    scheduler = Scheduler(make_config())
    buffers = PlanBuffers(**make_arrays())
    gc.collect()
    submit(scheduler, 1, ids(1, 2, 3))
    assert scheduler.plan(0, buffers).num_rows == 1


@pytest.mark.parametrize("name", list(make_arrays()))
def test_buffers_name_the_array_that_is_wrong(name):
    arrays = make_arrays()
    good = arrays[name]
    wrong_dtype = good.astype(np.float32)
    frozen = good.copy()
    frozen.flags.writeable = False
    strided = np.zeros((*good.shape[:-1], good.shape[-1] * 2), good.dtype)[..., ::2]
    for bad in (wrong_dtype, frozen, strided, good[None], list(good), None):
        with pytest.raises(TypeError, match=f"^{name}: expected"):
            PlanBuffers(**(arrays | {name: bad}))
    del arrays[name]
    with pytest.raises(TypeError, match=f"missing: {name}"):
        PlanBuffers(**arrays)


def test_buffers_that_do_not_fit_each_other_or_the_scheduler():
    arrays = make_arrays()
    with pytest.raises(ValueError, match=r"row_slot: expected shape \(4,\), not \(5,\)"):
        PlanBuffers(**(arrays | {"row_slot": np.zeros(S + 1, np.int32)}))
    with pytest.raises(ValueError, match=r"delta_page: expected shape \(1, 64\), not \(1, 9\)"):
        PlanBuffers(**(arrays | {"delta_page": np.zeros((1, 9), np.int32)}))
    with pytest.raises(TypeError, match="not one of its arrays"):
        PlanBuffers(**arrays, surplus=np.zeros(1))
    buffers = PlanBuffers(**arrays)
    with pytest.raises(ValueError, match="row_request: S is 4, max_seqs is 3"):
        Scheduler(make_config(max_seqs=3)).plan(0, buffers)
    with pytest.raises(ValueError, match="token_ids: T is 16, max_step_tokens is 17"):
        Scheduler(make_config(max_step_tokens=17)).plan(0, buffers)
    with pytest.raises(ValueError, match="delta_slot: D is 64"):
        Scheduler(make_config(num_pages=100, max_model_len=400)).plan(0, buffers)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": []}, "groups"),
        ({"num_pages": 0}, "num_pages"),
        ({"max_seqs": 0}, "max_seqs"),
        ({"max_step_tokens": S - 1}, "max_step_tokens"),
        ({"prefill_share": 0.0}, "prefill_share"),
        ({"max_wait_steps": -1}, "max_wait_steps"),
        ({"max_row_tokens": 2}, "max_row_tokens"),
    ],
)
def test_config_names_the_field_that_is_wrong(changes, message):
    with pytest.raises(ValueError, match=message):
        make_config(**changes)


def test_config_takes_one_full_group():
    for groups in ([("sliding", 4)], [("full", 4), ("full", 4)]):
        with pytest.raises(ValueError, match="groups"):
            make_config(groups=[CacheGroupConfig(*group) for group in groups])
    with pytest.raises(ValueError, match="page_size"):
        make_config(groups=[CacheGroupConfig("full", 0)])


def test_submit_refuses_with_numbers_and_leaves_no_trace():
    scheduler = Scheduler(make_config(num_pages=3))
    result = submit(scheduler, 1, np.arange(10, dtype=np.int32), max_new_tokens=4)
    assert (result.rejection, result.needed, result.available) == (Rejection.NEVER_FITS, 4, 3)
    result = submit(scheduler, 1, ids(1), max_new_tokens=200)
    assert (result.rejection, result.needed, result.available) == (Rejection.TOO_LONG, 201, 200)
    assert submit(scheduler, 1, ids()).rejection == Rejection.EMPTY_PROMPT
    assert submit(scheduler, 1, ids(1)).rejection == Rejection.ACCEPTED
    assert submit(scheduler, 1, ids(1)).rejection == Rejection.DUPLICATE_ID
    assert scheduler.gauges().waiting == 1


def test_submit_takes_int32_arrays_only():
    scheduler = Scheduler(make_config())
    for bad in ([1, 2], np.array([1, 2]), np.arange(6, dtype=np.int32)[::2]):
        with pytest.raises(TypeError, match=r"^tokens: expected"):
            submit(scheduler, 1, bad)
        with pytest.raises(TypeError, match=r"^stop_ids: expected"):
            submit(scheduler, 1, ids(1), stop_ids=bad)
    with pytest.raises(ValueError, match="negative"):
        submit(scheduler, 1, ids(3, -1))
    with pytest.raises(ValueError, match="max_new_tokens"):
        submit(scheduler, 1, ids(3), max_new_tokens=0)
    assert not scheduler.has_work()


def test_commit_checks_the_step_and_its_rows():
    scheduler, arrays = Scheduler(make_config()), make_arrays()
    submit(scheduler, 1, ids(1, 2, 3))
    plan = scheduler.plan(0, PlanBuffers(**arrays))
    one, token, ok = ids(1), np.zeros((1, 1), np.int32), np.zeros(1, np.uint8)
    with pytest.raises(ValueError, match="not the oldest"):
        scheduler.commit(plan.step + 1, one, token, ok)
    with pytest.raises(ValueError, match="has 1 rows; num_tokens has 2"):
        scheduler.commit(plan.step, ids(1, 1), token, ok)
    with pytest.raises(ValueError, match="row 0 of step 0 returns 0 tokens, not 1"):
        scheduler.commit(plan.step, ids(0), token, ok)
    with pytest.raises(TypeError, match=r"^tokens: expected 2 dimensions"):
        scheduler.commit(plan.step, one, token[0], ok)
    with pytest.raises(TypeError, match=r"^failed: expected dtype uint8"):
        scheduler.commit(plan.step, one, token, ok.astype(bool))
    scheduler.commit(plan.step, one, token, ok)
    assert scheduler.take_updates().tokens.tolist() == [0]


def test_late_aborts_are_legal_and_counted():
    scheduler = Scheduler(make_config())
    assert scheduler.abort(1) is False
    submit(scheduler, 1, ids(1))
    assert scheduler.abort(1) is True
    assert scheduler.abort(1) is False
    assert scheduler.counters().ignored_events == 2
    assert scheduler.take_updates().finish.tolist() == [Finish.ABORTED]
    assert scheduler.take_rejected_events() == []


def test_enums_are_integers():
    assert issubclass(Finish, enum.IntEnum)
    assert issubclass(Rejection, enum.IntEnum)
    assert issubclass(RowFlag, enum.IntFlag)
    assert RowFlag.EMITS | RowFlag.DECODE == 3
    assert [f.name for f in Finish] == ["NONE", "STOP", "LENGTH", "ABORTED", "EXPIRED", "FAILED"]


def test_transition_table_is_complete():
    table = transition_table()
    states = list(dict.fromkeys(state for state, _, _ in table))
    events = list(dict.fromkeys(event for _, event, _ in table))
    assert states == ["Waiting", "Prefill", "Decode", "Retracting", "Draining", "Finished"]
    assert len(table) == len(set(table)) == len(states) * len(events)
    assert {outcome for _, _, outcome in table} <= {*states, "ignore", "reject"}
    assert ("Retracting", "Drained", "Waiting") in table


def test_stub_and_module_have_the_same_names():
    stub = ast.parse((Path(__file__).parents[1] / "tokenspeed/_scheduler.pyi").read_text())
    public = {name for name in vars(_scheduler) if not name.startswith("_")}
    named = {n.name: n for n in stub.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    assert public == set(named)
    for name, node in named.items():
        members = [m.name for m in getattr(node, "body", ()) if isinstance(m, ast.FunctionDef)]
        if isinstance(node, ast.ClassDef):
            members += [m.target.id for m in node.body if isinstance(m, ast.AnnAssign)]
            real = {m for m in dir(getattr(_scheduler, name)) if not m.startswith("_")}
            if name not in ("Finish", "Rejection", "RowFlag"):  # integers, with their methods
                assert {m for m in members if m != "__init__"} == real
