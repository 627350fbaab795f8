# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Our engine process under measurement: no front, no gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tokenspeed.config import EngineConfig
from tokenspeed.front.engine_client import EngineClient
from tokenspeed.front.generation import Generation
from tokenspeed.front.request import GenerationRequest, Limits, SamplingParams
from tokenspeed.messages import Load
from tokenspeed.process.launch import LaunchPlan, private_ipc, start_engine


@dataclass(frozen=True)
class DecodeSample:
    """A batch's decode: how long, in how many steps, and microseconds of the engine's own work."""

    seconds: float
    steps: int
    host_us: int


class MeasuredEngine:
    """Runs prompts greedily for a fixed number of tokens and says how long it took.

    Attributes:
        ready: what the engine said once it could serve.
    """

    def __init__(self, client: EngineClient, runner: asyncio.Runner) -> None:
        assert client.ready is not None
        self.ready = client.ready
        self._client = client
        self._runner = runner
        self._limits = Limits(
            max_model_len=client.ready.max_model_len, vocab_size=client.ready.vocab_size
        )

    def decode(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        """Seconds for ``steps`` tokens of every prompt, from the last first token on."""
        times = self._run(prompts, steps + 1)
        return max(last for _, last in times) - max(first for first, _ in times)

    def decode_sample(self, prompts: Sequence[Sequence[int]], steps: int) -> DecodeSample:
        """The same, with what the engine's loop itself did meanwhile."""
        begun: list[Load] = []
        times = self._run(prompts, steps + 1, lambda: begun.append(self._client.load))
        before, after = begun[-1], self._client.load
        return DecodeSample(
            seconds=max(last for _, last in times) - max(first for first, _ in times),
            steps=after.steps - before.steps,
            host_us=after.host_us - before.host_us,
        )

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds from submission to the first token."""
        start = time.perf_counter()
        ((first, _),) = self._run([prompt], 1)
        return first - start

    def _run(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        on_first: Callable[[], None] = lambda: None,
    ) -> list[tuple[float, float]]:
        """When the first and the last token of each came; ``on_first`` is called at each first."""

        async def all_of_them() -> list[tuple[float, float]]:
            each = (self._one(prompt, max_tokens, on_first) for prompt in prompts)
            return await asyncio.gather(*each)

        return self._runner.run(all_of_them())

    async def _one(
        self, prompt: Sequence[int], max_tokens: int, on_first: Callable[[], None]
    ) -> tuple[float, float]:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        request = GenerationRequest.validated(prompt, params, self._limits)
        first = None
        with Generation(self._client, request) as generation:
            while not generation.done:
                await generation.next()
                if first is None:
                    first = time.perf_counter()
                    on_first()
        assert first is not None
        return first, time.perf_counter()


@contextmanager
def measured_engine(plan: LaunchPlan) -> Iterator[MeasuredEngine]:
    """A running engine; stopped when the block is left. Use from the main thread."""
    with asyncio.Runner() as runner:
        client = EngineClient(plan.ipc)
        runner.run(client.__aenter__())
        try:
            with start_engine(plan):
                runner.run(client.wait_ready())
                yield MeasuredEngine(client, runner)
        finally:
            runner.run(client.__aexit__())


@contextmanager
def launch_plan(config: EngineConfig) -> Iterator[LaunchPlan]:
    """The plan of an engine alone, with an address of its own."""
    from tokenspeed.config import FrontConfig
    from tokenspeed.process.launch import plan_launch

    front = FrontConfig(model=config.model, served_model_name="bench")
    with private_ipc() as ipc:
        yield plan_launch(config, front, ipc)
