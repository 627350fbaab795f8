# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The workloads: each brings a control plane into a state, checks that it is there, and times one
thing in it. What is checked is not timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from plane import PAGE_SIZE, ControlPlane, Facts, Sizes

MakePlane = Callable[[Sizes], ControlPlane]
VOCABULARY = 150_000
FOREVER = 4_096
"""Tokens to generate, for rows that have to outlast the measurement."""
WARM_UP = 8
"""Steps that come first and are not timed: the other side's turn has emptied the CPU's caches."""
BURST = 8
"""Events of one repetition, where an event is not a step of many."""


class Workload(Protocol):
    def repetition(self) -> float:
        """Microseconds of one event, as the mean of a few that follow each other."""


class StateError(RuntimeError):
    """A control plane is not in the state that the workload is about."""


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise StateError(f"{what}: {found}, not {wanted}")


def pages_of(tokens: int) -> int:
    return -(-tokens // PAGE_SIZE)


class Driver:
    """A control plane with random prompts of its own, and the steps that nobody times."""

    def __init__(self, plane: ControlPlane, seed: int = 0) -> None:
        self.plane = plane
        self._random = np.random.default_rng(seed)
        self._requests = 0

    def prompt(self, tokens: int) -> NDArray[np.int32]:
        return self._random.integers(0, VOCABULARY, tokens, dtype=np.int32)

    def submit(self, prompt: NDArray[np.int32], max_new_tokens: int) -> int:
        self._requests += 1
        self.plane.submit(self._requests, prompt, max_new_tokens)
        return self._requests

    def step(self) -> Facts:
        self.plane.plan()
        facts = self.plane.facts()
        self.finish_step()
        return facts

    def finish_step(self) -> None:
        self.plane.commit()
        self.plane.settle()

    def serve(self, prompt: NDArray[np.int32]) -> None:
        """Compute a prompt and one token, so that nothing but its cached pages stays."""
        self.submit(prompt, 1)
        while self.plane.level().waiting + self.plane.level().running:
            self.step()


def timed(*calls: Callable[[], object]) -> int:
    """CPU nanoseconds of this thread."""
    start = time.thread_time_ns()
    for call in calls:
        call()
    return time.thread_time_ns() - start


class Decode:
    """Plan and commit, while some rows decode and, maybe, prompts wait that do not fit.

    Prompts enter one after the other, so that about as many rows cross a page boundary in any step.
    """

    steps = PAGE_SIZE

    def __init__(self, make: MakePlane, rows: int, context: int, waiting: int = 0) -> None:
        self.driver = _decoding(make, [context] * rows, more_rows=64)
        self.rows, self.waiting = rows, waiting
        for _ in range(waiting):
            self.driver.submit(self.driver.prompt(context), FOREVER)
        self._check(self.driver.step())

    def repetition(self) -> float:
        plane = self.driver.plane
        for _ in range(WARM_UP):
            self.driver.step()
        total = 0
        for _ in range(self.steps):
            total += timed(plane.plan, plane.commit)
            plane.settle()
        self._check(plane.facts())
        return total / self.steps / 1_000

    def _check(self, facts: Facts) -> None:
        level = self.driver.plane.level()
        expect("rows", (facts.rows, facts.query_tokens), (self.rows, self.rows))
        expect("running and waiting", (level.running, level.waiting), (self.rows, self.waiting))


class Boundary:
    """The commit that fills a page of every row, and the plan that gives each its next one."""

    def __init__(self, make: MakePlane, rows: int, context: int) -> None:
        lengths = [context - rows + row for row in range(rows)]
        self.driver = _decoding(make, lengths)
        self.rows = rows
        self._go_to_boundary()

    def repetition(self) -> float:
        plane = self.driver.plane
        for _ in range(PAGE_SIZE - 2):
            self.driver.step()
        plane.plan()
        held = plane.level().held_pages
        spent = timed(plane.commit, plane.plan)
        expect("new pages", plane.level().held_pages - held, self.rows)
        self.driver.finish_step()
        return spent / 1_000

    def _go_to_boundary(self) -> None:
        for _ in range(2 * PAGE_SIZE):
            held = self.driver.plane.level().held_pages
            self.driver.step()
            if self.driver.plane.level().held_pages - held == self.rows:
                return
        raise StateError("the rows do not cross a page boundary together")


class Submit:
    """Handing over one prompt, an int32 array."""

    def __init__(self, make: MakePlane, tokens: int) -> None:
        self.driver = Driver(make(Sizes(pages=2 * pages_of(tokens), rows=8, step_tokens=8_192)))
        self._prompts = [self.driver.prompt(tokens) for _ in range(BURST)]

    def repetition(self) -> float:
        return sum(self._submit(prompt) for prompt in self._prompts) / BURST / 1_000

    def _submit(self, prompt: NDArray[np.int32]) -> int:
        requests: list[int] = []
        spent = timed(lambda: requests.append(self.driver.submit(prompt, 1)))
        expect("waiting", self.driver.plane.level().waiting, 1)
        self.driver.plane.abort(requests[0])
        return spent


class Admit:
    """The plan that admits a prompt whose first part is cached, and has room for all of it."""

    def __init__(self, make: MakePlane, tokens: int, hit: float) -> None:
        self.tokens = tokens
        self.cached = int(tokens * hit) // PAGE_SIZE * PAGE_SIZE
        self.driver = Driver(make(Sizes(pages=65_536, rows=8, step_tokens=8_192)))
        self._prefix = self.driver.prompt(self.cached)
        self.driver.serve(self._next_prompt())

    def repetition(self) -> float:
        return sum(self._admit() for _ in range(BURST)) / BURST / 1_000

    def _admit(self) -> int:
        spent = _timed_admission(self.driver, self._next_prompt())
        facts = self.driver.plane.facts()
        expect("uncached tokens", facts.query_tokens, self.tokens - self.cached)
        self.driver.finish_step()
        return spent

    def _next_prompt(self) -> NDArray[np.int32]:
        rest = self.driver.prompt(self.tokens - self.cached)
        return np.concatenate((self._prefix, rest))


class AdmitEvicting:
    """The plan that admits a new prompt, when every page of the pool is cached."""

    def __init__(self, make: MakePlane, pool: int, pages: int, session_tokens: int) -> None:
        self.pages = pages
        self.driver = Driver(make(Sizes(pages=pool, rows=8, step_tokens=65_536)))
        for _ in range(pool // pages_of(session_tokens) + 1):
            self.driver.serve(self.driver.prompt(session_tokens))
        empty = self.driver.plane.level().empty_pages
        expect("fewer empty pages than will be evicted", empty < pages, True)

    def repetition(self) -> float:
        return sum(self._admit() for _ in range(BURST)) / BURST / 1_000

    def _admit(self) -> int:
        before = self.driver.plane.level()
        new_pages = before.empty_pages + self.pages
        prompt = self.driver.prompt(new_pages * PAGE_SIZE - PAGE_SIZE // 2)
        spent = _timed_admission(self.driver, prompt)
        expect("new pages", self.driver.plane.level().held_pages - before.held_pages, new_pages)
        self.driver.finish_step()
        return spent


class WriteBack:
    """The plan that copies the pages of a computed prompt to a host tier that is full."""

    def __init__(self, make: MakePlane, tokens: int, host_pages: int) -> None:
        self.tokens = tokens
        sizes = Sizes(pages=65_536, rows=8, step_tokens=65_536, host_pages=host_pages)
        self.driver = Driver(make(sizes))
        for _ in range(host_pages // pages_of(tokens) + 1):
            self._write_back()

    def repetition(self) -> float:
        return sum(self._write_back(full=True) for _ in range(BURST)) / BURST / 1_000

    def _write_back(self, full: bool = False) -> int:
        """All plans that write back, usually one: it may come before or after the last token."""
        plane, wanted = self.driver.plane, pages_of(self.tokens)
        if full:
            expect("at most one host page is empty", plane.level().empty_host_pages <= 1, True)
        self.driver.submit(self.driver.prompt(self.tokens), 4)
        spent, stored = 0, 0
        for _ in range(16):
            nanoseconds = timed(plane.plan)
            pages = plane.facts().stored_pages
            spent, stored = spent + (nanoseconds if pages else 0), stored + pages
            self.driver.finish_step()
            level = plane.level()
            if stored >= wanted and level.running + level.waiting == 0:
                return spent
        raise StateError(f"{stored} of {wanted} pages were written back")


class Gauges:
    """Reading how many pages are free and how many are held, while rows decode."""

    reads = 100

    def __init__(self, make: MakePlane, rows: int, context: int) -> None:
        self.driver = _decoding(make, [context] * rows)

    def repetition(self) -> float:
        read = self.driver.plane.gauges
        return timed(*[read] * self.reads) / self.reads / 1_000


def _timed_admission(driver: Driver, prompt: NDArray[np.int32]) -> int:
    driver.submit(prompt, 1)
    spent = timed(driver.plane.plan)
    expect("rows", driver.plane.facts().rows, 1)
    return spent


def _decoding(make: MakePlane, lengths: list[int], more_rows: int = 0) -> Driver:
    """Rows that decode, and the pages that they will need, for FOREVER and no longer."""
    pages = sum(pages_of(length + FOREVER) for length in lengths)
    sizes = Sizes(pages=pages, rows=len(lengths) + more_rows, step_tokens=2 * max(lengths))
    driver = Driver(make(sizes))
    for length in lengths:
        driver.submit(driver.prompt(length), FOREVER)
        driver.step()
    driver.step()
    return driver
