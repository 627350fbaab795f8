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
    Blocked,
    CacheGroupConfig,
    Config,
    Finish,
    KvEvent,
    PlanBuffers,
    Rejection,
    RowFlag,
    Scheduler,
    Tier,
    max_copies,
    max_transfer_pages,
    transition_table,
)

S, T, D, C, X = 4, 16, 64, 4, 50


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
        "copy_source": np.zeros(C, np.int32),
        "copy_target": np.zeros(C, np.int32),
        "store_transfer": np.zeros(X, np.uint64),
        "store_source": np.zeros(X, np.int32),
        "store_target": np.zeros(X, np.int32),
        "load_transfer": np.zeros(X, np.uint64),
        "load_source": np.zeros(X, np.int32),
        "load_target": np.zeros(X, np.int32),
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
    history, prompt = scheduler.tokens(2**64 - 1)
    assert (history.dtype, history.tolist(), prompt) == (np.int32, [5, 6, 7], 3)
    commit(scheduler, plan, arrays, 8)
    assert history.tolist() == [5, 6, 7]  # a copy
    assert scheduler.tokens(2**64 - 1)[0].tolist() == [5, 6, 7, 8]
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
    with pytest.raises(ValueError, match="tokens: request 18446744073709551615 is unknown"):
        scheduler.tokens(2**64 - 1)
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
    two = [CacheGroupConfig("full", 4)] * 2
    with pytest.raises(ValueError, match="delta_slot: expected one row per cache group"):
        Scheduler(make_config(groups=two)).plan(0, buffers)
    for name in ("copy_source", "copy_target"):
        arrays[name] = np.zeros(C - 1, np.int32)
    with pytest.raises(ValueError, match="copy_source: C is 3, max_copies is 4"):
        Scheduler(make_config()).plan(0, PlanBuffers(**arrays))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": []}, "groups"),
        ({"num_pages": 0}, "num_pages"),
        ({"max_seqs": 0}, "max_seqs"),
        ({"max_step_tokens": S - 1}, "max_step_tokens"),
        ({"prefill_share": 0.0}, "prefill_share"),
        ({"max_wait_steps": -1}, "max_wait_steps"),
        ({"max_row_tokens": 0}, "max_row_tokens"),
        ({"host_pages": -1}, "host_pages"),
        ({"host_pages": 1, "prefix_cache": False}, "host_pages"),
        ({"aging_ms": -1}, "aging_ms"),
        ({"max_bypass": -1}, "max_bypass"),
        ({"itl_target_ms": -1.0}, "itl_target_ms"),
        ({"hash_bits": 0}, "hash_bits"),
    ],
)
def test_config_names_the_field_that_is_wrong(changes, message):
    with pytest.raises(ValueError, match=message):
        make_config(**changes)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([("full", 0)], "page_size"),
        ([("half", 4)], 'kind must be "full", "sliding" or "state", not "half"'),
        ([("sliding", 4)], "window of at least 1"),
        ([("full", 65_537)], "least common multiple of the page sizes is above 65536"),
        ([("full", 4)] * 9, "1 to 8 are supported, not 9"),
    ],
)
def test_config_says_what_is_wrong_with_a_group(groups, message):
    with pytest.raises(ValueError, match=message):
        make_config(groups=[CacheGroupConfig(*group) for group in groups])


def test_a_state_group_cannot_be_rolled_back():
    with pytest.raises(ValueError, match="cannot be rolled back"):
        make_config(groups=[CacheGroupConfig("state", 4)], max_row_tokens=2)


def test_a_block_ends_a_page_of_every_group():
    groups = [CacheGroupConfig("full", 4), CacheGroupConfig("sliding", 6, 9)]
    config = make_config(groups=groups, host_pages=8)
    assert config.block_size == 12
    assert max_copies(config) == S * (3 + 2)
    assert max_transfer_pages(config) == 32  # no more than the device has
    assert (max_transfer_pages(make_config()), max_copies(make_config(prefix_cache=False))) == (
        0,
        0,
    )


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
    with pytest.raises(ValueError, match=r"priority must be in -100..100, not 101"):
        submit(scheduler, 2, ids(1), priority=101)
    with pytest.raises(ValueError, match="draft_tokens must be in 0"):
        submit(scheduler, 2, ids(1), draft_tokens=1)


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


