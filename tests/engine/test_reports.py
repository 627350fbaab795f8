# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the loop tells of starts and steps, against what it was asked and what it answered."""

from __future__ import annotations

import random
import time
from pathlib import Path

from harness import Answer, ScriptedMailbox, all_at_once, engine, submit
from tokenspeed._scheduler import Finish
from tokenspeed.messages import EngineInput, Started, StepReport
from tokenspeed_sdk.contracts.platform import Device


def started(mailbox: ScriptedMailbox) -> list[Started]:
    return [one for output in mailbox.outputs for one in output.started]


def steps(mailbox: ScriptedMailbox) -> list[StepReport]:
    return [one for output in mailbox.outputs for one in output.steps]


def prompts(count: int, length: int) -> list[list[int]]:
    luck = random.Random(5)
    return [[luck.randrange(97) for _ in range(length)] for _ in range(count)]


def test_steps_add_up(tiny_llama: Path, delaying: Device) -> None:
    """Every prompt token and every next token is computed in one step, and steps don't overlap."""
    asked, count = prompts(6, 20), 9
    before = time.monotonic()
    with engine(tiny_llama, delaying, prefix_cache=False, max_step_tokens=32) as built:
        mailbox = built.run(all_at_once([submit(i, p, count) for i, p in enumerate(asked)]))
    took_us = (time.monotonic() - before) * 1e6
    told = steps(mailbox)
    assert sum(step.prefill_tokens for step in told) == 6 * 20
    assert sum(step.decode_rows for step in told) == 6 * (count - 1), "the first is the prompt's"
    assert all(step.duration_us > 0 for step in told)
    assert sum(step.duration_us for step in told) < took_us


def test_a_start_is_told_once_and_with_what_was_cached(tiny_llama: Path, delaying: Device) -> None:
    """Also of requests that are retracted, and admitted again with their own pages cached."""
    asked = prompts(6, 24)
    requests = [submit(i, p, 30) for i, p in enumerate([*asked, asked[0]])]
    before_us = time.monotonic_ns() // 1000

    def script(step: int, answers: dict[int, Answer]) -> EngineInput | None:
        if step == 0:
            return EngineInput(submits=requests[:-1])
        over = sum(answer.finish != Finish.NONE for answer in answers.values())
        if over == 6 and len(answers) == 6:
            return EngineInput(submits=requests[-1:])
        return None if over else EngineInput()

    with engine(tiny_llama, delaying, pages=28, page_size=4) as built:
        mailbox = built.run(script)
    assert mailbox.outputs[-1].load.retractions > 0
    told = {one.request: one for one in started(mailbox)}
    assert len(started(mailbox)) == len(told) == len(requests)
    for request, one in told.items():
        assert one.cached_tokens == mailbox.answers[request].cached_tokens
        assert before_us <= one.at_us <= time.monotonic_ns() // 1000
    assert [told[i].at_us for i in range(6)] == sorted(told[i].at_us for i in range(6))


def test_an_abort_before_the_start_is_no_start(tiny_llama: Path, delaying: Device) -> None:
    asked = prompts(3, 20)

    def script(step: int, answers: dict[int, Answer]) -> EngineInput | None:
        if step == 0:
            return EngineInput(submits=[submit(i, p, 20) for i, p in enumerate(asked)])
        return EngineInput(aborts=[2]) if step == 1 else None

    with engine(tiny_llama, delaying, max_seqs=2) as built:
        mailbox = built.run(script)
    assert mailbox.answers[2].finish == Finish.ABORTED
    assert sorted(one.request for one in started(mailbox)) == [0, 1]
