# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The thread pool: calls from several threads, forks, and changes of its size."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from tokenspeed_cpu import library

from .support import bind, find, randn, site

TRAITS = {"n": 640, "k": 256, "bias": False}


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_gives_the_same(rng: torch.Generator, threads: int) -> None:
    weight, x = randn(rng, 640, 256), randn(rng, 40, 256)
    packed = find("linear@1").pack_weight(site("linear@1", **TRAITS), weight)
    call = bind("linear@1", **TRAITS)
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
