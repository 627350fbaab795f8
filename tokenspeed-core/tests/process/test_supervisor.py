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
    assert wait_gone(server.pids(), 1) == []
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
    assert wait_gone(server.pids(), 1) == []


def test_c32_a_failure_that_nobody_reads_ends_all_the_same(start_server, wait_gone):
    server = start_server(unread=True, FAKE_ENGINE="talk", FAKE_FRONT="raise no tokenizer")
    assert server.wait() == 1
    assert wait_gone(server.pids(), 1) == []


@pytest.mark.parametrize("role", ["engine", "front"])
def test_an_exception_in_a_child_is_printed_last_and_ends_all(start_server, wait_gone, role):
    server = start_server(**{f"FAKE_{role.upper()}": "raise the weights are wrong"})
    assert server.wait() == 1
    assert server.last_lines(1) == [f"{role} failed: ValueError: the weights are wrong"]
    assert "Traceback" in server.errors.read_text()
    assert wait_gone(server.pids(), 1) == []


def test_a_signal_is_named_with_the_last_output(start_server, wait_gone):
    server = start_server(FAKE_ENGINE="segv")
    assert server.wait() == 1
    lines = server.last_lines(30)
    told = lines[lines.index("engine failed: killed by SIGSEGV in its phase 'thinks'") :]
    assert told[1:3] == ["about to fall", "Fatal Python error: Segmentation fault"]
    assert any("fake_child.py" in line and line.endswith("in main") for line in told)
    assert not any(line.startswith("Extension modules") for line in told)
    assert wait_gone(server.pids(), 1) == []


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
    assert wait_gone(pids, 2) == []


def test_a_second_interrupt_hastens(start_server, wait_gone):
    server = start_server(FAKE_FRONT="deaf", FAKE_GRACE="30")
    server.wait_serving()
    server.process.send_signal(signal.SIGINT)
    time.sleep(0.4)
    assert server.process.poll() is None
    server.process.send_signal(signal.SIGINT)
    assert server.wait(2) == 0
    assert wait_gone(server.pids(), 1) == []


def test_a_child_that_does_not_end_is_killed_after_its_grace(start_server):
    server = start_server(FAKE_ENGINE="deaf", FAKE_GRACE="0.3")
    server.wait_serving()
    started = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert 0.3 < time.monotonic() - started < 3


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
    assert wait_gone(server.pids(), 1) == []
