# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""An engine in this process: the real scheduler, executor and loop, with a scripted mailbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenspeed._scheduler import (
    CacheGroupConfig,
    Config,
    Finish,
    Scheduler,
    max_copies,
    max_transfer_pages,
)
from tokenspeed.cache.host_pool import HostPool
from tokenspeed.cache.slab import Beside, Slab
from tokenspeed.cache.transfers import PageMover
from tokenspeed.engine.buffers import Limits
from tokenspeed.engine.device_step import DeviceStep
from tokenspeed.engine.draft_model import DraftFolder, Drafting
from tokenspeed.engine.executor import Executor
from tokenspeed.engine.grammar import Grammars
from tokenspeed.engine.loop import EngineLoop
from tokenspeed.engine.speculation import Speculation
from tokenspeed.engine.verify import PageTableVerifier
from tokenspeed.front.logprobs import TokenLogprobs, read_logprobs, read_prompt_logprobs
from tokenspeed.messages import EngineInput, EngineOutput, FromEngine, Sampling, Submit
from tokenspeed_models.eagle3 import Eagle3
from tokenspeed_models.llama import LlamaForCausalLM
from tokenspeed_sdk.contracts.drafter import DraftModel
from tokenspeed_sdk.contracts.kernel import KernelResolver
from tokenspeed_sdk.contracts.model import CacheGroup, Model
from tokenspeed_sdk.contracts.platform import Device
from tokenspeed_sdk.modeling import BuildContext, load_weights
from tokenspeed_sdk.ops import ReferenceResolver

GREEDY = Sampling(0.0, -1, 1.0, 0.0, 0)
CONTEXT = 256


@dataclass
class Answer:
    """What came back for one request."""

    tokens: list[int] = field(default_factory=list)
    finish: Finish = Finish.NONE
    cached_tokens: int = -1
    updates_after_finish: int = 0
    failure: str | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)


@dataclass
class ScriptedMailbox:
    """Stands in for the socket: asks ``script`` for the next input at every step.

    Attributes:
        script: called with the number of the step and all answers so far; None means: when all
            requests are over, stop.
    """

    script: Callable[[int, dict[int, Answer]], EngineInput | None]
    answers: dict[int, Answer] = field(default_factory=dict)
    outputs: list[EngineOutput] = field(default_factory=list)
    step: int = 0

    def receive(self, timeout_ms: int | None) -> list[EngineInput]:
        """The script's next input; a stop when the engine would wait for ever and nothing comes."""
        message = self.script(self.step, self.answers)
        self.step += 1
        if message is not None:
            return [message]
        return [EngineInput(stop=True)] if timeout_ms is None else []

    def send(self, output: FromEngine) -> None:
        """Take an output apart as the front would; what else the engine says is left out."""
        if not isinstance(output, EngineOutput):
            return
        self.outputs.append(output)
        for found in output.prompt_logprobs:
            answer = self.answers.setdefault(found.request, Answer())
            answer.prompt_logprobs |= read_prompt_logprobs(found)
        starts = np.frombuffer(output.token_start, np.int32)
        tokens = np.frombuffer(output.tokens, np.int32)
        finish = np.frombuffer(output.finish, np.uint8)
        cached = np.frombuffer(output.cached_tokens, np.int32)
        for i, request in enumerate(np.frombuffer(output.request, np.uint64)):
            answer = self.answers.setdefault(int(request), Answer())
            answer.updates_after_finish += answer.finish != Finish.NONE
            answer.tokens += tokens[starts[i] : starts[i + 1]].tolist()
            answer.finish = Finish(int(finish[i]))
            answer.cached_tokens = int(cached[i])
        for failed, reason in output.failure.items():
            self.answers.setdefault(failed, Answer()).failure = reason
        for each in output.logprobs:
            self.answers[each.request].logprobs.append(read_logprobs(each))


@dataclass
class Engine:
    """Everything that a test may look at."""

    scheduler: Scheduler
    executor: Executor
    folder: Path
    kv_events: bool

    def run(
        self,
        script: Callable[[int, dict[int, Answer]], EngineInput | None],
        grammars: Grammars | None = None,
        speculation: Speculation | None = None,
    ) -> ScriptedMailbox:
        """Run the loop until the script has nothing more and the engine is idle."""
        mailbox = ScriptedMailbox(script)
        EngineLoop(
            self.scheduler,
            self.executor,
            mailbox,
            PageTableVerifier(self.scheduler),
            grammars=grammars,
            speculation=speculation,
            kv_events=self.kv_events,
        ).run()
        return mailbox


@dataclass(frozen=True, kw_only=True)
class Options:
    """What tests vary.

    Attributes:
        kernels: whose kernels run; None: the references. float64 would hide nothing, float32 is
            what serves.
        mover_device: whose streams move pages to and from the host tier; None: the device's.
        head: folder of an EAGLE-3 head that guesses.
    """

    pages: int = 128
    page_size: int = 4
    max_seqs: int = 8
    max_step_tokens: int = 64
    prefix_cache: bool = True
    graphs: bool = True
    kernels: KernelResolver | None = None
    dtype: str = "float32"
    host_pages: int = 0
    mover_device: Device | None = None
    kv_events: bool = False
    quantization: str | None = None
    kv_dtype: str | None = None
    row_tokens: int = 1
    head: Path | None = None

    @property
    def max_model_len(self) -> int:
        return min(CONTEXT, self.pages * self.page_size)


