# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Wheels of four strangers at once in a real server: a model, two kernels, and an observer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from .checkpoints import Checkpoint
from .layers import ts
from .projects import OWNERS, kernels
from .servers import Server, serving

PROMPTS = ([5, 200, 17], [91], list(range(40, 110, 2)))
COUNT = 24
LAYERS = 2

PINS = kernels()
"""Every kernel of a stranger: op -> its name and project."""
PIN_OPTIONS = [word for op, (name, _) in PINS.items() for word in ("--pin", f"{op}={name}")]


@dataclass(frozen=True)
class Observed:
    """The server, what it answered, and where its events go."""

    server: Server
    answers: list[list[int]]
    journal: Path

    def events(self, hook: str) -> list[dict[str, Any]]:
        """All of one kind so far, in order."""
        events = [json.loads(line) for line in self.journal.read_text().splitlines()]
        return [event for event in events if event["hook"] == hook]


@pytest.fixture(scope="module")
def observed(
    strangers: dict[str, Path],
    juniper_checkpoint: Checkpoint,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Observed]:
    """All four wheels together, and the prompts asked one after the other."""
    journal = tmp_path_factory.mktemp("journal") / "events"
    variables = {"ACME_JOURNAL": str(journal)}
    layers = list(strangers.values())
    with serving(juniper_checkpoint.folder, *PIN_OPTIONS, layers=layers, **variables) as server:
        yield Observed(server, [server.greedy(prompt, COUNT) for prompt in PROMPTS], journal)


@pytest.fixture(scope="module")
def wanted(juniper_checkpoint: Checkpoint) -> list[list[int]]:
    """What the model's own oracle answers."""
    return [juniper_checkpoint.greedy(prompt, COUNT) for prompt in PROMPTS]


def test_the_answers_are_the_oracles(observed: Observed, wanted: list[list[int]]) -> None:
    assert len({tuple(answer) for answer in wanted}) == len(PROMPTS)
    assert all(len(set(answer)) > COUNT // 4 for answer in wanted), "answers that say too little"
    assert observed.answers == wanted


@pytest.mark.rule("R20")
def test_without_kernels_and_observer_they_are_the_same(
    strangers: dict[str, Path], juniper_checkpoint: Checkpoint, wanted: list[list[int]]
) -> None:
    """And nothing is left of what was taken away."""
    with serving(juniper_checkpoint.folder, layers=[strangers["model"]]) as plain:
        assert [plain.greedy(prompt, COUNT) for prompt in PROMPTS] == wanted
        assert "acme" not in plain.printed + plain.metrics()


@pytest.mark.rule("R13")
@pytest.mark.parametrize("op", PINS)
def test_the_server_says_that_the_kernel_runs(observed: Observed, op: str) -> None:
    """In what it prints and in the labels of its metrics."""
    name, project = PINS[op]
    printed = observed.server.printed
    assert [line for line in printed.splitlines() if op in line and name in line], printed
    samples = [
        sample.labels
        for family in text_string_to_metric_families(observed.server.metrics())
        for sample in family.samples
        if sample.name == "tokenspeed_kernel_call_sites"
    ]
    (labels,) = [labels for labels in samples if labels["op"] == op]
    assert (labels["kernel"], labels["owner"]) == (name, OWNERS[project])


@pytest.mark.rule("R13")
def test_explain_says_why_and_why_not_the_others(
    strangers: dict[str, Path], juniper_checkpoint: Checkpoint
) -> None:
    """The whole table from one question, before anything is started."""
    folder, layers = str(juniper_checkpoint.folder), list(strangers.values())
    done = ts("explain", "start", folder, *PIN_OPTIONS, "--json", layers=layers)
    assert done.returncode == 0, done.stderr
    rows = {row["role"]: row for row in json.loads(done.stdout)["table"]}
    for op, (name, project) in PINS.items():
        assert (rows[op]["chosen"], rows[op]["owner"]) == (name, OWNERS[project])
        assert "pinned" in rows[op]["why"]
        assert {other["name"] for other in rows[op]["runners_up"]} == {"cpu", "reference"}
    assert (rows["model"]["chosen"], rows["model"]["owner"]) == ("juniper", OWNERS["model"])
    assert rows["observer"]["owner"] == OWNERS["observer"]


def wait_for_the_end(observed: Observed) -> None:
    """Events come a little later than answers."""
    deadline = time.monotonic() + 10
    while len(observed.events("request_finished")) < len(PROMPTS):
        assert time.monotonic() < deadline, observed.journal.read_text()
        time.sleep(0.05)


def test_the_observer_is_told_what_serves(observed: Observed) -> None:
    wait_for_the_end(observed)
    (ready,) = observed.events("server_ready")
    assert json.loads(observed.journal.read_text().splitlines()[0]) == ready
    assert (ready["model"], ready["architecture"]) == ("juniper", "JuniperForCausalLM")
    kernels = {choice["op"]: choice for choice in ready["kernels"]}
    for op, (name, project) in PINS.items():
        assert (kernels[op]["kernel"], kernels[op]["owner"]) == (name, OWNERS[project])
    assert kernels["silu_and_mul@1"]["sites"] == LAYERS


def test_the_observer_is_told_every_request(observed: Observed) -> None:
    wait_for_the_end(observed)
    received, finished = observed.events("request_received"), observed.events("request_finished")
    assert [event["prompt_tokens"] for event in received] == [len(prompt) for prompt in PROMPTS]
    assert [event["request"] for event in received] == [1, 2, 3]
    assert [(end["request"], end["outcome"], end["output_tokens"]) for end in finished] == [
        (number, "length", COUNT) for number in (1, 2, 3)
    ]
    told: dict[int, list[int]] = {1: [], 2: [], 3: []}
    for event in observed.events("tokens_generated"):
        told[event["request"]] += event["token_ids"]
    assert list(told.values()) == observed.answers
    steps = observed.events("step_finished")
    assert sum(step["prefill_tokens"] for step in steps) == sum(map(len, PROMPTS))
