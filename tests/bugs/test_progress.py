# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Nobody waits for ever, and one request's trouble is its own. Tests are named after ids in the
README beside them."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from harness import Answer, all_at_once, engine, greedy, submit
from moves import HookedDevice, unreliable
from safetensors.torch import load_file, save_file
from test_speculation import Knowing
from tokenspeed._scheduler import Finish
from tokenspeed.engine.speculation import Speculation
from tokenspeed.messages import Bias, EngineInput, Sampling
from tokenspeed_cpu.kernels import kernels
from tokenspeed_sdk.contracts.kernel import Binding, CallSite
from tokenspeed_sdk.contracts.platform import Device
from tokenspeed_sdk.contracts.probe import Accept

VOCABULARY = 97
POISON = 96
"""A token whose embedding is NaN in ``poisoned``."""


class OwnKernels:
    """The CPU's kernels, for all that they serve."""

    def bind(self, site: CallSite) -> Binding:
        kernel = next(each for each in kernels() if (each.op, each.name) == (site.op, "cpu"))
        assert isinstance(kernel.accept(site), Accept)
        return Binding("cpu", kernel.bind(site), partial(kernel.pack_weight, site))


def random_prompt(luck: random.Random, length: int) -> list[int]:
    return [luck.randrange(POISON) for _ in range(length)]


def test_c25_what_can_never_fit_blocks_nobody(tiny_llama: Path, cpu: Device) -> None:
    """49 pages; a prompt that needs 63, then a short one."""
    short = random_prompt(random.Random(25), 8)
    with engine(tiny_llama, cpu, pages=49) as built:
        mailbox = built.run(all_at_once([submit(1, [1] * 250, 4), submit(2, short, 4)]))
    (refused,) = (r for output in mailbox.outputs for r in output.rejected)
    assert refused.request == 1
    assert refused.needed > refused.available
    assert mailbox.answers[2].tokens == greedy(tiny_llama, short, 4)


def test_c27_priorities_and_slow_loads_leave_nobody_waiting(tiny_llama: Path, cpu: Device) -> None:
    """Everybody comes back twice, in any order of priority, while pages come from the host."""
    luck = random.Random(27)
    asked = [random_prompt(luck, 40) for _ in range(10)]
    slow = HookedDevice(cpu, unreliable(27, failing=0.1, longest=0.01))

    def script(step: int, answers: dict[int, Answer]) -> EngineInput | None:
        if step >= 90:
            done = sum(answer.finish != Finish.NONE for answer in answers.values())
            return EngineInput() if done < 30 else None
        if step % 3:
            return EngineInput()
        number = step // 3
        request = submit(number, asked[number % 10], 5)
        return EngineInput(
            submits=[msgspec.structs.replace(request, priority=luck.randrange(-3, 4))]
        )

    with engine(tiny_llama, cpu, pages=26, host_pages=120, mover_device=slow) as built:
        answers = built.run(script).answers
        assert built.scheduler.counters().loaded_pages > 0
    assert {answer.finish for answer in answers.values()} == {Finish.LENGTH}
    for number in (0, 13, 29):
        assert answers[number].tokens == greedy(tiny_llama, asked[number % 10], 5)


@pytest.mark.parametrize("device", ["delaying", "replaying"])
def test_c29_c30_one_long_request_among_many_short_ones(
    tiny_llama: Path, request: pytest.FixtureRequest, device: str
) -> None:
    """The pool holds hardly more than the long one: it gives way, and still ends, as all do."""
    chosen: Device = request.getfixturevalue(device)
    luck = random.Random(30)
    long, shorts = random_prompt(luck, 60), [random_prompt(luck, 12) for _ in range(24)]

    def script(step: int, _: dict[int, Answer]) -> EngineInput | None:
        if step == 0:
            return EngineInput(submits=[submit(99, long, 50)])
        if step <= 24:
            return EngineInput(submits=[submit(step, shorts[step - 1], 12)])
        return None

    with engine(tiny_llama, chosen, pages=31) as built:
        answers = built.run(script).answers
        counters = built.scheduler.counters()
    assert counters.retractions > 0
    assert answers[99].tokens == greedy(tiny_llama, long, 50)
    for number in range(1, 25, 6):
        assert answers[number].tokens == greedy(tiny_llama, shorts[number - 1], 12)
    assert {answer.updates_after_finish for answer in answers.values()} == {0}


