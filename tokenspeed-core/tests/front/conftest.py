# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto import tokenspeed_scheduler_pb2_grpc as pb_grpc
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenspeed.config import FrontConfig
from tokenspeed.front.engine_client import EngineClient
from tokenspeed.front.grammars import Grammars
from tokenspeed.front.model_folder import ModelFolder
from tokenspeed.front.service import GrpcServer, SchedulerService
from tokenspeed.messages import EngineReady
from tokenspeed.observe.events import EventStream
from tokenspeed.observe.metrics import Metrics
from tokenspeed.plugins.plan import PluginPlan
from tokenspeed_sdk.contracts.observer import Event

from .fake_engine import READY, FakeEngine

EOS = 2
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer() -> Tokenizer:
    """Byte-level BPE: 3 special tokens, the 256 bytes from id 3 on, and a few merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocab = {token: i for i, token in enumerate([*specials, *alphabet])}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("a", "b")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without weights."""
    folder = tmp_path_factory.mktemp("tiny-model")
    make_tokenizer().save(str(folder / "tokenizer.json"))
    files = {
        "config.json": {
            "architectures": ["FakeForCausalLM"],
            "model_type": "fake",
            "eos_token_id": 0,
        },
        "generation_config.json": {
            "eos_token_id": [EOS, 0],
            "bos_token_id": 1,
            "top_k": 40,
            "repetition_penalty": 1.3,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "bos_token": "<|im_start|>",
            "chat_template": CHAT_TEMPLATE,
            "model_max_length": 128,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/engine"


@pytest.fixture
def engine(address: str) -> Iterator[FakeEngine]:
    fake = FakeEngine(address)
    fake.start()
    yield fake
    fake.die()


@dataclass
class Front:
    """A front that serves, in this process."""

    stub: Any
    service: SchedulerService
    client: EngineClient
    engine: FakeEngine
    metrics: Metrics
    events: list[Event]
    port: int


@asynccontextmanager
async def run_front(
    address: str,
    engine: FakeEngine,
    model_folder: Path,
    *,
    kv_events: bool = True,
    expected: EngineReady = READY,
    plugins: PluginPlan = PluginPlan.make("fake", ()),  # noqa: B008 (frozen)
    **options: Any,
) -> AsyncIterator[Front]:
    """A front before an engine.

    Args:
        expected: what the engine says of itself.
        plugins: among which are the grammar backends.
        options: of the FrontConfig.
    """
    config = FrontConfig(model=str(model_folder), served_model_name="tiny", **options)
    events, metrics = EventStream("tiny"), Metrics()
    seen: list[Event] = []
    events.add(metrics.observe)
    events.add(seen.append)
    async with EngineClient(address, events, kv_events=kv_events) as client:
        ready = await asyncio.wait_for(client.wait_ready(), 5)
        assert ready == expected
        folder = ModelFolder(config.model)
        async with Grammars(plugins, folder, ready.vocab_size) as grammars:
            service = SchedulerService(client, ready, folder, config, events, grammars)
            async with (
                GrpcServer(service, 0) as server,
                grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
            ):
                stub = pb_grpc.TokenSpeedSchedulerStub(channel)
                yield Front(stub, service, client, engine, metrics, seen, server.port)


@pytest.fixture
def serving(address: str, engine: FakeEngine, model_folder: Path) -> Callable[..., Any]:
    """``async with serving(max_queue=1) as front``."""
    return partial(run_front, address, engine, model_folder)


@pytest.fixture
async def front(serving: Callable[..., Any]) -> AsyncIterator[Front]:
    async with serving() as running:
        yield running


async def eventually(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    """Wait for a condition; fails when it does not come true in time."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)
