# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The loop, the executor and the scheduler together, on a tiny model, against Transformers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from harness import CONTEXT, Answer, all_at_once, engine, greedy, submit
from tokenspeed._scheduler import Finish
from tokenspeed.messages import EngineInput, Sampling
from tokenspeed_sdk.contracts.platform import Device
from tokenspeed_sdk.testing.platform.devices import ReplayingDevice


def prompts(count: int, *, seed: int = 0, shortest: int = 3, longest: int = 90) -> list[list[int]]:
    rng = random.Random(seed)
    return [
        [rng.randrange(97) for _ in range(rng.randint(shortest, longest))] for _ in range(count)
    ]


@pytest.mark.parametrize("max_step_tokens", [9, 64], ids=["chunked", "whole"])
@pytest.mark.parametrize("prefix_cache", [True, False], ids=["prefix", "no-prefix"])
@pytest.mark.parametrize("device", ["cpu", "delaying", "replaying"])
def test_answers_equal_transformers(
    tiny_llama: Path,
    request: pytest.FixtureRequest,
    device: str,
    prefix_cache: bool,
    max_step_tokens: int,
) -> None:
    chosen: Device = request.getfixturevalue(device)
    asked = prompts(6)
    with engine(
        tiny_llama, chosen, prefix_cache=prefix_cache, max_step_tokens=max_step_tokens
    ) as built:
        mailbox = built.run(all_at_once([submit(i, p, 12) for i, p in enumerate(asked)]))
    for i, prompt in enumerate(asked):
        assert mailbox.answers[i].tokens == greedy(tiny_llama, prompt, 12)
        assert mailbox.answers[i].finish == Finish.LENGTH


def test_hits_equal_misses(tiny_llama: Path, delaying: Device) -> None:
    """The same prompt four times, with other traffic between, gives the same answer."""
    prompt = prompts(1, seed=5, shortest=60, longest=60)[0]
    others = prompts(8, seed=6)

    def script(step: int, answers: dict[int, Answer]) -> EngineInput | None:
        done = sum(answer.finish != Finish.NONE for answer in answers.values())
        turn, over = divmod(done, 3)
        if over or turn >= 4 or len(answers) > done or step % 2:
            return EngineInput() if done < 12 else None
        noise = [submit(100 + 2 * turn + k, others[2 * turn + k], 5) for k in range(2)]
        return EngineInput(submits=[submit(turn, prompt, 10), *noise])

    sent: set[int] = set()

    def once(step: int, answers: dict[int, Answer]) -> EngineInput | None:
        message = script(step, answers)
        if message and message.submits:
            if message.submits[0].request in sent:
                return EngineInput()
            sent.add(message.submits[0].request)
        return message

    with engine(tiny_llama, delaying) as built:
        answers = built.run(once).answers
    expected = greedy(tiny_llama, prompt, 10)
    assert [answers[turn].tokens for turn in range(4)] == [expected] * 4
    assert answers[0].cached_tokens == 0
    assert [answers[turn].cached_tokens for turn in (1, 2, 3)] == [59] * 3  # all but the last token


def test_a_running_prompt_serves_its_twin(tiny_llama: Path, delaying: Device) -> None:
    """A twin sent while the first still prefills gets every full page of it."""
    prompt = prompts(1, seed=8, shortest=81, longest=81)[0]

    def script(step: int, _: dict[int, Answer]) -> EngineInput | None:
        if step in (0, 2):
            return EngineInput(submits=[submit(step, prompt, 6)])
        return EngineInput() if step < 4 else None

    with engine(tiny_llama, delaying, max_step_tokens=8) as built:
        answers = built.run(script).answers
    assert answers[0].cached_tokens == 0
    assert answers[2].cached_tokens == 80
    assert answers[0].tokens == answers[2].tokens


def test_stop_ids_and_lengths(tiny_llama: Path, delaying: Device) -> None:
    prompt = prompts(1, seed=9)[0]
    free = greedy(tiny_llama, prompt, 12)
    stop = free[5]
    expected = free[: free.index(stop) + 1]
    with engine(tiny_llama, delaying) as built:
        answers = built.run(
            all_at_once([submit(1, prompt, 12, stop_ids=[stop]), submit(2, prompt, 1)])
        ).answers
    assert answers[1].tokens == expected
    assert answers[1].finish == Finish.STOP
    assert answers[2].tokens == free[:1]
    assert answers[2].finish == Finish.LENGTH


def test_a_draw_depends_on_seed_and_position_alone(tiny_llama: Path, delaying: Device) -> None:
    """The same seeded request alone and beside others, and two seeds that differ."""
    prompt = prompts(1, seed=10)[0]
    drawn = Sampling(1.0, 40, 0.95, 0.0, seed=(1 << 63) + 11)
    other = Sampling(1.0, 40, 0.95, 0.0, seed=12)
    crowd = [submit(10 + i, p, 9) for i, p in enumerate(prompts(5, seed=11))]
    with engine(tiny_llama, delaying) as built:
        alone = built.run(all_at_once([submit(1, prompt, 12, sampling=drawn)])).answers[1]
        answers = built.run(
            all_at_once(
                [*crowd, submit(2, prompt, 12, sampling=drawn), submit(3, prompt, 12, (), other)]
            )
        ).answers
    assert answers[2].tokens == alone.tokens
    assert answers[3].tokens != alone.tokens


