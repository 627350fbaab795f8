# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Two servers behind one more gateway, which routes by what their prefix caches hold."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from smg_grpc_proto import tokenspeed_scheduler_pb2_grpc as pb_grpc
from smg_grpc_proto.generated.common_pb2 import (
    KV_CACHE_TIER_DEVICE,
    KV_CACHE_TIER_HOST,
    SubscribeKvEventsRequest,
)
from tokenspeed.bench.served import served
from tokenspeed.process.ports import any_free

MODEL = "SmolLM2-135M-Instruct"
LAW = (Path(__file__).resolve().parent.parent / "data" / "constitution.txt").read_text()
HOST = "127.0.0.1"
OPERATOR_KEY = "operator's"


@dataclass
class Shared:
    """A gateway, and the servers behind it, each of which has one of its own too."""

    url: str
    metrics_url: str
    servers: list[Any]

    def known_blocks(self, server: int) -> float:
        """How many of a server's blocks the gateway has heard of; -1 before it heard anything."""
        worker = re.escape(self.servers[server].grpc_address())
        text = httpx.get(self.metrics_url).text
        found = re.search(rf'^smg_kv_index_blocks{{worker="grpc://{worker}"}} (\S+)$', text, re.M)
        return float(found[1]) if found else -1

    def warm(self, server: int, prompt: str, header: str = "mine") -> None:
        """Ask a server past the shared gateway, and let that hear of it."""
        known = self.known_blocks(server)
        ask(self.servers[server].url, prompt, header)
        until(lambda: self.known_blocks(server) > known)

    def reset(self, server: int) -> None:
        url = f"{self.servers[server].url}/flush_cache"
        operator = {"Authorization": f"Bearer {OPERATOR_KEY}"}
        assert httpx.post(url, timeout=20, headers=operator).status_code == 200
        until(lambda: self.known_blocks(server) == 0)

    def routed(self, prompt: str, header: str = "mine") -> tuple[list[float], list[int]]:
        """(how many of 4 equal requests came to each server, cached tokens of each answer)."""
        before = [server.metric("requests_received_total") for server in self.servers]
        cached = [ask(self.url, prompt, header) for _ in range(4)]
        after = [server.metric("requests_received_total") for server in self.servers]
        return [end - start for start, end in zip(before, after, strict=True)], cached


def until(condition: Callable[[], bool]) -> None:
    """Poll until it holds."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "did not happen within 20 s"
        time.sleep(0.02)


def ask(url: str, prompt: str, header: str) -> int:
    """Cached tokens of an answer."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "temperature": 0}
    headers = {"x-request-id": header}
    answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


@contextmanager
def gateway(workers: list[str]) -> Iterator[tuple[str, str]]:
    """(its URL, that of its metrics)."""
    port, metrics_port = any_free(HOST), any_free(HOST)
    command = [sys.executable, "-m", "smg", "launch", "--host", HOST, "--port", str(port)]
    command += ["--prometheus-host", HOST, "--prometheus-port", str(metrics_port)]
    command += ["--worker-urls", *(f"grpc://{worker}" for worker in workers)]
    command += ["--policy", "cache_aware", "--worker-startup-check-interval", "1"]
    command += ["--worker-warmup-divert-every", "0"]  # else every eighth hit goes elsewhere
    command += ["--shutdown-grace-period-secs", "0", "--log-level", "error"]
    process = subprocess.Popen(command)
    try:
        yield f"http://{HOST}:{port}", f"http://{HOST}:{metrics_port}/metrics"
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def shared(demo_folder: Path, server_type: Any) -> Iterator[Shared]:
    arguments = ["--kv-pages", "64", "--host-kv-gb", "0.2", "--threads", "1"]
    arguments += ["--operator-key", OPERATOR_KEY]
    with ExitStack() as stack:
        with ThreadPoolExecutor() as pool:  # both at once
            ports = [str(any_free(HOST)) for _ in range(2)]  # else both would try the same
            starts = [served(str(demo_folder), [*arguments, "--port", port]) for port in ports]
            servers = [server_type(s) for s in pool.map(stack.enter_context, starts)]
        addresses = [server.grpc_address() for server in servers]
        url, metrics_url = stack.enter_context(gateway(addresses))
        running = Shared(url, metrics_url, servers)
        until(lambda: _serves(running))
        yield running


