# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Our engine process under measurement: no front, no gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tokenspeed.config import EngineConfig
from tokenspeed.front.engine_client import EngineClient
from tokenspeed.front.generation import Generation
from tokenspeed.front.request import GenerationRequest, Limits, SamplingParams
from tokenspeed.process.launch import LaunchPlan, private_ipc, start_engine


class MeasuredEngine:
    """Runs prompts greedily for a fixed number of tokens and says how long it took."""

    def __init__(self, client: EngineClient, runner: asyncio.Runner) -> None:
        assert client.ready is not None
        self._client = client
        self._runner = runner
        self._limits = Limits(
            max_model_len=client.ready.max_model_len, vocab_size=client.ready.vocab_size
        )

    def decode(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        """Seconds for ``steps`` tokens of every prompt, from the last first token on."""
        times = self._run(prompts, steps + 1)
        return max(last for _, last in times) - max(first for first, _ in times)

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds from submission to the first token."""
        start = time.perf_counter()
        ((first, _),) = self._run([prompt], 1)
        return first - start

    def _run(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[tuple[float, float]]:
        """When the first and the last token of each came."""

        async def all_of_them() -> list[tuple[float, float]]:
            return await asyncio.gather(*(self._one(prompt, max_tokens) for prompt in prompts))

        return self._runner.run(all_of_them())

    async def _one(self, prompt: Sequence[int], max_tokens: int) -> tuple[float, float]:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        request = GenerationRequest.validated(prompt, params, self._limits)
        first = None
        with Generation(self._client, request) as generation:
            while not generation.done:
                await generation.next()
                first = first or time.perf_counter()
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