def test_a_pool_too_small_for_all_retracts_and_answers_all(
    tiny_llama: Path, delaying: Device
) -> None:
    asked = prompts(8, seed=12, shortest=20, longest=40)
    with engine(tiny_llama, delaying, pages=24) as built:
        answers = built.run(all_at_once([submit(i, p, 40) for i, p in enumerate(asked)])).answers
        retractions = built.scheduler.counters().retractions
        ledger = built.scheduler.ledger()
    assert retractions > 0
    for i, prompt in enumerate(asked):
        assert answers[i].tokens == greedy(tiny_llama, prompt, 40)
    assert ledger.balanced, ledger.detail
    assert ledger.free + ledger.cached == ledger.total


def test_a_prompt_that_never_fits_is_refused_and_hurts_nobody(
    tiny_llama: Path, cpu: Device
) -> None:
    fits, long = prompts(1, seed=13, shortest=8, longest=8)[0], [1] * 100
    with engine(tiny_llama, cpu, pages=24) as built:
        mailbox = built.run(all_at_once([submit(1, long, 4), submit(2, fits, 4)]))
    refused = [r for output in mailbox.outputs for r in output.rejected]
    assert [(r.request, r.reason) for r in refused] in (
        [(1, "never_fits")],
        [(1, "too_long")],
    )
    assert refused[0].needed > refused[0].available
    assert mailbox.answers[2].tokens == greedy(tiny_llama, fits, 4)


def test_a_thousand_aborts_at_random_points(tiny_llama: Path, delaying: Device) -> None:
    """Requests come and are aborted at random steps; the others are answered as if alone."""
    rng = random.Random(14)
    asked = prompts(12, seed=15, shortest=4, longest=30)
    expected = [greedy(tiny_llama, p, 10) for p in asked]
    alive: dict[int, int] = {}
    kept: set[int] = set()
    count = aborted = 0

    def script(_: int, answers: dict[int, Answer]) -> EngineInput | None:
        nonlocal count, aborted
        for request in [r for r in alive if answers.get(r, Answer()).finish != Finish.NONE]:
            del alive[request]
        if aborted >= 1000:
            return EngineInput() if alive.keys() & kept else None
        message = EngineInput()
        while len(alive) < 8:
            alive[count] = rng.randrange(len(asked))
            message.submits.append(submit(count, asked[alive[count]], 10))
            if rng.random() < 0.2:
                kept.add(count)
            count += 1
        victims = [r for r in alive if r not in kept and rng.random() < 0.5]
        message.aborts += victims
        aborted += len(victims)
        which.update(alive)
        return message

    which: dict[int, int] = {}
    with engine(tiny_llama, delaying, pages=40, max_seqs=6, max_step_tokens=16) as built:
        answers = built.run(script).answers
        ledger = built.scheduler.ledger()
        gauges = built.scheduler.gauges()
    assert ledger.balanced, ledger.detail
    assert (gauges.running, gauges.waiting, gauges.draining) == (0, 0, 0)
    assert len(kept) > 50
    for request, answer in answers.items():
        right = expected[which[request]]
        assert answer.updates_after_finish == 0
        assert answer.finish in (Finish.LENGTH, Finish.ABORTED)
        assert answer.tokens == right[: len(answer.tokens)]
        if request in kept:
            assert answer.tokens == right


def test_graphs_of_growing_and_shrinking_batches(
    tiny_llama: Path, replaying: ReplayingDevice
) -> None:
    """Requests of random lengths come and go; each is answered as if alone, mostly by graphs."""
    rng = random.Random(16)
    asked = prompts(24, seed=17, shortest=2, longest=30)
    lengths = [rng.randint(2, 24) for _ in asked]

    def script(step: int, _: dict[int, Answer]) -> EngineInput | None:
        which = step // 3
        if which >= len(asked):
            return None
        come = [submit(which, asked[which], lengths[which])] if step % 3 == 0 else []
        return EngineInput(submits=come)

    with engine(tiny_llama, replaying, pages=60, max_seqs=7) as built:
        answers = built.run(script).answers
    for i, prompt in enumerate(asked):
        assert answers[i].tokens == greedy(tiny_llama, prompt, lengths[i])
    assert sum(count > 0 for count in replaying.replays) >= 3


def test_the_context_is_a_hard_end(tiny_llama: Path, cpu: Device) -> None:
    prompt = [3] * (CONTEXT - 4)
    with engine(tiny_llama, cpu) as built:
        answers = built.run(all_at_once([submit(1, prompt, 4)])).answers
    assert len(answers[1].tokens) == 4
    assert answers[1].finish == Finish.LENGTH
