# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A server under load: a pool of 64 pages, more clients than it serves, and what clients do.

    python tests/soak/soak.py --seconds 600 --seed 1

Rounds of traffic, and rest between them: then every request was answered or refused, no page is
held, gauges and ledger agree, and no process holds more than it did after the first rounds. Ends
with a table of what was sent and what came back, or with the name of what is wrong and its seed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "e2e")]

os.environ["TQDM_DISABLE"] = "1"
import demo_model  # noqa: E402
from clients import SoakError, Table, traffic  # noqa: E402
from footprint import Footprint, family, growth  # noqa: E402
from real_server import Server  # noqa: E402
from tokenspeed.bench.served import served  # noqa: E402

CLIENTS = 12
ROUNDS = 10
WARM = 3
"""Rounds before the first look: lazy imports, caches that fill up to their bounds."""
REST_S = 30.0
ARGUMENTS = (
    *("--kv-pages", "64", "--page-size", "16", "--max-model-len", "1024"),
    *("--max-num-seqs", "6", "--max-queue", "10"),
    *("--drafter", "suffix", "--threads", "1", "--served-model-name", "soak"),
    *("--verify-page-tables", "--log-level", "warning"),
    *("--chat-template", str(ROOT / "tools" / "demo_chat.jinja")),
)
LOUD = re.compile(r" (engine|front) (WARNING|ERROR|CRITICAL) |Traceback|panicked")
"""What a server under load does not say; the gateway logs each request that it refuses."""


@contextmanager
def small_model() -> Iterator[Path]:
    """A Llama of two narrow layers with random weights, and the demo model's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    demo = demo_model.ensure()
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        torch.manual_seed(7)
        config = LlamaConfig(
            vocab_size=49152,
            hidden_size=128,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=2048,
            initializer_range=0.5,
            bos_token_id=1,
            eos_token_id=2,
        )
        LlamaForCausalLM(config).save_pretrained(folder)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(demo / file, folder / file)
        yield folder


def at_rest(server: Server) -> dict[str, Footprint]:
    """What each process holds once nothing runs. SoakError when something is held for nobody."""
    try:
        ledger = server.settled_ledger(REST_S)
    except AssertionError as error:
        held = {name: server.metric(name) for name in ("running_sequences", "waiting_sequences")}
        raise SoakError(f"not at rest after {REST_S:g} s: {held}, {server.ledger()}") from error
    told = {"free": ledger["free"], "cached": ledger["cached"], "active": 0}
    pages = {state: server.metric("kv_pages", state=state) for state in told}
    if not ledger["balanced"] or ledger["active"] or ledger["in_transfer"] or pages != told:
        raise SoakError(f"pages are lost: the gauges say {pages}, the ledger {ledger}")
    if ledger["free"] + ledger["cached"] != ledger["total"]:
        raise SoakError(f"pages are lost: {ledger}")
    return {role: Footprint.of(each) for role, each in family(server.process.process.pid).items()}


def check_silence(output: list[str]) -> None:
    loud = [line for line in output if LOUD.search(line)]
    if loud:
        raise SoakError("the server said:\n" + "".join(loud[:40]))


def soak(server: Server, seed: str, seconds: float, table: Table) -> None:
    """All rounds. SoakError says what is wrong."""
    first: dict[str, Footprint] = {}
    for number in range(ROUNDS):
        asyncio.run(traffic(server.url, f"{seed}.{number}", CLIENTS, seconds / ROUNDS, table))
        now = at_rest(server)
        check_silence(server.process.output)
        print(f"round {number}: {table.sent.total()} requests; ", end="")
        print("; ".join(f"{role} {each}" for role, each in now.items()), flush=True)
        if number == WARM - 1:
            first = now
    grown = growth(first, now)
    if grown:
        raise SoakError("; ".join(grown))


def used(server: Server) -> str:
    """That the run was about what it is meant to be. SoakError when it was not."""
    names = ("retractions_total", "drafted_tokens_total", "accepted_tokens_total")
    counts = {name: server.metric(name) for name in names}
    if not all(counts.values()):
        raise SoakError(f"the load was too light: {counts}")
    return ", ".join(f"{name} {count:.0f}" for name, count in counts.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--seconds", type=float, default=600, help="of traffic, in all")
    parser.add_argument("--seed", default=str(time.time_ns() % 1_000_000))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    table = Table()
    try:
        with small_model() as folder, served(str(folder), ARGUMENTS) as process:
            soak(Server(process), options.seed, options.seconds, table)
            print(used(Server(process)))
        if process.process.returncode != 0:
            raise SoakError(f"the server ended with {process.process.returncode}")
        check_silence(process.output)
    except SoakError as error:
        print(f"{table}\n\nFAILED, seed {options.seed}: {error}", file=sys.stderr)
        return 1
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
