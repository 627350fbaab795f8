# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How a server starts, ends, and says what went wrong; with fake children."""

from __future__ import annotations

import os
import signal
import time

import pytest


def test_starts_in_order_and_stops_in_reverse(start_server, wait_gone):
    server = start_server()
    server.wait_serving()
    roles = [role for role, _ in server.log("start")]
    assert sorted(roles[:2]) == ["engine", "front"]  # these two start together
    assert roles[2:] == ["gateway"]
    server.process.send_signal(signal.SIGINT)
    assert server.wait() == 0
    assert server.log("stop") == [["gateway"], ["front"], ["engine"]]
    assert wait_gone(server.pids(), 5) == []
    assert server.errors.read_text() == ""


def test_the_terminal_s_interrupt_does_not_reach_the_children(start_server):
    """Ctrl-C goes to the whole foreground process group."""
    server = start_server()
    server.wait_serving()
    groups = {os.getpgid(pid) for pid in server.pids()}
    assert os.getpgid(server.process.pid) not in groups


def test_c32_output_that_nobody_reads_stops_nobody(start_server, wait_gone):
    """A child that prints goes on, and the server still hears of signals."""
    server = start_server(unread=True, FAKE_ENGINE="talk")
    server.wait_serving()
    deadline = time.monotonic() + 10
    while not server.log("talked"):
        assert time.monotonic() < deadline, "the engine waits for a reader of its output"
        time.sleep(0.02)
    server.process.send_signal(signal.SIGINT)
    assert server.wait() == 0
    assert wait_gone(server.pids(), 5) == []


def test_c32_a_failure_that_nobody_reads_ends_all_the_same(start_server, wait_gone):
    server = start_server(unread=True, FAKE_ENGINE="talk", FAKE_FRONT="raise no tokenizer")
    assert server.wait() == 1
    assert wait_gone(server.pids(), 5) == []


@pytest.mark.parametrize("role", ["engine", "front"])
def test_an_exception_in_a_child_is_printed_last_and_ends_all(start_server, wait_gone, role):
    server = start_server(**{f"FAKE_{role.upper()}": "raise the weights are wrong"})
    assert server.wait() == 1
    assert server.last_lines(1) == [f"{role} failed: ValueError: the weights are wrong"]
    assert "Traceback" in server.errors.read_text()
    assert wait_gone(server.pids(), 5) == []


def test_a_signal_is_named_with_the_last_output(start_server, wait_gone):
    server = start_server(FAKE_ENGINE="segv")
    assert server.wait() == 1
    lines = server.last_lines(30)
    told = lines[lines.index("engine failed: killed by SIGSEGV in its phase 'thinks'") :]
    assert told[1:3] == ["about to fall", "Fatal Python error: Segmentation fault"]
    assert any("fake_child.py" in line and line.endswith("in main") for line in told)
    assert not any(line.startswith("Extension modules") for line in told)
    assert wait_gone(server.pids(), 5) == []


@pytest.mark.rule("R6")
def test_who_is_killed_says_what_it_was_doing(start_server):
    server = start_server(FAKE_ENGINE="segv kernel odd of acme 1.0")
    assert server.wait() == 1
    lines = server.last_lines(30)
    told = lines.index("engine failed: killed by SIGSEGV while it ran kernel odd of acme 1.0")
    assert lines[told + 1] == "about to fall"


def test_an_unexpected_end_is_a_failure_even_in_order(start_server):
    server = start_server(FAKE_FRONT="exit")
    assert server.wait() == 1
    assert server.last_lines(1) == ["front failed: ended by itself with exit code 0"]


def test_who_fell_because_of_another_is_not_blamed(start_server):
    server = start_server(FAKE_ENGINE="raise out of pages", FAKE_FRONT="fall", FAKE_AFTERMATH="1")
    assert server.wait() == 1
    assert server.last_lines(1) == ["engine failed: ValueError: out of pages"]


