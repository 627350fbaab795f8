# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A running server as tests look at it: its URL, its metrics, its accounts of pages."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import openai
from tokenspeed.bench.served import Served


@dataclass(frozen=True)
class Server:
    """A running server and what its admin port knows."""

    process: Served

    @property
    def url(self) -> str:
        return self.process.url

    @property
    def openai(self) -> openai.OpenAI:
        """A client that tries once; to be closed: ``with server.openai as client``."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    @property
    def async_openai(self) -> openai.AsyncOpenAI:
        """As ``openai``; closed in the loop that used it."""
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=240
        )

    def ledger(self) -> dict[str, Any]:
        """Accounts of all pages, walked by the engine just now."""
        answer: dict[str, Any] = json.loads(get(f"{self.process.admin_url}/debug/cache"))
        return answer

    def metric(self, name: str, **labels: str) -> float:
        """A number of /metrics, such as "running_sequences"; summed over the labels not given."""
        text = get(f"{self.process.admin_url}/metrics")
        found = re.findall(rf"^tokenspeed_{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        counts = [float(count) for has, count in found if wanted <= set(has.split(","))]
        assert counts, f"no metric tokenspeed_{name} with {labels} in:\n{text}"
        return sum(counts)

    def settled_ledger(self, timeout_s: float = 20) -> dict[str, Any]:
        """The ledger once nothing runs any more."""
        wait_for(
            lambda: self.metric("requests_in_progress") == 0 and self.ledger()["idle"], timeout_s
        )
        return self.ledger()

    def grpc_address(self) -> str:
        """Host and port of the front."""
        return self.process.grpc_address


def get(url: str) -> str:
    """Body of a GET that must succeed."""
    with urllib.request.urlopen(url, timeout=20) as response:
        return str(response.read().decode())


def wait_for(condition: Callable[[], bool], timeout_s: float) -> None:
    """Poll until it holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {timeout_s} s"
        time.sleep(0.05)
