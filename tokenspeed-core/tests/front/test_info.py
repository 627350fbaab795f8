# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The RPCs around Generate."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from smg_grpc_proto import tokenspeed_scheduler_pb2 as pb
from smg_grpc_proto.generated import common_pb2 as common
from tokenspeed.front.model_folder import ModelFolder
from tokenspeed.messages import CacheLedger

from .conftest import Front, eventually
from .test_generate import code_of, request


async def test_health(front: Front) -> None:
    assert (await front.stub.HealthCheck(pb.HealthCheckRequest())).healthy


async def test_health_of_a_silent_engine(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenspeed.front.engine_client.STALL_S", 0.05)
    front.engine.frozen = True
    call = front.stub.Generate(request())
    await eventually(lambda: front.client.silent_s > 0.05)
    assert not (await front.stub.HealthCheck(pb.HealthCheckRequest())).healthy
    call.cancel()


async def test_model_info(front: Front, model_folder: Path) -> None:
    info = await front.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert info.served_model_name == "tiny"
    assert info.tokenizer_path == info.model_path == str(model_folder)
    assert (info.max_context_length, info.vocab_size) == (128, 512)
    assert (list(info.eos_token_ids), info.bos_token_id) == ([2, 0], 1)
    assert list(info.architectures) == ["FakeForCausalLM"]
    defaults = json.loads(info.default_sampling_params_json)
    assert defaults == {"top_k": 40, "repetition_penalty": 1.3}
    assert not info.supports_vision


async def test_server_info(front: Front) -> None:
    info = await front.stub.GetServerInfo(pb.GetServerInfoRequest())
    args = dict(info.server_args)
    assert args["context_length"] == 128
    assert args["max_total_tokens"] == info.max_total_num_tokens == 64 * 16
    assert args["served_model_name"] == "tiny"
    assert info.start_time.seconds > 0


async def test_loads(front: Front) -> None:
    front.engine.frozen = True
    call = front.stub.Generate(request())
    await eventually(lambda: front.engine.running == 1)
    await front.client.ledger()  # its answer carries the load
    loads = await front.stub.GetLoads(pb.GetLoadsRequest(include=["core", "queues", "memory"]))
    [load] = loads.loads
    assert (load.num_running_reqs, load.max_running_requests) == (1, 8)
    assert load.token_usage == pytest.approx(4 / 64)
    assert load.active_token_usage == 0
    assert load.memory.token_capacity == 1024
    assert load.HasField("queues")
    assert loads.aggregate.total_running_reqs == 1
    call.cancel()


async def test_loads_before_anything_ran(front: Front) -> None:
    loads = await front.stub.GetLoads(pb.GetLoadsRequest())
    assert loads.loads[0].token_usage == 0
    assert not loads.loads[0].HasField("memory")


async def test_flush_cache(front: Front) -> None:
    front.engine.frozen = True
    call = front.stub.Generate(request())
    await eventually(lambda: front.engine.running == 1)
    busy = await front.stub.FlushCache(common.FlushCacheRequest(timeout_s=0.05))
    assert not busy.success
    assert "1 sequences are running" in busy.message
    call.cancel()
    await eventually(lambda: front.engine.running == 0)
    assert (await front.stub.FlushCache(common.FlushCacheRequest())).success


async def test_flush_cache_asks_again_when_the_last_commit_published_behind_it(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine was busy when it read the reset, and idle, with pages, when it told the ledger."""
    resets: list[bool] = []
    ledger = front.client.ledger

    async def late(*, reset_cache: bool = False) -> CacheLedger:
        resets.append(reset_cache)
        answer = await ledger(reset_cache=reset_cache)
        return msgspec.structs.replace(answer, cached=12) if len(resets) == 1 else answer

    monkeypatch.setattr(front.client, "ledger", late)
    assert (await front.stub.FlushCache(common.FlushCacheRequest())).success
    assert resets == [True, True]


async def test_tokenizer_bundle(front: Front, model_folder: Path) -> None:
    big = model_folder / "chat_template.jinja"
    big.write_text(
        "".join(hashlib.sha256(bytes([i % 256, i // 256])).hexdigest() for i in range(4000))
    )
    try:
        chunks = [c async for c in front.stub.GetTokenizer(common.GetTokenizerRequest())]
    finally:
        big.unlink()
    assert len(chunks) > 1
    assert all(len(c.data) == 65536 for c in chunks[:-1])
    assert [bool(c.sha256) for c in chunks] == [False] * (len(chunks) - 1) + [True]
    data = b"".join(c.data for c in chunks)
    assert hashlib.sha256(data).hexdigest() == chunks[-1].sha256
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = set(archive.namelist())
        assert archive.read("config.json") == (model_folder / "config.json").read_bytes()
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= names


@pytest.mark.parametrize(
    ("rpc", "message"),
    [
        ("StartProfile", common.StartProfileRequest()),
        ("StopProfile", common.StopProfileRequest()),
    ],
)
async def test_unbuilt_rpcs(front: Front, rpc: str, message: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="not built yet") as error:
        await getattr(front.stub, rpc)(message)
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


UNBUILT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("logprob_start_len", {"logprob_start_len": 0}, {}),
    ("top_logprobs", {"top_logprobs_num": 1}, {}),
    ("top_logprobs", {"top_logprobs_num": 1_000_000_000, "return_logprob": True}, {}),
    ("token_ids_logprob", {"token_ids_logprob": [1]}, {}),
    ("data_parallel_rank", {"data_parallel_rank": 1}, {}),
    ("mm_inputs", {"mm_inputs": pb.MultimodalInputs()}, {}),
    ("encode_bootstrap_info", {"encode_bootstrap_info": pb.EncodeBootstrapInfo()}, {}),
    ("kv_bootstrap_info", {"kv_bootstrap_info": pb.KvBootstrapInfo()}, {}),
    ("min_tokens", {}, {"min_new_tokens": 1000}),
    ("frequency_penalty", {}, {"frequency_penalty": 2.1}),
    ("presence_penalty", {}, {"presence_penalty": -2.1}),
    ("repetition_penalty", {}, {"repetition_penalty": 0.0}),
    ("logit_bias", {}, {"logit_bias": {"512": 1.0}}),
    ("json_schema", {}, {"json_schema": "{}"}),
    ("regex", {}, {"regex": ""}),
    ("ebnf", {}, {"ebnf_grammar": "root ::= a"}),
    ("structural_tag", {}, {"structural_tag": "{}"}),
    ("custom_params", {}, {"custom_params": {"a": 1}}),
    ("max_tokens", {}, {"max_new_tokens": 0}),
    ("temperature", {}, {"temperature": -1}),
    ("n", {}, {"n": 5_000_000}),
    ("request_id", {"request_id": ""}, {}),
    ("prompt", {"tokenized": pb.TokenizedInput()}, {}),
    ("prompt token 1", {"tokenized": pb.TokenizedInput(input_ids=[1, 4_294_967_295])}, {}),
]


async def test_invalid_argument_names_the_field(front: Front) -> None:
    for field, fields, sampling in UNBUILT:
        message = request(**sampling)
        for name, value in fields.items():
            if hasattr(value, "DESCRIPTOR"):
                getattr(message, name).CopyFrom(value)
            elif isinstance(value, list):
                getattr(message, name).extend(value)
            else:
                setattr(message, name, value)
        code, text = await code_of(front.stub.Generate(message))
        assert code == grpc.StatusCode.INVALID_ARGUMENT, field
        assert text.startswith(f"{field} is "), field
    assert front.engine.submits == []


def test_eos_ids(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    assert ModelFolder(str(tmp_path)).eos_ids(100) == (7,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [8, 9, 1000]}')
    assert ModelFolder(str(tmp_path)).eos_ids(100) == (8, 9)


def test_default_sampling_keeps_what_is_in_range(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.json").write_text("{}")
    content = {"temperature": 0.6, "top_p": 7, "repetition_penalty": 1.1, "min_p": None}
    content |= {"do_sample": True, "presence_penalty": "much"}
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    assert ModelFolder(str(tmp_path)).sampling_defaults() == {
        "temperature": 0.6,
        "repetition_penalty": 1.1,
    }
    assert "top_p is 7" in caplog.text
    assert "presence_penalty is 'much'" in caplog.text


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json is missing"):
        ModelFolder(str(tmp_path))
