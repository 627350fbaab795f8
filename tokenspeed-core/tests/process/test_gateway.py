# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The gateway's arguments, ports and life; the last with the real gateway and no worker."""

from __future__ import annotations

import http.client
import itertools
import json
import shlex
import socket
import subprocess
import sys
import time

from tokenspeed.process import gateway
from tokenspeed.process.gateway import (
    GatewayConfig,
    address,
    curl_line,
    gateway_arguments,
    is_ready,
)
from tokenspeed.process.ports import QUIET, any_free, is_free, next_free
from tokenspeed.process.spawn import spawn

LOCAL = "127.0.0.1"


def test_arguments_bind_to_this_machine_and_name_one_worker():
    arguments = gateway_arguments(GatewayConfig(port=1234), 5678)
    pairs = dict(itertools.pairwise(arguments))
    assert pairs["--host"] == pairs["--prometheus-host"] == LOCAL
    assert pairs["--worker-urls"] == f"grpc://{LOCAL}:5678"
    assert pairs["--policy"] == "passthrough"
    assert "--api-key" not in pairs
    assert "--tool-call-parser" not in pairs


def test_the_operator_s_choices_are_passed_on():
    config = GatewayConfig(
        host="0.0.0.0",
        port=1,
        tool_call_parser="qwen",
        reasoning_parser="qwen3",
        chat_template="/t.jinja",
        api_key="secret",
        request_timeout=7200.5,
    )
    arguments = gateway_arguments(config, 2)
    pairs = dict(itertools.pairwise(arguments))
    assert pairs["--host"] == "0.0.0.0"
    assert pairs["--tool-call-parser"] == "qwen"
    assert pairs["--reasoning-parser"] == "qwen3"
    assert pairs["--chat-template"] == "/t.jinja"
    assert pairs["--api-key"] == "secret"
    assert int(pairs["--request-timeout-secs"]) > 7200.5, "it would end requests first"


def test_the_curl_line_survives_a_shell_and_hides_the_key():
    line = curl_line(GatewayConfig(host="0.0.0.0", port=80, api_key="secret"), 'it\'s a "model"')
    words = shlex.split(line)
    assert words[:2] == ["curl", "http://127.0.0.1:80/v1/chat/completions"]
    body = json.loads(words[-1])
    assert body["model"] == 'it\'s a "model"'
    assert body["temperature"] == 0
    assert body["max_tokens"] == 64, "a model that repeats itself would go on to its length"
    assert "secret" not in line
    assert "\n" not in line


def test_the_address_is_one_that_this_machine_can_ask():
    assert address(GatewayConfig(port=80)) == address(GatewayConfig(host="0.0.0.0", port=80))
    assert address(GatewayConfig(port=80)) == "127.0.0.1:80"
    assert address(GatewayConfig(host="::", port=80)) == "[::1]:80"


def test_a_taken_port_is_seen_and_skipped():
    with socket.create_server((LOCAL, 0)) as server:
        taken = server.getsockname()[1]
        assert not is_free(LOCAL, taken)
        assert next_free(LOCAL, taken) > taken
    assert is_free(LOCAL, taken)


def test_two_servers_that_start_at_once_choose_different_ports() -> None:
    """Neither listens yet when the other looks."""
    first = any_free(LOCAL)
    ask = f"from tokenspeed.process.ports import next_free; print(next_free({LOCAL!r}, {first}))"
    other = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert int(other.stdout) > first
    assert is_free(LOCAL, first)
    assert first in QUIET, "a connection that goes out may take it before a server listens"


def test_the_real_gateway_starts_without_showing_the_key_and_ends_when_asked():
    config = GatewayConfig(port=any_free(LOCAL), api_key="very-secret")
    plan = json.dumps(gateway_arguments(config, any_free(LOCAL))).encode()
    with spawn("gateway", gateway.MODULE, plan, capture=True) as child:
        child.quiet = True
        _wait_for_answer(config)
        for name in ("cmdline", "environ"):
            with open(f"/proc/{child.process.pid}/{name}", "rb") as file:
                assert b"very-secret" not in file.read()
        assert not is_ready(config)  # no worker
        child.terminate()
        assert child.process.wait(5) == 0


PARENT = """
import sys, time
from tokenspeed.process import gateway
from tokenspeed.process.spawn import spawn
child = spawn("gateway", gateway.MODULE, sys.argv[1].encode(), capture=True)
print(child.process.pid, flush=True)
time.sleep(60)
"""


def test_the_real_gateway_dies_with_its_parent(wait_gone):
    config = GatewayConfig(port=any_free(LOCAL))
    plan = json.dumps(gateway_arguments(config, any_free(LOCAL)))
    command = [sys.executable, "-c", PARENT, plan]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        try:
            pid = int(parent.stdout.readline())
            _wait_for_answer(config)
        finally:
            parent.kill()
    assert wait_gone([pid], 5) == []


def _wait_for_answer(config: GatewayConfig) -> None:
    deadline = time.monotonic() + 20
    while not _answers(config):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _answers(config: GatewayConfig) -> bool:
    connection = http.client.HTTPConnection(LOCAL, config.port, timeout=1)
    try:
        connection.request("GET", "/liveness")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