def run(scheduler, buffers, arrays, token=7):
    """Steps until there is nothing to do; each transfer ends well, with the step that began it."""
    moved = []
    while scheduler.has_work():
        plan = scheduler.plan(0, buffers)
        commit(scheduler, plan, arrays, token)
        for kind, count in (("store", plan.num_stores), ("load", plan.num_loads)):
            moved += [kind] * count
            for transfer in set(arrays[f"{kind}_transfer"][:count].tolist()):
                assert scheduler.ack(transfer, True)
                assert not scheduler.ack(transfer, True)
    return moved


def test_kv_goes_to_the_host_and_comes_back():
    scheduler = Scheduler(make_config(num_pages=4, host_pages=8, kv_events=True))
    arrays = make_arrays()
    buffers = PlanBuffers(**arrays)
    submit(scheduler, 1, np.arange(9, dtype=np.int32), max_new_tokens=1)
    assert run(scheduler, buffers, arrays) == ["store"] * 2
    events = scheduler.take_kv_events()
    assert events.kind.tolist() == [KvEvent.STORED] * 4
    assert events.tier.tolist() == [Tier.DEVICE] * 2 + [Tier.HOST] * 2
    assert events.parent.tolist()[:2] == [0, events.block.tolist()[0]]
    assert events.tokens.tolist()[:8] == list(range(8))

    submit(scheduler, 2, np.arange(100, 116, dtype=np.int32), max_new_tokens=1)  # all four pages
    run(scheduler, buffers, arrays)
    assert scheduler.ledger().host_cached == 6
    submit(scheduler, 3, np.arange(9, dtype=np.int32), max_new_tokens=1)
    plan = scheduler.plan(0, buffers)
    assert (plan.num_rows, plan.num_loads, plan.blocked) == (0, 2, Blocked.TRANSFER)
    assert scheduler.gauges().loading == 1
    assert scheduler.ack(int(arrays["load_transfer"][0]), True)
    run(scheduler, buffers, arrays)
    counters = scheduler.counters()
    assert (counters.cached_tokens, counters.host_cached_tokens) == (8, 8)
    assert (counters.stored_pages, counters.loaded_pages) == (6, 2)
    assert scheduler.ledger().balanced


def test_a_plan_that_has_nothing_to_do_says_why():
    scheduler, arrays = Scheduler(make_config()), make_arrays()
    buffers = PlanBuffers(**arrays)
    assert scheduler.plan(0, buffers).blocked == Blocked.IDLE
    submit(scheduler, 1, ids(1), max_new_tokens=1)
    plan = scheduler.plan(0, buffers)
    assert plan.blocked == Blocked.NO
    assert scheduler.plan(0, buffers).blocked == Blocked.COMMIT


def test_digests_tell_ranks_that_diverge():
    ranks = [Scheduler(make_config(hash_seed=seed)) for seed in (0, 1)]
    arrays = make_arrays()
    buffers = PlanBuffers(**arrays)
    plans = []
    for token, rank in enumerate(ranks):
        submit(rank, 1, ids(1, 2, 3))
        plans = [*plans, rank.plan(0, buffers)]
        commit(rank, plans[-1], arrays, token)
    ranks[0].check_digest(plans[1].step, plans[1].digest)
    with pytest.raises(RuntimeError, match="the ranks have diverged: in step 0"):
        ranks[0].check_digest(plans[1].step, plans[1].digest ^ 1)
    with pytest.raises(ValueError, match="step 5 is not among the last 64"):
        ranks[0].check_digest(5, 0)


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
    assert states == [
        "Waiting",
        "Loading",
        "Prefill",
        "Decode",
        "Retracting",
        "Draining",
        "Finished",
    ]
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
            if not issubclass(getattr(_scheduler, name), enum.Enum):  # these have int's methods
                assert {m for m in members if not m.startswith("_")} == real