def test_an_error_outweighs_an_orderly_end(start_server):
    server = start_server(FAKE_ENGINE="obey", FAKE_FRONT="raise no tokenizer", FAKE_AFTERMATH="1")
    assert server.wait() == 1
    assert server.last_lines(1) == ["front failed: ValueError: no tokenizer"]


@pytest.mark.rule("R6")
def test_who_ends_with_0_and_was_not_told_to_is_at_fault(start_server):
    """Such as a plugin whose code calls exit(0); the front only sees the engine go."""
    server = start_server(FAKE_ENGINE="exit", FAKE_FRONT="raise gone", FAKE_AFTERMATH="1")
    assert server.wait() == 1
    (line,) = server.last_lines(1)
    assert line == "engine failed: ended by itself with exit code 0 in its phase 'thinks'"


def test_a_start_that_takes_long_says_what_each_child_does(start_server):
    server = start_server(FAKE_ENGINE="slow", FAKE_REMINDER="0.1")
    server.wait_serving()
    lines = server.errors.read_text().splitlines()
    assert "still starting: engine: thinks; front: wait for the engine" in lines
    assert all(line.startswith("still starting: engine: ") for line in lines)


def test_kill_9_leaves_no_orphan(start_server, wait_gone):
    server = start_server()
    server.wait_serving()
    pids = server.pids()
    assert len(pids) == 3
    server.process.kill()
    assert wait_gone(pids, 5) == []


@pytest.mark.parametrize("deaf", [["FAKE_FRONT"], ["FAKE_ENGINE", "FAKE_FRONT"]])
def test_a_second_interrupt_hastens(start_server, wait_gone, deaf):
    """All that is still to end, not only whom it is waited for."""
    server = start_server(**dict.fromkeys(deaf, "deaf"), FAKE_GRACE="30")
    server.wait_serving()
    server.process.send_signal(signal.SIGINT)
    time.sleep(0.4)
    assert server.process.poll() is None
    server.process.send_signal(signal.SIGINT)
    assert server.wait() == 0
    assert wait_gone(server.pids(), 5) == []


def test_a_child_that_does_not_end_is_killed_after_its_grace(start_server):
    server = start_server(FAKE_ENGINE="deaf", FAKE_GRACE="0.3")
    server.wait_serving()
    started = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert 0.3 < time.monotonic() - started < 4.5


@pytest.mark.rule("R8")
def test_a_child_with_one_plugin_fewer_refuses(start_server, tmp_path):
    """Its path lost a folder between the parent's look and its own."""
    path = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    server = start_server(FAKE_CHILD_PATH=path)
    assert server.wait() == 1
    text = "\n".join(server.last_lines(6))
    assert "engine failed: this process has plugin plan" in text
    assert "platform fake of fake-platform 1.0: only there" in text
    assert "same environment" in text


def test_a_gateway_that_never_serves_is_a_failure(start_server, wait_gone):
    server = start_server(FAKE_GATEWAY="unready", FAKE_PATIENCE="1")
    assert server.wait() == 1
    assert server.last_lines(1) == ["gateway failed: not ready after 1 s"]
    assert wait_gone(server.pids(), 5) == []