@contextmanager
def engine(folder: Path, device: Device, **options: Any) -> Iterator[Engine]:
    """A tiny engine that verifies its page tables in every step; ``options``: of ``Options``."""
    asked = Options(**options)
    loaded = _load(folder, device, asked)
    groups, dtype = loaded.groups, loaded.context.cache_dtype
    slab = Slab(device, groups, asked.page_size, asked.pages, dtype, loaded.beside)
    planning = _planning(asked)
    limits = _limits(asked, planning, groups=len(groups), vocab=loaded.vocab)
    step = DeviceStep(
        loaded.model,
        device,
        loaded.context,
        [slab.layers(group) for group in groups],
        limits,
        loaded.vocab,
        Drafting.of(loaded.draft_model, slab, groups[0]),
    )
    mover = None
    if asked.host_pages:
        pool = HostPool(device, asked.host_pages, slab.page_bytes, block_bytes=5 * slab.page_bytes)
        mover = PageMover(asked.mover_device or device, slab, pool)
    executor = Executor(step, device, limits, slab, mover, graphs=asked.graphs, page_tables=True)
    yield Engine(Scheduler(planning), executor, folder, asked.kv_events)
    executor.close()


@dataclass(frozen=True)
class _Loaded:
    """A model with its weights, and the head beside it, if it has one."""

    model: Model
    context: BuildContext
    groups: tuple[CacheGroup, ...]
    vocab: int
    draft_model: DraftModel | None
    beside: Beside | None


def _load(folder: Path, device: Device, asked: Options) -> _Loaded:
    raw = json.loads((folder / "config.json").read_text())
    config = LlamaForCausalLM.read_config(raw)
    head = asked.head
    drafts = None if head is None else DraftFolder.read(Eagle3(), str(head), raw, weights=True)
    context = BuildContext(
        kernels=asked.kernels or ReferenceResolver(),
        device=device.capabilities,
        torch_device=device.torch_device,
        dtype=asked.dtype,
        max_model_len=CONTEXT,
        page_size=asked.page_size,
        quantization=asked.quantization,
        kv_dtype=asked.kv_dtype,
        row_tokens=asked.row_tokens,
        taps=() if drafts is None else drafts.taps,
    )
    model = LlamaForCausalLM.build(config, context)
    draft_model = None if drafts is None else drafts.build(context, model)
    load_weights(model.weight_map(), folder)
    model.prepare()
    beside = None
    if drafts is not None and draft_model is not None:
        drafts.load(draft_model)
        beside = drafts.beside(asked.dtype)
    groups = LlamaForCausalLM.cache_groups(config)
    return _Loaded(model, context, groups, config.vocab, draft_model, beside)


def _planning(asked: Options) -> Config:
    return Config(
        groups=[CacheGroupConfig("full", asked.page_size)],
        num_pages=asked.pages,
        max_seqs=asked.max_seqs,
        max_model_len=asked.max_model_len,
        max_step_tokens=asked.max_step_tokens,
        prefix_cache=asked.prefix_cache,
        host_pages=asked.host_pages,
        kv_events=asked.kv_events,
        max_row_tokens=asked.row_tokens,
    )


def _limits(asked: Options, planning: Config, *, groups: int, vocab: int) -> Limits:
    return Limits(
        sequences=asked.max_seqs,
        tokens=asked.max_step_tokens,
        groups=groups,
        max_kv_len=asked.max_model_len,
        page_size=asked.page_size,
        copies=max_copies(planning),
        transfer_pages=max_transfer_pages(planning),
        mask_words=-(-vocab // 32),
        row_tokens=asked.row_tokens,
    )


def submit(
    request: int,
    tokens: Sequence[int],
    max_new_tokens: int,
    stop_ids: Sequence[int] = (),
    sampling: Sampling = GREEDY,
    grammar: int = 0,
) -> Submit:
    """A request without a deadline."""
    prompt = np.asarray(tokens, np.int32).tobytes()
    return Submit(request, prompt, max_new_tokens, list(stop_ids), sampling, grammar=grammar)


def all_at_once(
    submits: Sequence[Submit],
) -> Callable[[int, dict[int, Answer]], EngineInput | None]:
    """A script that sends everything with the first step."""
    return lambda step, _: EngineInput(submits=list(submits)) if step == 0 else None


@cache
def _oracle(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@torch.inference_mode()
def greedy(
    folder: Path,
    prompt: Sequence[int],
    count: int,
    allowed: Callable[[list[int]], Sequence[int]] | None = None,
) -> list[int]:
    """The oracle: Transformers, one request alone, without a cache of ours.

    Args:
        allowed: which tokens may follow those so far; None: all.
    """
    model = _oracle(folder)
    ids = torch.tensor([list(prompt)])
    for _ in range(count):
        logits = model(ids).logits[:, -1:]
        if allowed is not None:
            mask = torch.full_like(logits, float("-inf"))
            mask[..., list(allowed(ids[0, len(prompt) :].tolist()))] = 0
            logits = logits + mask
        ids = torch.cat((ids, logits.argmax(-1)), 1)
    return ids[0, len(prompt) :].tolist()
