# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Kernels that compete are measured, once; a fake clock says how long each takes."""

from __future__ import annotations

import json
import logging
import multiprocessing
from contextlib import closing

import pytest
import torch
from tokenspeed.cli import kernels as cli
from tokenspeed.plugins.errors import BrokenPromiseError
from tokenspeed.registry import stopwatch, timings, trial
from tokenspeed.registry.autotune import Autotuner
from tokenspeed.registry.kernels import KernelRegistry
from tokenspeed.registry.timings import Timing, TimingCache
from tokenspeed_sdk.contracts import Accept, Decline
from tokenspeed_sdk.contracts.kernel import CallSite
from tokenspeed_sdk.contracts.platform import GRAPH_CAPTURE, HOST_MEMORY, Capabilities, MemoryReport

DEVICE = Capabilities("cpu", "any", ("float32",), frozenset({GRAPH_CAPTURE}), 4)
SITE = CallSite("linear@1", "model.proj", "float32", DEVICE, {"n": 3, "k": 2, "bias": False})


class Clock:
    """Seconds that pass only when a kernel runs."""

    now = 0.0

    def __call__(self):
        return self.now


class Device:
    """Runs work at once; what it captured runs again at each replay.

    Attributes:
        captures: how many graphs were captured.
        stuck: whether its work never ends.
        broken: whether it refuses all work.
    """

    torch_device = "cpu"

    def __init__(self, features=(GRAPH_CAPTURE,)):
        self.capabilities = Capabilities("cpu", "any", ("float32",), frozenset(features), 4)
        self.captures = 0
        self.stuck = self.broken = False

    def memory(self):
        return MemoryReport(total=1 << 30, free=1 << 20)

    def stream(self):
        return self

    def capture(self, work, stream):
        self.captures += 1
        self.replay = work
        return type("Graph", (), {"replay": staticmethod(work)})

    def run(self, work):
        if self.broken:
            raise RuntimeError("an illegal memory access was encountered")
        work()

    def record(self):
        return self

    def done(self):
        return not self.stuck

    def wait(self):
        pass

    def close(self):
        pass


class Linear:
    """Takes ``us(rows)`` of the clock at each call, or raises what that returns."""

    op = "linear@1"

    def __init__(self, name, score, us, clock):
        self.name, self.score, self.us, self.clock = name, score, us, clock
        self.calls = 0

    def accept(self, site):
        return Accept(self.score, "scores") if self.score else Decline("never")

    def bind(self, site):
        def run(x, weight, bias=None):
            assert weight[0] == self.name
            self.calls += 1
            took = self.us(x.shape[0])
            if isinstance(took, BaseException):
                raise took
            self.clock.now += took * 1e-6
            return x @ weight[1].T

        return run

    def pack_weight(self, site, weight):
        return self.name, weight


class Bench:
    """Registries over two rivals, which share a folder of the cache.

    Attributes:
        few, many: kernels; the first is faster up to 16 rows, and has the lower score.
    """

    def __init__(self, plugins, folder):
        self.clock, self.device, self.folder = Clock(), Device(), folder
        self.few = Linear("few", 50, lambda rows: 10 if rows <= 16 else 40, self.clock)
        self.many = Linear("many", 100, lambda rows: 20, self.clock)
        self.plugins = plugins
        plugins.kernels("acme", self.few, self.many)

    def bind(self, pins=None, site=SITE):
        """The site's contests by the text of their rows."""
        cache = TimingCache(timings.about(self.device.capabilities), self.folder)
        self.tuner = Autotuner(self.device, cache, self.clock)
        self.registry = KernelRegistry(self.plugins.plan(), pins or {}, tuner=self.tuner)
        with closing(self.tuner):
            self.binding = self.registry.bind(site)
        return {timings.by_rows.text(each.rows): each for each in self.registry.bound[0].contests}

    def calls(self):
        return self.few.calls + self.many.calls

    def file(self):
        (path,) = self.folder.glob("*.json")
        return path


@pytest.fixture
def bench(plugins, tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "PROMPT_ROWS", 300)
    monkeypatch.setattr(trial, "MOST_COPIES", 2)
    monkeypatch.setattr(trial, "FEWEST_CALLS", 2)
    monkeypatch.setattr(stopwatch, "MOST_RUNS", 2)
    return Bench(plugins, tmp_path)


