# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Whose process a connection is of: the kernel's word, tested with a process of another user."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto import tokenspeed_scheduler_pb2 as pb
from smg_grpc_proto.generated import common_pb2 as common
from tokenspeed.front import peers
from tokenspeed.front.peers import Peers

from .test_generate import code_of, request

NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="to be another user takes root")


def peer(port: int) -> str:
    return f"ipv4:127.0.0.1:{port}"


@contextmanager
def connected_as(user: int) -> Iterator[tuple[int, int]]:
    """A connection that a process of the user has opened: (our port, theirs)."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        script = f"exec 3<>/dev/tcp/127.0.0.1/{port}; read -u 3"
        process = subprocess.Popen(["bash", "-c", script], user=user, cwd="/")
        try:
            connection, (_, theirs) = server.accept()
            with connection:
                yield port, theirs
        finally:
            process.wait(10)


@pytest.mark.parametrize("user", [os.getuid(), pytest.param(NOBODY, marks=as_root)])
def test_the_user_of_a_connection_decides(user: int) -> None:
    with connected_as(user) as (port, theirs):
        for users in ({user}, {user + 1}, set()):
            assert Peers(port, frozenset(users)).allows(peer(theirs)) == (user in users)
        assert Peers(port).allows(peer(theirs)) == (user == os.getuid())
        assert not Peers(port + 1, frozenset({user})).allows(peer(theirs)), "another port's"


@pytest.mark.parametrize("name", ["ipv4:127.0.0.1:1", "ipv6:%5B::1%5D:80", "unix:/x"])
def test_a_connection_that_nobody_has_is_refused(name: str) -> None:
    assert not Peers(2, frozenset({os.getuid()})).allows(name)


def test_what_is_known_is_not_known_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as server,
        closing(socket.create_connection(server.getsockname())) as connection,
    ):
        known = Peers(server.getsockname()[1])
        name = peer(connection.getsockname()[1])
        assert known.allows(name)
        monkeypatch.setattr(known, "_users", frozenset())
        assert known.allows(name)
        monkeypatch.setattr(peers, "FRESH_S", 0.0)
        assert not known.allows(name)


def test_without_a_table_nothing_is_refused_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peers, "TABLES", {tmp_path / "none": ""})
    assert Peers(80).allows(peer(1))
    assert "every user of this machine can use port 80" in caplog.text


async def test_no_call_of_another_user_is_answered(
    serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as front:
        assert (await front.stub.HealthCheck(pb.HealthCheckRequest())).healthy
        monkeypatch.setattr(peers, "FRESH_S", 0.0)
        monkeypatch.setattr(peers, "_user", lambda *_: NOBODY)
        calls = (
            front.stub.Generate(request()),
            front.stub.SubscribeKvEvents(common.SubscribeKvEventsRequest()),
            front.stub.GetTokenizer(common.GetTokenizerRequest()),
        )
        for call in calls:
            code, text = await code_of(call)
            assert code == grpc.StatusCode.PERMISSION_DENIED
            assert "the user who started the server" in text
        with pytest.raises(grpc.aio.AioRpcError, match="PERMISSION_DENIED"):
            await front.stub.HealthCheck(pb.HealthCheckRequest())
        assert front.engine.submits == []
