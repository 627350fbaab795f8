# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""One request from submission to its last token, for the gRPC service and the offline API alike."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from tokenspeed.front.detokenizer import PROMPT_TAIL, Detokenizer
from tokenspeed.front.errors import DeadlineExceeded
from tokenspeed.front.finish import Finish
from tokenspeed.front.stop import StopMatcher

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tokenspeed.front.engine_client import EngineClient
    from tokenspeed.front.errors import RequestError
    from tokenspeed.front.logprobs import PromptLogprobs, TokenLogprobs
    from tokenspeed.front.request import GenerationRequest
    from tokenspeed.front.stream import Delta
    from tokenspeed.observe.events import RequestRecord

FinishReason = Literal["stop", "length", "abort"]

_REASONS: dict[Finish, FinishReason] = {
    Finish.STOP: "stop",
    Finish.LENGTH: "length",
    Finish.ABORTED: "abort",
}


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """News of one sequence.

    Attributes:
        index: which of the request's n sequences.
        token_ids: new ids. When a stop string ends the answer, the last one completes the string,
            whatever else came in the same step.
        text: new text; always empty for a request whose text nobody here needs.
        completion_tokens: tokens so far, a stop token that is not delivered included.
        finish_reason: None while it goes on.
        stop_token, stop_string: what ended the answer.
        logprobs: of each of ``token_ids``; empty unless the request asks.
    """

    index: int
    token_ids: list[int]
    text: str
    completion_tokens: int
    cached_tokens: int
    finish_reason: FinishReason | None
    stop_token: int | None
    stop_string: str | None
    logprobs: list[TokenLogprobs] = []


class Generation:
    """A request that runs while its ``with`` block does; leaving it aborts what has not ended.

    with Generation(client, request, tokenizer=tokenizer) as generation:
        while not generation.done:
            for output in await generation.next():
                ...

    Attributes:
        prompt_logprobs: complete once the first sequence has an output; None unless the request
            asks.
    """

    def __init__(
        self,
        client: EngineClient,
        request: GenerationRequest,
        *,
        tokenizer: Tokenizer | None = None,
        timeout_s: float | None = None,
        record: RequestRecord | None = None,
    ) -> None:
        """Without ``tokenizer`` no text is made and the request must have no stop strings.

        The engine keeps the timeout; a caller that does not trust it has one of its own. Progress
        is noted in ``record``; the outcome is the caller's to note.
        """
        assert tokenizer is not None or not request.stop
        self._client = client
        self._request = request
        self._timeout_s = timeout_s
        self._record = record
        asks = request.sampling.prompt_logprobs >= 0
        self.prompt_logprobs: PromptLogprobs | None
        self.prompt_logprobs = [None] * request.prompt_tokens if asks else None
        texts = [_Text(tokenizer, request) if tokenizer else None for _ in range(request.n)]
        self._running = {i: _Sequence(i, request, text) for i, text in enumerate(texts)}

    def __enter__(self) -> Generation:
        timeout = self._timeout_s
        deadline_ms = 0 if timeout is None else int((time.monotonic() + timeout) * 1000)
        self._stream = self._client.open(self._request, deadline_ms, self._record)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.close()

    @property
    def done(self) -> bool:
        """Whether every sequence has ended."""
        return not self._running

    async def next(self) -> list[Output]:
        """News of at least one sequence. Raises the RequestError that any of them failed with."""
        while True:
            news = [delta for delta in await self._stream.take() if delta.index in self._running]
            for delta in news:
                self._read_prompt(delta)
            answers = [delta for delta in news if delta.is_about_the_answer]
            if answers or not news:
                return [self._advance(delta) for delta in answers]

    def _read_prompt(self, delta: Delta) -> None:
        if self.prompt_logprobs is not None:
            for position, found in delta.prompt_logprobs.items():
                self.prompt_logprobs[position] = found

    def abort(self) -> None:
        """End all sequences now with reason "abort"; the engine follows."""
        for index in self._running:
            news = self._stream.news_of(index)
            if news.finish == Finish.NONE:
                news.finish = Finish.ABORTED
            self._stream.abort(index)

    def fail(self, error: RequestError) -> None:
        """End it with an error, behind the news that there are."""
        self._stream.fail(error)

    def _advance(self, delta: Delta) -> Output:
        if delta.error is not None:
            raise delta.error
        if delta.finish == Finish.EXPIRED:
            raise DeadlineExceeded(self._timeout_s or 0.0, by_engine=True)
        output = self._running[delta.index].advance(delta)
        if output.finish_reason is not None:
            self._stream.abort(delta.index)  # ends it in the engine when a stop string matched
            del self._running[delta.index]
        return output


class _Sequence:
    """Counts a sequence's tokens and decides where it ends."""

    def __init__(self, index: int, request: GenerationRequest, text: _Text | None) -> None:
        self._index = index
        self._keep_stop_token = request.keep_stop_token
        self._text = text
        self._completion_tokens = 0

    def advance(self, delta: Delta) -> Output:
        tokens = delta.tokens
        reason = _REASONS.get(delta.finish)
        stop_token = delta.stop_token if delta.finish == Finish.STOP else None
        stopped = stop_token is not None and tokens[-1:] == [stop_token]
        hidden = 1 if stopped and not self._keep_stop_token else 0
        shown = tokens[: len(tokens) - hidden]
        text, stop_string = "", None
        if self._text is not None:
            taken, text = self._text.push(shown, last=reason is not None)
            stop_string = self._text.stop_string
            if stop_string is not None:
                shown, hidden, reason, stop_token = shown[:taken], 0, "stop", None
        self._completion_tokens += len(shown) + hidden
        return Output(
            index=self._index,
            token_ids=shown,
            text=text,
            completion_tokens=self._completion_tokens,
            cached_tokens=delta.cached_tokens,
            finish_reason=reason,
            stop_token=stop_token,
            stop_string=stop_string,
            logprobs=delta.logprobs[: len(shown)],
        )


class _Text:
    """A sequence's text, cut at the first stop string behind its least number of tokens."""

    def __init__(self, tokenizer: Tokenizer, request: GenerationRequest) -> None:
        prompt_tail = np.frombuffer(request.tokens, np.int32)[-PROMPT_TAIL:].tolist()
        self._detokenizer = Detokenizer(
            tokenizer, prompt_tail, skip_special_tokens=request.skip_special_tokens
        )
        self._matcher = StopMatcher(request.stop)
        self._unmatched = request.min_new_tokens

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text."""
        return self._matcher.matched

    def push(self, tokens: list[int], *, last: bool) -> tuple[int, str]:
        """(how many of the tokens count, the text that is certain now)."""
        text = ""
        for taken, token in enumerate(tokens, start=1):
            new = self._detokenizer.push(token)
            if self._unmatched:
                self._unmatched -= 1
                text += new
                continue
            text += self._matcher.push(new)
            if self._matcher.matched is not None:
                return taken, text
        if last:
            text += self._matcher.push(self._detokenizer.flush())
            if self._matcher.matched is None:
                text += self._matcher.flush()
        return len(tokens), text