def test_the_fastest_wins_in_each_bucket(bench):
    found = bench.bind()
    assert [(rows, each.chosen) for rows, each in found.items()] == [
        *((rows, "few") for rows in ("1", "2-4", "5-8", "9-16")),
        *((rows, "many") for rows in ("17-32", "33-64", "65-128", "129-")),
    ]
    assert {name: timing.us for name, timing in found["1"].times.items()} == {
        "few": pytest.approx(10),
        "many": pytest.approx(20),
    }
    assert {each.source for each in found.values()} == {"measured"}
    assert bench.binding.kernel == "few+many"
    packed = bench.binding.pack_weight(torch.eye(3, 2))
    before = bench.few.calls, bench.many.calls
    bench.binding.call(torch.ones(16, 2), packed, None)
    bench.binding.call(torch.ones(17, 2), packed, None)
    assert (bench.few.calls, bench.many.calls) == (before[0] + 1, before[1] + 1)


def test_calls_of_many_rows_are_not_captured(bench):
    bench.bind()
    assert bench.device.captures == 7 * 2  # of eight buckets


def test_decisions_say_why(bench):
    bench.bind()
    few, many = bench.registry.bound[0].decisions
    assert few.why == "fastest as measured; score 50: scores"
    assert few.runners_up[0].why == "not faster as measured; score 100: scores"
    assert (few.rows, many.rows) == ("1, 2-4, 5-8, 9-16", "17-32, 33-64, 65-128, 129-")


def test_what_is_in_the_cache_is_not_measured_again(bench):
    first = bench.bind()
    calls = bench.calls()
    second = bench.bind()
    assert bench.calls() == calls
    assert {each.source for each in second.values()} == {"cache"}
    assert [each.chosen for each in second.values()] == [each.chosen for each in first.values()]


def test_equal_shapes_of_one_model_are_measured_once(bench):
    bench.bind()
    calls = bench.calls()
    bench.registry.bind(SITE)
    assert bench.calls() == calls


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"about": {}, "times": {}}', b"\xff\x00"])
def test_a_damaged_file_is_told_and_rewritten(bench, damage, caplog):
    bench.bind()
    bench.file().write_bytes(damage)
    calls = bench.calls()
    found = bench.bind()
    assert "is damaged" in caplog.text
    assert found["1"].source == "measured"
    assert bench.calls() == 2 * calls
    assert bench.bind()["1"].source == "cache"


def test_another_version_is_measured_again(bench, monkeypatch):
    bench.bind()
    monkeypatch.setattr(timings, "_code", lambda package: "changed")
    assert bench.bind()["1"].source == "measured"


def test_another_device_has_another_file(bench):
    bench.bind()
    bench.device.capabilities = Capabilities("cpu", "other", ("float32",), frozenset(), 4)
    assert bench.bind()["1"].source == "measured"
    assert len(list(bench.folder.glob("*.json"))) == 2


def test_a_kernel_that_raises_loses_with_its_reason(bench):
    bench.few.us = lambda rows: ValueError("no such tile") if rows == 1 else 10
    found = bench.bind()
    assert found["1"].chosen == "many"
    assert found["2-4"].chosen == "few"
    assert found["1"].times["few"] == Timing(failed="ValueError: no such tile")
    lost = {r.name: r.why for r in bench.registry.bound[0].decisions[0].runners_up}
    assert lost["few"] == "failed while it was measured: ValueError: no such tile; score 50: scores"
    calls = bench.calls()
    assert bench.bind()["1"].chosen == "many"
    assert bench.calls() == calls


def test_where_all_raise_scores_decide(bench):
    bench.few.us = bench.many.us = lambda rows: ValueError("no")
    found = bench.bind()
    assert (found["1"].chosen, found["1"].source) == ("many", "score")


def test_a_kernel_that_exits_is_contained(bench):
    bench.few.us = lambda rows: SystemExit(3)
    assert bench.bind()["1"].chosen == "many"


@pytest.mark.parametrize("state", ["broken", "stuck"])
def test_a_kernel_that_leaves_the_device_unusable_ends_the_start_and_is_left_out_next(
    bench, state, monkeypatch
):
    monkeypatch.setattr(stopwatch, "HANG_SECONDS", -1.0)

    def us(rows):
        setattr(bench.device, state, True)
        return RuntimeError("an illegal memory access") if state == "broken" else 10

    bench.few.us = us
    with pytest.raises(BrokenPromiseError, match=r"while a kernel of acme 1\.0 was measured"):
        bench.bind()
    bench.device = Device()
    assert {each.chosen for each in bench.bind().values()} == {"many"}


