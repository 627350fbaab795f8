# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Generate without a server.

    from tokenspeed import LLM, SamplingParams

    with LLM("models/smollm2") as llm:
        [answer] = llm.generate("The capital of France is", SamplingParams(max_tokens=8))
        print(answer.text)

The engine runs in a process of its own; requests go through the same checks as in a server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tokenspeed.config import EngineConfig, FrontConfig
from tokenspeed.front.chat_template import ChatTemplate, Message
from tokenspeed.front.engine_client import EngineClient
from tokenspeed.front.errors import Amount, EngineGone, InvalidRequest, RequestError
from tokenspeed.front.generation import FinishReason, Generation, Output
from tokenspeed.front.grammars import Grammars
from tokenspeed.front.logprobs import PromptLogprobs, TokenLogprobs
from tokenspeed.front.loop_thread import LoopThread
from tokenspeed.front.model_folder import ModelFolder
from tokenspeed.front.request import GenerationRequest, Limits
from tokenspeed.front.sampling_params import SamplingParams

if TYPE_CHECKING:
    from tokenspeed.messages import EngineReady
    from tokenspeed.plugins.plan import PluginPlan
    from tokenspeed.process.spawn import Child

__all__ = [
    "LLM",
    "Completion",
    "InvalidRequest",
    "Message",
    "Output",
    "RequestError",
    "SamplingParams",
    "TokenLogprobs",
]

Prompt = str | Sequence[int]