def wait_for(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def order_of(server, *words):
    """The lines of the log that begin with one of the words, in order."""
    lines = server._log.read_text().splitlines()
    return [line for line in lines if line.startswith(words)]


@pytest.mark.parametrize("victim", ["engine", "front"])
def test_who_dies_is_started_anew_behind_the_same_gateway(start_server, wait_gone, victim):
    """As often as the policy says; those that stood on it hear why."""
    server = start_server(FAKE_RESTARTS="1")
    server.wait_serving()
    pids = dict(server.log("start"))
    os.kill(int(pids[victim]), signal.SIGKILL)
    wait_for(lambda: "serving again" in server.errors.read_text())
    again = server.log("start")[3:]
    assert sorted(role for role, _ in again) == ["engine", "front"]
    assert wait_gone([int(pids["engine"]), int(pids["front"])], 5) == []
    assert wait_gone([int(pids["gateway"])], 0) == [int(pids["gateway"])]
    assert server.log("ports") == [["0", "0"], ["1", "2"]]
    text = server.errors.read_text()
    assert f"{victim} failed: killed by SIGKILL" in text
    assert "restart 1 of 1: engine and front" in text
    if victim == "engine":
        (told,) = order_of(server, "told")
        assert told.startswith("told killed by SIGKILL (when the machine runs out of memory")

    os.kill(int(dict(again)[victim]), signal.SIGKILL)
    assert server.wait() == 1
    assert server.last_lines(1)[0].startswith(f"{victim} failed: killed by SIGKILL")
    assert wait_gone(server.pids(), 5) == []


def test_a_restart_that_fails_ends_the_server(start_server, wait_gone):
    server = start_server(FAKE_RESTARTS="5", FAKE_ENGINE="raise-again out of memory")
    server.wait_serving()
    os.kill(int(dict(server.log("start"))["engine"]), signal.SIGKILL)
    assert server.wait() == 1
    assert server.last_lines(1) == ["engine failed: ValueError: out of memory"]
    assert wait_gone(server.pids(), 5) == []


def test_a_server_that_was_restarted_stops_in_the_same_order(start_server):
    server = start_server(FAKE_RESTARTS="1")
    server.wait_serving()
    os.kill(int(dict(server.log("start"))["engine"]), signal.SIGKILL)
    wait_for(lambda: "serving again" in server.errors.read_text())
    server.process.send_signal(signal.SIGINT)
    assert server.wait() == 0
    assert server.log("stop") == [["front"], ["gateway"], ["front"], ["engine"]]


def test_a_gateway_that_dies_ends_the_server(start_server):
    server = start_server(FAKE_RESTARTS="5")
    server.wait_serving()
    os.kill(int(dict(server.log("start"))["gateway"]), signal.SIGKILL)
    assert server.wait() == 1
    assert server.last_lines(1)[0].startswith("gateway failed: killed by SIGKILL")


def test_sigterm_drains_before_anybody_is_stopped(start_server):
    server = start_server(FAKE_DRAIN="0.5")
    server.wait_serving()
    started = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert 0.5 < time.monotonic() - started < 10
    assert server.last_lines(1) == ["shutting down: open requests have 20 s to end"]
    assert order_of(server, "asked", "drained", "stop") == [
        *("asked to drain", "drained"),
        *("stop gateway", "stop front", "stop engine"),
    ]


def test_a_second_signal_hurries_the_front(start_server):
    """What is open ends with a reason, before anybody is stopped."""
    server = start_server(FAKE_DRAIN="-1", FAKE_DRAIN_TIMEOUT="60", FAKE_DRAIN_HURRIED="1")
    server.wait_serving()
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: order_of(server, "asked"))
    server.process.send_signal(signal.SIGTERM)
    assert server.wait(20) == 0
    assert order_of(server, "asked", "drained", "stop") == [
        *("asked to drain", "asked to drain", "drained"),
        *("stop gateway", "stop front", "stop engine"),
    ]


def test_an_interrupt_does_not_drain(start_server):
    server = start_server(FAKE_DRAIN="-1")
    server.wait_serving()
    server.process.send_signal(signal.SIGINT)
    assert server.wait() == 0
    assert order_of(server, "asked") == []


@pytest.mark.parametrize("again", [None, signal.SIGTERM, signal.SIGINT])
def test_a_drain_that_does_not_end_is_ended(start_server, again):
    """By its limit, or by a further signal."""
    limit = "0.5" if again is None else "60"
    server = start_server(FAKE_DRAIN="-1", FAKE_DRAIN_TIMEOUT=limit)
    server.wait_serving()
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: order_of(server, "asked"))
    if again is not None:
        server.process.send_signal(again)
    assert server.wait(8) == 0
    assert server.log("stop") == [["gateway"], ["front"], ["engine"]]
