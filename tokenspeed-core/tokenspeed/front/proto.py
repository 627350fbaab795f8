# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""From the gateway's messages to ours, and back. Nothing is decided here but what is not built."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from smg_grpc_proto import tokenspeed_scheduler_pb2 as pb

from tokenspeed.front.caller import Caller, caller_of_custom_params, caller_of_request_id
from tokenspeed.front.errors import InvalidRequest
from tokenspeed.front.generation import Output
from tokenspeed.front.logprobs import TokenLogprobs
from tokenspeed.front.sampling_params import SamplingParams

_OPTIONAL = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
    "sampling_seed": "seed",
    "json_schema": "json_schema",
    "regex": "regex",
    "ebnf_grammar": "ebnf",
    "structural_tag": "structural_tag",
}
"""Fields with presence: theirs -> ours."""
_UNBUILT_MESSAGES = ("mm_inputs", "encode_bootstrap_info", "kv_bootstrap_info")


def sampling_params(request: Any) -> SamplingParams:
    """Of a GenerateRequest. InvalidRequest for fields that only this protocol has."""
    _check_unbuilt(request)
    theirs = request.sampling_params
    caller = _caller(request)
    given = {
        ours: _as_written(getattr(theirs, name))
        for name, ours in _OPTIONAL.items()
        if theirs.HasField(name)
    }
    return SamplingParams(
        **given,
        min_tokens=theirs.min_new_tokens,
        n=theirs.n or 1,
        stop=tuple(theirs.stop),
        stop_token_ids=tuple(theirs.stop_token_ids),
        ignore_eos=theirs.ignore_eos,
        skip_special_tokens=theirs.skip_special_tokens,
        keep_stop_token=theirs.no_stop_trim,
        logit_bias=dict(theirs.logit_bias),
        logprobs=request.return_logprob,
        top_logprobs=request.top_logprobs_num,
        priority=caller.priority or 0,
        salt=caller.salt,
    )


def _as_written(value: Any) -> Any:
    """Of a float of 32 bits the shortest decimal: 0.01, and not 0.009999999776482582."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _caller(request: Any) -> Caller:
    """``custom_params`` win over the id."""
    by_id = caller_of_request_id(request.request_id)
    if not request.sampling_params.HasField("custom_params"):
        return by_id
    return caller_of_custom_params(dict(request.sampling_params.custom_params)).or_else(by_id)


def _check_unbuilt(request: Any) -> None:
    if request.HasField("logprob_start_len") and request.logprob_start_len != -1:
        raise InvalidRequest(
            "logprob_start_len",
            request.logprob_start_len,
            "-1: log-probabilities of a prompt are told in Python, as prompt_logprobs",
        )
    if request.token_ids_logprob:
        raise _unbuilt("token_ids_logprob", list(request.token_ids_logprob), "empty")
    if request.data_parallel_rank:
        raise _unbuilt("data_parallel_rank", request.data_parallel_rank, "0")
    for name in _UNBUILT_MESSAGES:
        if request.HasField(name):
            raise _unbuilt(name, "present", "absent")


def _unbuilt(field: str, value: object, only: str) -> InvalidRequest:
    return InvalidRequest(field, value, f"{only}: nothing else is built yet")


@dataclass
class Whole:
    """What one sequence gave, for a caller who does not stream."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def add(self, output: Output) -> None:
        """One more piece."""
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs


def _output_logprobs(tokens: list[TokenLogprobs]) -> Any:
    """None where nobody asked."""
    if not tokens:
        return None
    tops = [
        pb.TopLogProbs(
            token_ids=[token for token, _ in each.top], values=[value for _, value in each.top]
        )
        for each in tokens
    ]
    return pb.OutputLogProbs(
        token_logprobs=[each.logprob for each in tokens],
        token_ids=[each.token for each in tokens],
        top_logprobs=tops,
    )


def chunk_response(request_id: str, prompt_tokens: int, output: Output) -> Any:
    """New tokens of one sequence."""
    chunk = pb.GenerateStreamChunk(
        output_logprobs=_output_logprobs(output.logprobs),
        token_ids=output.token_ids,
        prompt_tokens=prompt_tokens,
        completion_tokens=output.completion_tokens,
        cached_tokens=output.cached_tokens,
        index=output.index,
    )
    return pb.GenerateResponse(request_id=request_id, chunk=chunk)


def complete_response(request_id: str, prompt_tokens: int, output: Output, whole: Whole) -> Any:
    """The end of one sequence, with all of it unless it was streamed."""
    complete = pb.GenerateComplete(
        output_ids=whole.token_ids,
        output_logprobs=_output_logprobs(whole.logprobs),
        finish_reason=output.finish_reason,
        prompt_tokens=prompt_tokens,
        completion_tokens=output.completion_tokens,
        cached_tokens=output.cached_tokens,
        index=output.index,
    )
    if output.stop_string is not None:
        complete.matched_stop_str = output.stop_string
    elif output.stop_token is not None:
        complete.matched_token_id = output.stop_token
    return pb.GenerateResponse(request_id=request_id, complete=complete)
