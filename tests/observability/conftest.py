# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""One run of a real server with a stranger's recording observer: what it logged and said."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tokenspeed.bench.served import Served, served
from tokenspeed_sdk.contracts.observer import EVENTS, Event

from .load import Seen, mixed, streamed

JOURNAL = Path(__file__).resolve().parent.parent / "downstream" / "observer"
SMALL = ("--kv-pages", "24", "--page-size", "16", "--max-num-seqs", "8", "--threads", "2")
"""A pool that the crowd does not fit into."""

Page = dict[str, Metric]
"""Name of each family of a /metrics page to it."""


@dataclass(repr=False)  # a failed test would print all of it
class Run:
    """What is left of the server.

    Attributes:
        early, late: /metrics after one request, and after the load, when nothing ran any more.
        events: what the observer wrote, in order.
        seen: what the clients saw, by kind.
        printed: what ``ts serve`` printed.
    """

    early: Page
    late: Page
    events: list[Event]
    seen: dict[str, list[Seen]]
    printed: str


@pytest.fixture(scope="session")
def journal_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with the stranger's wheel; the environment stays as it is."""
    folder = tmp_path_factory.mktemp("journal")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command = [*pip, "--no-build-isolation", "--target", str(folder), str(JOURNAL)]
    subprocess.run(command, check=True, timeout=180)
    return folder


@pytest.fixture(scope="session")
def run(demo_folder: Path, journal_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Serve, load, scrape, stop, read the log."""
    log = tmp_path_factory.mktemp("log") / "events"
    with pytest.MonkeyPatch.context() as patch:
        others = os.environ.get("PYTHONPATH")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(journal_wheel), others))))
        patch.setenv("ACME_JOURNAL", str(log))
        with served(str(demo_folder), SMALL) as process:
            early, late, seen = asyncio.run(_measure(process))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return Run(early, late, [_event(line) for line in lines], seen, "".join(process.output))


async def _measure(process: Served) -> tuple[Page, Page, dict[str, list[Seen]]]:
    client = openai.AsyncOpenAI(
        base_url=f"{process.url}/v1", api_key="none", max_retries=0, timeout=120
    )
    async with client:
        first = await streamed(client, "Hello", 2)
        early = _settled(process)
        seen = await mixed(client, process.url)
    return early, _settled(process), {"first": [first], **seen}


def _settled(process: Served) -> Page:
    """The page once no request is open and the engine has said that it is idle."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{process.admin_url}/metrics", timeout=20) as response:
            text = response.read().decode()
        page = {family.name: family for family in text_string_to_metric_families(text)}
        if not any(
            value(page, f"tokenspeed_{name}")
            for name in ("requests_in_progress", "running_sequences", "waiting_sequences")
        ):
            return page
        time.sleep(0.05)
    raise AssertionError(f"the server did not settle:\n{text}")


def _event(line: dict[str, Any]) -> Event:
    kind: Any = EVENTS[line.pop("hook")]
    event: Event = msgspec.convert(line, kind)
    return event


def value(page: Page, name: str, **labels: str) -> float:
    """Sum over the samples of this name that have these labels."""
    family = page[name.removesuffix("_total").removesuffix("_sum").removesuffix("_count")]
    samples = [s for s in family.samples if s.name == name and labels.items() <= s.labels.items()]
    return sum(sample.value for sample in samples)