_POLL_S = 0.05
_LAST_WORDS_S = 2.0
_QUEUED_PER_SLOT = 2
"""Requests in the engine per sequence that may run: enough that it never waits for this process."""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One answer.

    Attributes:
        prompt_index, index: which prompt, and which of its n answers.
        text: without special tokens and without the stop string.
        token_ids: without the stop token, up to the token that completed a stop string.
        cached_tokens: prompt tokens that were not computed.
        logprobs: of each of ``token_ids``; None unless they were asked for.
        prompt_logprobs: of each token of the prompt, None for the first; likewise.
    """

    prompt_index: int
    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class LLM:
    """An engine for this program alone.

    Make it in the main thread: the kernel ends the engine when the thread that started it ends.
    """

    def __init__(self, model: str | PathLike[str], **engine_options: Any) -> None:
        """Start the engine and wait until it can serve.

        Args:
            model: folder with config.json, weights and tokenizer.
            engine_options: fields of EngineConfig, such as ``max_model_len`` or ``dtype``.

        Raises:
            TypeError: an option that EngineConfig does not have.
            ConfigError: an option that is out of its range.
            FileNotFoundError, ValueError: a file of the model that is missing or broken.
            RuntimeError: the engine ended while it loaded; the text says why.
        """
        config = EngineConfig(model=str(Path(model).expanduser().resolve()), **engine_options)
        self._folder = ModelFolder(config.model)
        self._folder.architectures  # noqa: B018 (the engine needs them: refused before it starts)
        self._tokenizer = self._folder.tokenizer
        with ExitStack() as stack:
            self._loop = stack.enter_context(LoopThread())
            stack.callback(lambda: self._loop.run(_cancel_others()))
            self._client, self._child, plugins = self._start(config, stack)
            ready = self._wait_ready()
            # No bound of its own: a list of prompts waits for its places.
            self._grammars = Grammars(plugins, self._folder, ready.vocab_size, max_waiting=None)
            self._loop.run(self._grammars.__aenter__())
            stack.callback(lambda: self._loop.run(self._grammars.__aexit__()))
            self._limits = Limits(
                max_model_len=ready.max_model_len,
                vocab_size=ready.vocab_size,
                eos_ids=self._folder.eos_ids(ready.vocab_size),
            )
            self._max_queued = _QUEUED_PER_SLOT * ready.max_num_seqs
            self._stack = stack.pop_all()
            self._closed = False

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] = SamplingParams(),  # noqa: B008 (frozen)
    ) -> list[Completion]:
        """Answer all prompts: the n answers to the first, then those to the second, ...

        Raises:
            InvalidRequest: before anything runs, if any prompt or parameter is out of range.
            RequestError: the first one that a request failed with; the others are stopped.
            RuntimeError: after ``close``.
        """
        requests = self._requests(prompts, sampling)
        answers = self._loop.run(self._generate_all(requests))
        return [completion for answer in answers for completion in answer]

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
    ) -> Iterator[Output]:
        """The answer in pieces, as they come. Leaving the iterator stops the engine's work."""
        [request] = self._requests([prompt], sampling)
        if sampling.prompt_logprobs is not None:
            raise InvalidRequest(
                "prompt_logprobs", sampling.prompt_logprobs, "None in a stream; generate tells them"
            )
        return self._stream(request)

    def chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
    ) -> list[Completion]:
        """The next message of a conversation, by the model's own chat template."""
        return self.generate([self.chat_prompt(messages)], sampling)

    def chat_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation up to where the model answers."""
        text = ChatTemplate.of(self._folder).render(messages)
        return self._encode(text, add_special_tokens=False)

    def close(self) -> None:
        """End the engine. Idempotent."""
        self._closed = True
        self._stack.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _start(
        self, config: EngineConfig, stack: ExitStack
    ) -> tuple[EngineClient, Child, PluginPlan]:
        from tokenspeed.process.launch import plan_launch, private_ipc, start_engine

        front = FrontConfig(model=config.model, served_model_name=Path(config.model).name)
        plan = plan_launch(config, front, stack.enter_context(private_ipc()))
        client = EngineClient(plan.ipc)
        self._loop.run(client.__aenter__())
        stack.callback(lambda: self._loop.run(client.__aexit__()))
        return client, stack.enter_context(start_engine(plan)), plan.plugins

    def _wait_ready(self) -> EngineReady:
        ready = self._loop.submit(self._client.wait_ready())
        while not ready.done() and self._child.failure() is None:
            time.sleep(_POLL_S)
        try:
            return ready.result(timeout=0)
        except (EngineGone, TimeoutError) as error:
            ready.cancel()
            raise RuntimeError(f"the engine did not start: {self._why(error)}") from None

    def _why(self, otherwise: Exception) -> str:
        """The engine's own words, which come a moment later than its end."""
        give_up = time.monotonic() + _LAST_WORDS_S
        while (failure := self._child.failure()) is None and time.monotonic() < give_up:
            time.sleep(_POLL_S)
        return failure or str(otherwise)

    def _requests(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams],
    ) -> list[GenerationRequest]:
        self._check_open()
        many = _as_many(prompts)
        if isinstance(sampling, SamplingParams):
            sampling = [sampling] * len(many)
        if not isinstance(sampling, Sequence) or not all(
            isinstance(each, SamplingParams) for each in sampling
        ):
            raise InvalidRequest("sampling", sampling, "SamplingParams, or a list of them")
        each = list(sampling)
        if len(each) != len(many):
            raise InvalidRequest("sampling", Amount(f"{len(each)} of them"), f"one, or {len(many)}")
        return [
            self._request(i, prompt, params)
            for i, (prompt, params) in enumerate(zip(many, each, strict=True))
        ]

    def _request(self, index: int, prompt: Prompt, params: SamplingParams) -> GenerationRequest:
        try:
            ids = self._encode(prompt) if isinstance(prompt, str) else prompt
            return GenerationRequest.validated(ids, params, self._limits)
        except InvalidRequest as error:
            error.add_note(f"in prompt {index}")
            raise

    def _encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest("prompt", text, "text without lone surrogates") from error
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this LLM is closed; make another one")

    def _stream(self, request: GenerationRequest) -> Iterator[Output]:
        self._check_open()

        async def generate(emit: Callable[[Output], None]) -> None:
            await self._generate(request, emit)

        pieces: Iterator[Output] = self._loop.iterate(generate)
        yield from pieces

    async def _generate_all(self, requests: list[GenerationRequest]) -> list[list[Completion]]:
        places = asyncio.Semaphore(self._max_queued)

        async def one(index: int, request: GenerationRequest) -> list[Completion]:
            answers = [_Answer(index, i, request) for i in range(request.n)]
            async with places:
                of_prompt = await self._generate(
                    request, lambda output: answers[output.index].add(output)
                )
            return [answer.completion(of_prompt) for answer in answers]

        tasks = [asyncio.create_task(one(i, request)) for i, request in enumerate(requests)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _generate(
        self, request: GenerationRequest, emit: Callable[[Output], None]
    ) -> PromptLogprobs | None:
        request = await request.compiled_with(self._grammars)
        with Generation(self._client, request, tokenizer=self._tokenizer) as generation:
            while not generation.done:
                for output in await generation.next():
                    emit(output)
            return generation.prompt_logprobs


async def _cancel_others() -> None:
    """End what still runs on this loop, so that nobody waits for it when the loop has stopped."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Answer:
    """Gathers the pieces of one sequence."""

    def __init__(self, prompt_index: int, index: int, request: GenerationRequest) -> None:
        self._prompt_index = prompt_index
        self._index = index
        self._prompt_tokens = request.prompt_tokens
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] | None = [] if request.sampling.logprobs >= 0 else None

    def add(self, output: Output) -> None:
        self._texts.append(output.text)
        self._token_ids += output.token_ids
        if self._logprobs is not None:
            self._logprobs += output.logprobs
        self._last = output

    def completion(self, of_prompt: PromptLogprobs | None) -> Completion:
        assert self._last.finish_reason is not None
        return Completion(
            prompt_index=self._prompt_index,
            index=self._index,
            text="".join(self._texts),
            token_ids=self._token_ids,
            finish_reason=self._last.finish_reason,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._last.completion_tokens,
            cached_tokens=self._last.cached_tokens,
            logprobs=self._logprobs,
            prompt_logprobs=of_prompt,
        )


def _as_many(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One text or one list of ids is one prompt."""
    number = isinstance(prompts, np.ndarray) and prompts.ndim == 0
    if number or not isinstance(prompts, Sequence | np.ndarray):
        raise InvalidRequest("prompts", prompts, "a text, token ids, or a list of these")
    if isinstance(prompts, str) or (len(prompts) and isinstance(prompts[0], int | np.integer)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
