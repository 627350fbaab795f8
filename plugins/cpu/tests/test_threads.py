# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The thread pool: calls from several threads, forks, and changes of its size."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenspeed_cpu import library

from .support import CPU, bind, find, randn, site

TRAITS = {"n": 640, "k": 256, "bias": False}


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_gives_the_same(rng: torch.Generator, threads: int) -> None:
    weight, x = randn(rng, 640, 256), randn(rng, 40, 256)
    where = replace(site("linear@1", **TRAITS), device=replace(CPU, units=5))
    packed = find("linear@1").pack_weight(where, weight)
    call = find("linear@1").bind(where)
    library.set_threads(1)
    alone = call(x, packed)
    library.set_threads(threads)
    for _ in range(50):
        assert torch.equal(call(x, packed), alone)


def test_calls_from_several_threads_do_not_mix(rng: torch.Generator) -> None:
    call = bind("linear@1", **TRAITS)
    weight = randn(rng, 640, 256)
    packed = find("linear@1").pack_weight(site("linear@1", **TRAITS), weight)
    inputs = [randn(rng, 17, 256) for _ in range(4)]
    wanted = [call(x, packed) for x in inputs]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(100):
            if not torch.equal(call(inputs[i], packed), wanted[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def helpers_time() -> int:
    """CPU time of all threads of this process but this one, in ticks."""
    mine = threading.get_native_id()
    others = (path for path in Path("/proc/self/task").iterdir() if int(path.name) != mine)
    return sum(sum(map(int, (path / "stat").read_text().split()[13:15])) for path in others)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc here")
def test_a_call_takes_no_more_threads_than_its_site_has_units(rng: torch.Generator) -> None:
    library.set_threads(2)
    alone = replace(site("linear@1", **TRAITS), device=replace(CPU, units=1))
    kernel = find("linear@1")
    x, packed = randn(rng, 400, 256), kernel.pack_weight(alone, randn(rng, 640, 256))
    call = kernel.bind(alone)
    call(x, packed)
    time.sleep(0.01)  # helpers of earlier calls fall asleep
    before, end = helpers_time(), time.thread_time() + 0.3
    while time.thread_time() < end:
        call(x, packed)
    assert helpers_time() - before <= 2  # of about 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_can_compute(rng: torch.Generator) -> None:
    call = bind("silu_and_mul@1", inter=4096)
    x = randn(rng, 64, 8192)
    wanted = call(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(call(x), wanted) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
