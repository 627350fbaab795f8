# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A real server: ``ts serve`` with its engine, front and gateway, and a look behind them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from tokenspeed.bench.served import served

sys.path.insert(0, str(Path(__file__).parent))

from real_server import Server

THREADS = "2"
TEMPLATE = Path(__file__).parents[2] / "tools" / "demo_chat.jinja"


@pytest.fixture(scope="session")
def server(demo_folder: Path) -> Iterator[Server]:
    """One with the default settings, shared by all tests that do it no harm."""
    with served(str(demo_folder), ["--threads", THREADS]) as process:
        yield Server(process)


@pytest.fixture(scope="session")
def tool_server(demo_folder: Path) -> Iterator[Server]:
    """One whose template shows tools, and with it how calls are written."""
    with served(str(demo_folder), ["--threads", THREADS, "--chat-template", str(TEMPLATE)]) as one:
        yield Server(one)


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.openai as client:
        yield client


@pytest.fixture(scope="session")
def server_type() -> type[Server]:
    """For tests that start a server of their own."""
    return Server
