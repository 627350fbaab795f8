# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Our engine process under measurement: no front, no gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import uvloop
from numpy.typing import NDArray
from tokenspeed_sdk.contracts.observer import Event, StepFinished

from tokenspeed.bench.answers import Answer
from tokenspeed.config import EngineConfig
from tokenspeed.front.engine_client import EngineClient
from tokenspeed.front.generation import Generation
from tokenspeed.front.request import GenerationRequest, Limits
from tokenspeed.front.sampling_params import SamplingParams
from tokenspeed.messages import Load
from tokenspeed.observe.events import EventStream
from tokenspeed.process.launch import LaunchPlan, private_ipc, start_engine

Result = TypeVar("Result")
Prompt = Sequence[int] | NDArray[np.int32]


@dataclass(frozen=True)
class DecodeSample:
    """A batch's decode: how long, in how many steps, and microseconds of the engine's own work."""

    seconds: float
    steps: int
    host_us: int


@dataclass(frozen=True)
class Work:
    """What the engine did between two looks.

    Attributes:
        steps, prefill_steps: how many ended, and how many of them with prompt tokens.
        prefill_s, decode_s: seconds of steps with prompt tokens, and of the others, each from when
            the device could begin it; what is left of the wall clock's time is between steps.
        decode_rows: sequences of all steps that took part with their last token.
        prompt_tokens, cached_tokens: of sequences that began; the latter were not computed.
    """

    steps: int
    prefill_steps: int
    prefill_s: float
    decode_s: float
    decode_rows: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    host_us: int

    @property
    def busy_s(self) -> float:
        """Seconds of all steps."""
        return self.prefill_s + self.decode_s


class MeasuredEngine:
    """Runs prompts greedily for a fixed number of tokens and says how long it took.

    Attributes:
        ready: what the engine said once it could serve.
    """

    def __init__(
        self, client: EngineClient, runner: asyncio.Runner, steps: list[StepFinished] | None = None
    ) -> None:
        assert client.ready is not None
        self.ready = client.ready
        self._client = client
        self._runner = runner
        self._steps = [] if steps is None else steps
        self._limits = Limits(
            max_model_len=client.ready.max_model_len, vocab_size=client.ready.vocab_size
        )

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of the pool for one token of context."""
        return self.ready.kv_bytes / (self.ready.total_pages * self.ready.page_size)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run what calls ``ask``."""
        return self._runner.run(work)

    def answers(self, prompts: Sequence[Prompt], max_tokens: int) -> list[Answer]:
        """Send all prompts at once and wait for all answers."""

        async def all_of_them() -> list[Answer]:
            return await asyncio.gather(*(self.ask(prompt, max_tokens) for prompt in prompts))

        return self.run(all_of_them())

    async def ask(
        self,
        prompt: Prompt,
        max_tokens: int,
        on_first: Callable[[], None] = lambda: None,
        *,
        stop_ids: Sequence[int] = (),
        salt: str | None = None,
    ) -> Answer:
        """``max_tokens`` tokens after a prompt, or as many as come before one of ``stop_ids``.

        ``on_first`` is called at the first. Requests of another ``salt`` share nothing with it.
        """
        answer = Answer(time.perf_counter(), prompt_tokens=len(prompt))
        params = SamplingParams(
            temperature=0,
            max_tokens=max_tokens,
            ignore_eos=True,
            stop_token_ids=stop_ids,
            salt=salt,
        )
        request = GenerationRequest.validated(prompt, params, self._limits)  # type: ignore[arg-type]
        with Generation(self._client, request) as generation:
            while not generation.done:
                news = await generation.next()
                answer.arrivals.append(time.perf_counter())
                if not answer.tokens:
                    on_first()
                for output in news:
                    answer.tokens += len(output.token_ids)
                    answer.token_ids += output.token_ids
                    answer.cached_tokens = output.cached_tokens
        return answer

    def guesses(self) -> tuple[int, int]:
        """Guesses at tokens that were verified so far, and those that were right."""
        return self._client.load.drafted_tokens, self._client.load.accepted_tokens

    def look(self) -> Callable[[], Work]:
        """Begin to watch; the call returned says what was done since."""
        begun, first = self._client.load, len(self._steps)

        def done() -> Work:
            now, steps = self._client.load, self._steps[first:]
            return Work(
                steps=len(steps),
                prefill_steps=sum(step.prefill_tokens > 0 for step in steps),
                prefill_s=sum(step.seconds for step in steps if step.prefill_tokens),
                decode_s=sum(step.seconds for step in steps if not step.prefill_tokens),
                decode_rows=sum(step.decode_rows for step in steps),
                prompt_tokens=now.prompt_tokens - begun.prompt_tokens,
                cached_tokens=now.cached_tokens - begun.cached_tokens,
                output_tokens=now.output_tokens - begun.output_tokens,
                host_us=now.host_us - begun.host_us,
            )

        return done

    def decode(self, prompts: Sequence[Prompt], steps: int) -> float:
        """Seconds for ``steps`` tokens of every prompt, from the last first token on."""
        return self.decode_sample(prompts, steps).seconds

    def decode_sample(self, prompts: Sequence[Prompt], steps: int) -> DecodeSample:
        """The same, with what the engine's loop itself did meanwhile."""
        begun: list[Load] = []

        async def all_of_them() -> list[Answer]:
            each = (self.ask(prompt, steps + 1, note) for prompt in prompts)
            return await asyncio.gather(*each)

        def note() -> None:
            begun.append(self._client.load)

        answers = self.run(all_of_them())
        before, after = begun[-1], self._client.load
        return DecodeSample(
            seconds=max(a.ended for a in answers) - max(a.arrivals[0] for a in answers),
            steps=after.steps - before.steps,
            host_us=after.host_us - before.host_us,
        )

    def prefill(self, prompt: Prompt) -> float:
        """Seconds from submission to the first token."""
        (answer,) = self.answers([prompt], 1)
        return answer.ttft


@contextmanager
def measured_engine(plan: LaunchPlan) -> Iterator[MeasuredEngine]:
    """A running engine; stopped when the block is left. Use from the main thread."""
    steps: list[StepFinished] = []

    def note(event: Event) -> None:
        if isinstance(event, StepFinished):
            steps.append(event)

    events = EventStream(plan.front.served_model_name)
    events.add(note)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        client = EngineClient(plan.ipc, events)
        runner.run(client.__aenter__())
        try:
            with start_engine(plan):
                runner.run(client.wait_ready())
                yield MeasuredEngine(client, runner, steps)
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