def test_c51_a_step_all_of_whose_rows_are_aborted(tiny_llama: Path, delaying: Device) -> None:
    luck = random.Random(51)
    asked = [random_prompt(luck, 10) for _ in range(6)]

    def script(step: int, _: dict[int, Answer]) -> EngineInput | None:
        if step % 5 == 0 and step < 60:
            return EngineInput(submits=[submit(step * 10 + i, p, 30) for i, p in enumerate(asked)])
        if step % 5 == 3:
            return EngineInput(aborts=[(step - 3) * 10 + i for i in range(6)])
        if step == 66:
            return EngineInput(submits=[submit(999, asked[0], 6)])
        return EngineInput() if step < 66 else None

    with engine(tiny_llama, delaying) as built:
        answers = built.run(script).answers
        ledger = built.scheduler.ledger()
    assert answers[999].tokens == greedy(tiny_llama, asked[0], 6)
    assert ledger.balanced, ledger.detail
    assert ledger.active == 0


@pytest.fixture(scope="module")
def poisoned(tiny_llama_of_two: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a token that makes NaN of all that sees it."""
    folder = tmp_path_factory.mktemp("poisoned")
    shutil.copytree(tiny_llama_of_two, folder, dirs_exist_ok=True)
    tensors = load_file(tiny_llama_of_two / "model.safetensors")
    tensors["model.embed_tokens.weight"][POISON] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_c64_numbers_that_are_none_stay_with_their_request(
    tiny_llama_of_two: Path, poisoned: Path, delaying: Device
) -> None:
    """Beside it and, in its pages, after it, everybody is answered as if it had not been."""
    luck = random.Random(64)
    asked = [random_prompt(luck, luck.randrange(5, 30)) for _ in range(40)]
    wanted = [greedy(tiny_llama_of_two, prompt, 8) for prompt in asked]
    requests = []
    for i, prompt in enumerate(asked):
        requests.append(submit(i, prompt, 8))
        if i % 5 == 0:
            requests.append(submit(900 + i, [*random_prompt(luck, 12), POISON, 3], 8))
    with engine(poisoned, delaying, pages=44, kernels=OwnKernels()) as built:
        answers = built.run(all_at_once(requests)).answers
    assert {answers[900 + i].finish for i in range(0, 40, 5)} == {Finish.FAILED}
    unharmed = [i for i in range(40) if POISON not in wanted[i][:-1]]
    assert len(unharmed) > 20
    for i in unharmed:
        assert answers[i].tokens == wanted[i], i


@pytest.mark.parametrize("device", ["delaying", "replaying"])
def test_c64_numbers_that_are_none_behind_a_guess(
    poisoned: Path, request: pytest.FixtureRequest, device: str
) -> None:
    """A request that comes to say the token fails with guesses as without, at the latest where the
    token was drawn; nobody beside it is harmed."""
    chosen: Device = request.getfixturevalue(device)
    luck = random.Random(640)
    asked = [random_prompt(luck, 12) for _ in range(6)]
    never = (Bias(POISON, float("-inf"), 1 << 30),)
    doomed = (Bias(POISON, float("-inf"), 12 + 5), Bias(POISON, 1000.0, 1 << 30))
    biases = [doomed if i < 2 else never for i in range(6)]
    asks = [Sampling(0.0, -1, 1.0, 0.0, 0, biases=each) for each in biases]
    submits = [submit(i, asked[i], 20, sampling=asks[i]) for i in range(6)]
    with engine(poisoned, chosen, kernels=OwnKernels()) as built:
        plain = built.run(all_at_once(submits)).answers
    guesses = {i: [*answer.tokens, 3, 3] for i, answer in plain.items()}
    speculation = Speculation(Knowing(guesses, 0.0), 4, VOCABULARY)
    with engine(poisoned, chosen, row_tokens=5, kernels=OwnKernels()) as built:
        guessed = built.run(all_at_once(submits), speculation=speculation).answers
        assert built.scheduler.ledger().balanced
    assert speculation.accepted > 30
    for i in range(2):
        assert guessed[i].finish == plain[i].finish == Finish.FAILED
        assert plain[i].tokens[-1] == POISON
        assert guessed[i].tokens == plain[i].tokens[: len(guessed[i].tokens)]
    for i in range(2, 6):
        assert guessed[i].finish == Finish.LENGTH
        assert guessed[i].tokens == plain[i].tokens