def _serves(shared: Shared) -> bool:
    """Whether it has heard of each server's cache, and has the tokenizer."""
    try:
        heard = all(shared.known_blocks(server) >= 0 for server in range(len(shared.servers)))
        text = {"model": MODEL, "prompt": "Hello"}
        return heard and httpx.post(f"{shared.url}/v1/tokenize", json=text).status_code == 200
    except httpx.TransportError:
        return False


def test_a_prompt_is_routed_to_the_server_that_has_it(shared: Shared) -> None:
    prompt = f"Routed. {LAW[:1000]}"
    shared.warm(0, prompt)
    counts, cached = shared.routed(prompt)
    assert counts == [4, 0]
    assert min(cached) > 128
    shared.reset(0)
    shared.warm(1, prompt)
    counts, cached = shared.routed(prompt)
    assert counts == [0, 4]
    assert min(cached) > 128


def test_a_tenant_is_routed_to_its_own_and_shares_nothing(shared: Shared) -> None:
    prompt = f"Salted. {LAW[:1000]}"
    shared.warm(0, prompt, "s=acme,1")
    counts, cached = shared.routed(prompt, "s=acme,2")
    assert counts == [4, 0]
    assert min(cached) > 128
    assert ask(shared.url, prompt, "s=other,3") == 0


def test_a_gateway_that_comes_later_hears_of_all(shared: Shared) -> None:
    prompt = f"Later. {LAW[:1000]}"
    shared.warm(1, prompt)
    with gateway([server.grpc_address() for server in shared.servers]) as (url, metrics_url):
        later = Shared(url, metrics_url, shared.servers)
        until(lambda: _serves(later))
        until(lambda: later.known_blocks(1) == shared.known_blocks(1))
        assert later.routed(prompt)[0] == [0, 4]


def test_what_is_told_is_what_the_ledger_counts(shared: Shared) -> None:
    """More prompts than the device has pages for: the host tier has them all."""
    server = shared.servers[0]
    shared.reset(0)
    prompts = [f"{number}. {LAW[number * 100 :][:900]}" for number in range(8)]
    for prompt in prompts:
        assert ask(server.url, prompt, "mine") == 0
    for prompt in prompts:
        assert ask(server.url, prompt, "mine") > 128
    assert server.metric("tier_transferred_pages_total") > 100
    ledger = server.settled_ledger()
    device, host = residents(server.grpc_address())
    assert len(host) == ledger["host_cached"] > 80
    assert ledger["cached"] - 2 * len(prompts) <= len(device) <= ledger["cached"], "unfilled pages"
    assert device < host, "the host tier holds all that the device does"
    until(lambda: shared.known_blocks(0) == len(host))


def residents(address: str) -> tuple[set[int], set[int]]:
    """What a new subscriber is told: names of blocks on the device, and in the host tier."""
    held: dict[int, set[int]] = {KV_CACHE_TIER_DEVICE: set(), KV_CACHE_TIER_HOST: set()}
    with grpc.insecure_channel(address) as channel:
        stub = pb_grpc.TokenSpeedSchedulerStub(channel)
        for batch in stub.SubscribeKvEvents(SubscribeKvEventsRequest()):
            for event in batch.events:
                if event.HasField("cleared"):  # begins every snapshot
                    continue
                held[event.stored.tier] |= {block.block_hash for block in event.stored.blocks}
            if batch.snapshot.index == batch.snapshot.count - 1:
                return held[KV_CACHE_TIER_DEVICE], held[KV_CACHE_TIER_HOST]
    raise AssertionError("the stream ended")
