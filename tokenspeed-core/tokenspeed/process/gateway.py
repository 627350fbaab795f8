# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The gateway process, HTTP in and gRPC to the front: its arguments, and when it is ready."""

from __future__ import annotations

import http.client
import json
import math
import secrets
import shlex

import msgspec

from tokenspeed.process.ports import any_free

MODULE = "tokenspeed.process.gateway_shim"

TABLES = ("qwen2.5", "qwen3")
"""Parsers that the gateway keeps in tables, and reads by another flag than the older ones."""

MAX_BODY_BYTES = 64 << 20
"""Of an HTTP request."""

_LOCAL = "127.0.0.1"
_LATER_S = 10
"""So much later than the front the gateway gives a request up."""
_EVERYWHERE = {"0.0.0.0": _LOCAL, "::": "::1"}  # address to listen on -> to talk to


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator chose for the HTTP side.

    Attributes:
        port: a free one.
        api_key: clients must send it as bearer token; None lets everybody in.
        operator_key: bearer token of who may change the gateway itself: its servers, tokenizers,
            caches. None: nobody.
        isolate_tenants: whether it keeps no conversation for a later request, which any client that
            knows its id could continue.
        request_timeout: seconds after which the front ends a request, which then says why; the
            gateway's own end, half an hour by default, must come later.
    """

    host: str = _LOCAL
    port: int
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    chat_template: str | None = None
    api_key: str | None = None
    operator_key: str | None = None
    isolate_tenants: bool = False
    request_timeout: float = 600.0


def gateway_arguments(config: GatewayConfig, grpc_port: int) -> list[str]:
    """Arguments of "smg launch" for one worker: the front on this machine."""
    arguments = ["--host", config.host, "--port", str(config.port)]
    arguments += ["--prometheus-host", _LOCAL, "--prometheus-port", str(any_free(_LOCAL))]
    arguments += ["--worker-urls", f"grpc://{_LOCAL}:{grpc_port}", "--policy", "passthrough"]
    arguments += ["--worker-startup-check-interval", "1", "--shutdown-grace-period-secs", "1"]
    arguments += ["--tokenizer-cache-enable-l0", "--tokenizer-cache-enable-l1"]
    arguments += ["--max-payload-size", str(MAX_BODY_BYTES)]
    # Where no key is set, every client might add a server, which would get the others' requests.
    operator_key = config.operator_key or secrets.token_urlsafe(32)
    arguments += ["--control-plane-api-keys", f"operator:operator:admin:{operator_key}"]
    if config.isolate_tenants:
        arguments += ["--history-backend", "none"]
    patience = math.ceil(config.request_timeout) + _LATER_S
    arguments += ["--request-timeout-secs", str(patience)]
    # A front that was started anew is used within a second.
    arguments += ["--health-check-interval-secs", "1", "--health-success-threshold", "1"]
    arguments += ["--log-level", "warn", "--disable-retries", "--disable-circuit-breaker"]
    if config.tool_call_parser in TABLES:
        arguments += ["--parser", "symphony"]
    for flag, value in (
        ("--tool-call-parser", config.tool_call_parser),
        ("--reasoning-parser", config.reasoning_parser),
        ("--chat-template", config.chat_template),
        ("--api-key", config.api_key),
    ):
        if value is not None:
            arguments += [flag, value]
    return arguments


def is_ready(config: GatewayConfig) -> bool:
    """Whether the gateway has a worker that can serve."""
    connection = http.client.HTTPConnection(_reachable(config.host), config.port, timeout=1)
    try:
        connection.request("GET", "/readiness")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def address(config: GatewayConfig) -> str:
    """HOST:PORT where the server is reached from this machine."""
    host = _reachable(config.host)
    return f"[{host}]:{config.port}" if ":" in host else f"{host}:{config.port}"


def curl_line(config: GatewayConfig, model: str) -> str:
    """A command that talks to the server, to be pasted into a shell."""
    messages = [{"role": "user", "content": "What is the capital of Japan?"}]
    body = {"model": model, "max_tokens": 64, "messages": messages, "temperature": 0}
    parts = ["curl", f"http://{address(config)}/v1/chat/completions"]
    parts += ["-H", shlex.quote("Content-Type: application/json")]
    if config.api_key is not None:
        parts += ["-H", '"Authorization: Bearer $TOKENSPEED_API_KEY"']
    return " ".join([*parts, "-d", shlex.quote(json.dumps(body))])


def _reachable(host: str) -> str:
    return _EVERYWHERE.get(host, host)
