# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What gateway and front add to the engine's own time, over HTTP on an idle machine.

Per request: time to the whole answer at max_tokens 1, less the time of the engine's steps, which
the admin port sums up in a histogram. What the engine's loop does between them counts as added.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from tokenspeed.bench.prompts import WORDS
from tokenspeed.bench.report import Report, Row, new_report
from tokenspeed.bench.served import Served, served

SIZES = (35, 2600, 7400)
"""Prompt lengths in tokens."""

REPETITIONS = 50

FRESHWORDS = 8
"""Words at the end of a prompt that differ each time, so that no cache knows the whole text."""

BAR_MS = 2.0
_STEP_TIME = re.compile(r"^tokenspeed_step_seconds_sum\{.*\} (\S+)$", re.MULTILINE)


def run(model: str, *, sizes: Sequence[int], progress: Callable[[str], None]) -> Report:
    """Start a server, measure it request by request with prompts of ``sizes`` tokens."""
    samples: dict[str, list[float]] = {}
    rows = []
    with served(model) as server:
        client = _Client(server)
        for length in sizes:
            progress(f"{length} tokens")
            measured = [client.ask(length) for _ in range(REPETITIONS + 1)][1:]  # warm-up dropped
            added = [m.total_ms - m.engine_ms for m in measured]
            samples[f"added ms, {length} tokens"] = added
            samples[f"engine ms, {length} tokens"] = [m.engine_ms for m in measured]
            rows.append(_row(measured[0].prompt_tokens, statistics.median(added), length))
    notes = {
        "added": "HTTP answer at max_tokens 1 less the engine's steps; medians",
        "prompts": f"equal but for their last {FRESHWORDS} words: tokenized anew each time",
    }
    return new_report("ts bench gateway", model, rows, samples, notes)


def _row(prompt_tokens: int, added_ms: float, asked: int) -> Row:
    return Row(
        what=f"gateway and front, {prompt_tokens}-token prompt",
        unit="ms",
        ours=round(added_ms, 3),
        versus="allowed",
        theirs=BAR_MS,
        ratio=round(BAR_MS / added_ms, 3),
        bar=1.0 if asked == min(SIZES) else None,
    )


class _Measured:
    def __init__(self, total_ms: float, engine_ms: float, prompt_tokens: int) -> None:
        self.total_ms = total_ms
        self.engine_ms = engine_ms
        self.prompt_tokens = prompt_tokens


class _Client:
    """One kept-alive connection to the gateway."""

    def __init__(self, server: Served) -> None:
        self._gateway = http.client.HTTPConnection(urlsplit(server.url).netloc)
        self._admin = http.client.HTTPConnection(urlsplit(server.admin_url).netloc)
        self._model = self._get_model()

    def ask(self, length: int) -> _Measured:
        before = self._engine_seconds()
        body = {
            "model": self._model,
            "prompt": _text(length),
            "max_tokens": 1,
            "temperature": 0,
        }
        payload = json.dumps(body)
        start = time.perf_counter()
        self._gateway.request(
            "POST", "/v1/completions", payload, {"Content-Type": "application/json"}
        )
        answer = json.loads(_checked(self._gateway.getresponse()))
        total = time.perf_counter() - start
        engine = self._engine_seconds() - before
        return _Measured(total * 1e3, engine * 1e3, answer["usage"]["prompt_tokens"])

    def _engine_seconds(self) -> float:
        self._admin.request("GET", "/metrics")
        found = _STEP_TIME.findall(_checked(self._admin.getresponse()).decode())
        assert found
        return sum(map(float, found))

    def _get_model(self) -> str:
        self._gateway.request("GET", "/v1/models")
        return str(json.loads(_checked(self._gateway.getresponse()))["data"][0]["id"])


def _checked(response: http.client.HTTPResponse) -> bytes:
    body = response.read()
    if response.status != http.HTTPStatus.OK:
        raise RuntimeError(f"HTTP {response.status}: {body.decode(errors='replace')}")
    return body


def _text(length: int) -> str:
    """A text of ``length`` tokens for most tokenizers: common words, one token each."""
    same = random.Random(length).choices(WORDS, k=length - FRESHWORDS)
    return " ".join(same + random.choices(WORDS, k=FRESHWORDS))