@pytest.mark.parametrize(("us", "winner"), [(19.7, "many"), (19.5, "few")])
def test_a_near_tie_goes_by_score(bench, us, winner):
    bench.few.us = lambda rows: us
    assert bench.bind()["1"].chosen == winner
    why = bench.registry.bound[0].decisions[0].why
    assert why.startswith("as fast as the fastest" if winner == "many" else "fastest")


def test_a_pin_is_not_tuned_away_and_nothing_is_measured(bench):
    found = bench.bind(pins={"linear@1": "many"})
    assert {(each.chosen, each.source) for each in found.values()} == {("many", "pin")}
    assert bench.calls() == 0
    assert bench.registry.bound[0].decision.why == "pinned; scores"


def test_one_kernel_alone_is_not_measured(bench):
    bench.many.score = 0
    found = bench.bind()
    assert {each.source for each in found.values()} == {"score"}
    assert bench.calls() == 0


def test_memory_that_is_short_leaves_the_shape_to_scores(bench, caplog):
    bench.few.us = lambda rows: MemoryError("needed 9 bytes") if rows == 1 else 10
    found = bench.bind()
    assert (found["1"].chosen, found["1"].source) == ("many", "score")
    assert found["2-4"].source == "measured"
    assert "scores decide for linear@1" in caplog.text


def test_after_the_time_for_it_the_rest_is_left_to_the_next_start(bench):
    bench.many.us = lambda rows: 2e6
    found = bench.bind()
    assert found["1"].source == "measured"
    assert found["129-"].source == "score"
    assert bench.bind()["2-4"].source != "score"


def test_a_kernel_that_plans_is_left_to_its_score(bench):
    class Planned:
        plan_key = "key"

        def plan(self, step, scale): ...

        def __call__(self, *args, plan): ...

    bench.few.bind = lambda site: Planned()
    assert bench.bind()["1"].times["few"] == Timing()
    assert bench.registry.bound[0].decision.chosen == "many"
    assert "outranked; score 50" in bench.registry.bound[0].decision.runners_up[0].why


def test_what_is_rehearsed_is_measured_and_not_noted(bench):
    bench.bind()
    registry = KernelRegistry(bench.plugins.plan(), {}, tuner=Autotuner(bench.device, TimingCache(
        timings.about(bench.device.capabilities), bench.folder / "new"), bench.clock))  # fmt: skip
    registry.rehearse(lambda: registry.bind(SITE))
    assert registry.bound == []
    calls = bench.calls()
    registry.bind(SITE)
    assert bench.calls() == calls
    assert registry.bound[0].contests[0].source == "measured"
    assert registry.bind(CallSite(**{**vars(SITE), "traits": {"n": 4, "k": 2, "bias": False}}))
    assert registry.bound[1].contests[0].source == "score"  # the tuner is closed


@pytest.mark.parametrize(
    ("features", "mode"), [((HOST_MEMORY,), "auto"), ((GRAPH_CAPTURE,), "off")]
)
def test_without_capture_or_when_turned_off_there_is_no_tuner(features, mode):
    assert Autotuner.on(Device(features), mode) is None


def test_a_cache_that_cannot_be_written_costs_a_warning(bench, caplog):
    bench.folder = bench.folder / "file"
    bench.folder.write_text("")
    assert bench.bind()["1"].chosen == "few"
    assert "cannot be kept" in caplog.text


def _add(folder, name):
    for number in range(20):
        TimingCache({"arch": "x"}, folder).put(f"{name}{number}", {"k": Timing(us=1.0)})


def test_two_processes_lose_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=_add, args=(tmp_path, name)) for name in "ab"]
    for other in others:
        other.start()
    for other in others:
        other.join(20)
    cache = TimingCache({"arch": "x"}, tmp_path)
    assert all(cache.get(f"{name}{number}") for name in "ab" for number in range(20))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_explain_shows_the_times(bench, capsys):
    bench.bind()
    ((bound, count),) = bench.registry.explain()
    cli._show(bound, count)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["rows", "few,", "us", "many,", "us", "decided", "by"] in lines
    assert ["1", "10.0*", "20.0", "measured"] in lines
    assert ["129-", "40.0", "20.0*", "measured"] in lines
    first = json.loads(json.dumps(cli._data(bound, count)))["contests"][0]
    assert first == {
        "rows": "1",
        "decided_by": "measured",
        "chosen": "few",
        "us": {"few": 10.0, "many": 20.0},
        "failed": {},
    }


def test_the_last_line_says_what_was_measured_and_where_it_is(bench, caplog):
    with caplog.at_level(logging.INFO):
        bench.bind()
    assert "measured kernels on 8 shapes" in caplog.text
    assert str(bench.file()) in caplog.text
