#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the suffix drafter costs the engine's loop: the beginning of a request, and a step of a row.

    python bench/edits/drafter_cost.py

The text is source code cut into words, whose lines and calls come again as they do in a session of
an agent; "one token" is the worst that a client can send. The pool is full.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenspeed._drafts import SuffixDrafter

ROOT = Path(__file__).resolve().parents[2]
CONTEXTS = (1_000, 50_000, 200_000)
K = 8
STEPS = 2_000


def words(count: int) -> Any:
    """Ids of the words and signs of our own sources, int32 [count]."""
    files = sorted((ROOT / "tokenspeed-core").rglob("*.py"))
    text = "".join(path.read_text() for path in files)
    known: dict[str, int] = {}
    ids = [known.setdefault(word, len(known)) for word in re.findall(r"\w+|\s+|.", text)]
    return np.resize(np.array(ids, np.int32), count)


def one_token(count: int) -> Any:
    return np.zeros(count, np.int32)


def full_pool(text: Callable[[int], Any]) -> SuffixDrafter:
    drafter = SuffixDrafter(max_model_len=1 << 20, pool_bytes=64 << 20)
    output = text(1 << 20)
    for begin in range(0, 4 << 20, 4096):
        drafter.begin(0, output[:1], namespace=0)
        place = begin % len(output)
        drafter.advance(REQUEST * 0, np.array([0, 4096], np.int32), output[place : place + 4096])
        drafter.end(0)
    return drafter


REQUEST = np.ones(1, np.uint64)


def begins(drafter: SuffixDrafter, prompt: Any) -> Iterator[float]:
    for _ in range(20):
        start = time.perf_counter()
        drafter.begin(1, prompt, namespace=0)
        yield time.perf_counter() - start


def steps(drafter: SuffixDrafter, continuation: Any) -> Iterator[float]:
    most, tokens = np.array([K], np.int32), np.zeros((1, K), np.int32)
    for place in range(0, 3 * STEPS, 3):
        accepted = continuation[place : place + 3]
        start = time.perf_counter()
        drafter.advance(REQUEST, np.array([0, 3], np.int32), accepted)
        drafter.draft(REQUEST, most, tokens)
        yield time.perf_counter() - start


def show(what: str, seconds: Iterator[float]) -> None:
    us = np.array([*seconds]) * 1e6
    print(f"{what}: median {np.median(us):.1f} us, p99 {np.percentile(us, 99):.1f}, "
          f"most {us.max():.1f}")  # fmt: skip


def main() -> None:
    """Print a line each."""
    for text in (words, one_token):
        drafter = full_pool(text)
        for context in CONTEXTS:
            whole = text(context + 3 * STEPS)
            name = f"{text.__name__}, {context} tokens"
            show(f"{name}: begin", begins(drafter, whole[:context]))
            show(f"{name}: advance by 3 and draft {K}", steps(drafter, whole[context:]))
            drafter.end(1)


if __name__ == "__main__":
    main()
