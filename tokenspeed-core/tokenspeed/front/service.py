# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The gRPC service that the gateway calls: package tokenspeed.grpc.scheduler."""

# ruff: noqa: N802 (the protocol names the methods)

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
from smg_grpc_proto import tokenspeed_scheduler_pb2 as pb
from smg_grpc_proto import tokenspeed_scheduler_pb2_grpc as pb_grpc
from smg_grpc_proto.generated import common_pb2 as common

from tokenspeed.front import errors, proto
from tokenspeed.front.generation import Generation
from tokenspeed.front.kv_log import CursorLostError
from tokenspeed.front.kv_stream import BehindError, Record, stream_kv_events
from tokenspeed.front.loads import Throughput, engine_load, loads_response
from tokenspeed.front.peers import Peers
from tokenspeed.front.request import GenerationRequest, Limits
from tokenspeed.front.server_info import model_info_response, server_info_response
from tokenspeed.front.thinking import find_marks

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.observer import Outcome

    from tokenspeed.config import FrontConfig
    from tokenspeed.front.engine_client import EngineClient
    from tokenspeed.front.grammars import Grammars
    from tokenspeed.front.model_folder import ModelFolder
    from tokenspeed.messages import CacheLedger, EngineReady
    from tokenspeed.observe.events import EventStream, RequestRecord

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 << 20
"""Of a request: more than the longest prompt and grammar."""
BACKSTOP_S = 5.0
"""So much later than the deadline the front ends what the engine, or a client that does not read,
left open."""
_SLICE = 64 * 1024
_FLUSH_POLL_S = 0.05
_FLUSH_ANSWER_S = 5.0
"""How long a flush waits at least for the engine's answer, which a long step puts off."""
_STOP_GRACE_S = 1.0
_DRAIN_POLL_S = 0.05
_FAILED_S = 1.0
"""In which requests that were failed tell their clients."""
_SERVER_OPTIONS = [
    # The gateway pings idle connections every 30 s.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_send_message_length", 512 << 20),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a taken port is an error, not a second listener
]
_CODES: list[tuple[type[errors.RequestError], grpc.StatusCode, Outcome]]
_CODES = [
    (errors.InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT, "invalid"),
    (errors.RejectedByScheduler, grpc.StatusCode.INVALID_ARGUMENT, "invalid"),
    (errors.DuplicateRequest, grpc.StatusCode.ALREADY_EXISTS, "invalid"),
    (errors.QueueFull, grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected"),
    (errors.CompilerBusy, grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected"),
    (errors.CompilerFailed, grpc.StatusCode.UNAVAILABLE, "failed"),
    (errors.DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED, "expired"),
    (errors.FailedInEngine, grpc.StatusCode.INTERNAL, "failed"),
    (errors.EngineGone, grpc.StatusCode.UNAVAILABLE, "failed"),
    (errors.ShuttingDown, grpc.StatusCode.UNAVAILABLE, "rejected"),
    (errors.CutOff, grpc.StatusCode.UNAVAILABLE, "shutdown"),
]


class SchedulerService:
    """One engine behind the gateway's protocol. Made once the engine is ready.

    No RPC sends initial metadata by itself: with it, an error before the first token would come
    inside a 200, and the gateway would not notice that its client left.
    """

    def __init__(
        self,
        client: EngineClient,
        ready: EngineReady,
        folder: ModelFolder,
        config: FrontConfig,
        events: EventStream,
        grammars: Grammars,
    ) -> None:
        self._client = client
        self._ready = ready
        self._folder = folder
        self._config = config
        self._events = events
        self._grammars = grammars
        self._limits = Limits(
            max_model_len=ready.max_model_len,
            vocab_size=ready.vocab_size,
            eos_ids=folder.eos_ids(ready.vocab_size),
            isolate_tenants=config.isolate_tenants,
            marks=find_marks(folder.tokenizer) if config.reasoning else None,
        )
        self._running: dict[str, Generation] = {}
        self._compiling: dict[asyncio.Timeout, int] = {}  # until when, for how many sequences
        self._draining = False
        self._hurried = False
        self._cut_off: errors.CutOff | None = None
        self._started = time.time()
        self._throughput = Throughput()
        self._model_info = model_info_response(folder, ready, config, self._limits)

    async def Generate(self, request: Any, context: Any) -> None:
        """Stream the answer, or send it whole. Leaving in any way stops the engine's work."""
        prompt_tokens = len(request.tokenized.input_ids)
        record = self._events.request(
            request.request_id, prompt_tokens, request.sampling_params.n or 1
        )
        try:
            outcome = await self._generate(request, context, record)
        except errors.RequestError as error:
            code, outcome = _code(error)
            record.finished(outcome, str(error))
            await context.abort(code, str(error))
        except asyncio.CancelledError:
            record.finished("cancelled")
            raise
        except Exception as error:
            record.finished("failed", f"{type(error).__name__}: {error}")
            raise
        else:
            record.finished(outcome)

    async def drain(self, seconds: float) -> None:
        """Refuse what comes, and wait for what runs: so long, or until ``hurry`` is called, then it
        fails with the reason."""
        self._draining = True
        begin = time.monotonic()
        await self._emptied(seconds)
        self._cut_off = errors.CutOff(time.monotonic() - begin if self._hurried else seconds)
        self._hurried = False
        for generation in self._running.values():
            generation.fail(self._cut_off)
        for limit in [limit for limit in self._compiling if not limit.expired()]:
            limit.reschedule(asyncio.get_running_loop().time())
        await self._emptied(_FAILED_S)

    def hurry(self) -> None:
        """Wait no longer for what runs."""
        self._hurried = True

    async def _emptied(self, seconds: float) -> None:
        """Wait until nothing runs, so long at most."""
        deadline = time.monotonic() + seconds
        while (self._running or self._compiling) and not self._hurried:
            if time.monotonic() >= deadline:
                return
            await asyncio.sleep(_DRAIN_POLL_S)

    async def Abort(self, request: Any, context: Any) -> Any:
        """The gateway's client left. Late aborts are legal: they find nothing."""
        generation = self._running.get(request.request_id)
        if generation is None:
            return pb.AbortResponse(success=False, message="no such request is running")
        generation.abort()
        return pb.AbortResponse(success=True, message="aborted")

    async def HealthCheck(self, request: Any, context: Any) -> Any:
        """Healthy as long as the engine answers."""
        if self._client.gone is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(self._client.gone))
        if self._client.stalled:
            message = f"the engine has said nothing for {self._client.silent_s:.0f} s"
            return pb.HealthCheckResponse(healthy=False, message=message)
        return pb.HealthCheckResponse(healthy=True, message="serving")

    async def GetModelInfo(self, request: Any, context: Any) -> Any:
        """What the gateway needs to tokenize and to check lengths."""
        return self._model_info

    async def GetServerInfo(self, request: Any, context: Any) -> Any:
        """What the engine was started with."""
        return server_info_response(
            self._folder, self._ready, self._config, len(self._running), self._started
        )

    async def GetLoads(self, request: Any, context: Any) -> Any:
        """How busy the engine is."""
        load = self._client.load
        throughput = self._throughput.rate(load.output_tokens)
        return loads_response(load, self._ready, set(request.include), throughput)

    async def FlushCache(self, request: Any, context: Any) -> Any:
        """Drop cached prefixes once nothing runs; waits for that up to ``timeout_s``."""
        give_up = time.monotonic() + request.timeout_s
        try:
            # A reset that came while the last step was being committed was refused: again.
            while True:
                async with asyncio.timeout(max(give_up - time.monotonic(), _FLUSH_ANSWER_S)):
                    ledger = await self._client.ledger(reset_cache=True)
                if _is_empty(ledger):
                    break
                if ledger.idle:
                    continue
                if time.monotonic() >= give_up:
                    message = f"{self._client.alive} sequences are running; raise timeout_s"
                    return common.FlushCacheResponse(success=False, message=message)
                await asyncio.sleep(_FLUSH_POLL_S)
        except TimeoutError:
            message = "the engine is in a long step and has not answered; raise timeout_s"
            return common.FlushCacheResponse(success=False, message=message)
        except errors.EngineGone as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        message = f"{ledger.cached} of {ledger.total} pages are cached now"
        return common.FlushCacheResponse(success=True, message=message)

    async def GetTokenizer(self, request: Any, context: Any) -> None:
        """The tokenizer's files, for a gateway that cannot read the model's folder."""
        data, sha256 = await asyncio.to_thread(self._folder.bundle)
        for start in range(0, len(data), _SLICE):
            last = start + _SLICE >= len(data)
            chunk = common.GetTokenizerChunk(
                data=data[start : start + _SLICE], sha256=sha256 if last else ""
            )
            await context.write(chunk)

    async def SubscribeKvEvents(self, request: Any, context: Any) -> None:
        """What the prefix cache holds and how that changes, for routing by it."""
        log = self._client.kv_log
        if log is None:
            message = "this server was started with --no-kv-events"
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, message)
            return  # never reached: abort raises
        cursor = request.start_sequence_number
        try:
            await stream_kv_events(log, cursor, context.write, self._load_records())
        except CursorLostError:
            message = f"what follows {cursor} is not kept; start from 0"
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, message)
        except BehindError:
            message = "this subscriber reads too slowly; start from 0"
            await context.abort(grpc.StatusCode.DATA_LOSS, message)
        except errors.EngineGone as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    async def StartProfile(self, request: Any, context: Any) -> None:
        """Not built."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "profiling is not built yet")

    async def StopProfile(self, request: Any, context: Any) -> None:
        """Not built."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "profiling is not built yet")

    def _load_records(self) -> Record:
        """For one subscriber: the load at each call, numbered. Raises when the engine is gone."""
        samples = itertools.count(1)

        def record() -> Any:
            if self._client.gone is not None:
                raise self._client.gone
            load = self._client.load
            throughput = self._throughput.rate(load.output_tokens)
            return engine_load(load, self._ready, throughput, next(samples))

        return record

    async def _generate(self, request: Any, context: Any, record: RequestRecord) -> Outcome:
        if self._draining:
            raise errors.ShuttingDown
        generation_request = self._validated(request)
        self._admit(request.request_id, generation_request.n)
        if generation_request.constraint is not None:
            generation_request = await self._compiled(generation_request)
            self._admit(request.request_id, generation_request.n)  # time has passed
        generation = Generation(
            self._client,
            generation_request,
            tokenizer=self._folder.tokenizer if generation_request.stop else None,
            timeout_s=self._config.request_timeout,
            record=record,
        )
        self._running[request.request_id] = generation
        timeout_s = self._config.request_timeout
        try:
            async with asyncio.timeout(timeout_s + BACKSTOP_S):
                with generation:  # aborts before the request is forgotten
                    return await self._send(generation, generation_request, request, context)
        except TimeoutError:
            raise errors.DeadlineExceeded(timeout_s, by_engine=False) from None
        finally:
            del self._running[request.request_id]

    def _validated(self, request: Any) -> GenerationRequest:
        if not request.request_id:
            raise errors.InvalidRequest("request_id", "", "a unique non-empty string")
        params = proto.sampling_params(request)
        return GenerationRequest.validated(request.tokenized.input_ids, params, self._limits)

    async def _compiled(self, validated: GenerationRequest) -> GenerationRequest:
        """With its constraint compiled; meanwhile it has its place in the queue."""
        timeout_s = self._config.request_timeout
        limit = asyncio.timeout(timeout_s)
        self._compiling[limit] = validated.n
        try:
            async with limit:
                compiled = await validated.compiled_with(self._grammars)
        except TimeoutError:
            raise self._cut_off or errors.DeadlineExceeded(timeout_s, by_engine=False) from None
        finally:
            del self._compiling[limit]
        if self._cut_off is not None:  # the cut found it neither compiling nor running
            raise self._cut_off
        return compiled

    def _admit(self, request_id: str, n: int) -> None:
        if request_id in self._running:
            raise errors.DuplicateRequest(request_id)
        running, waiting = self._ready.max_num_seqs, self._config.max_queue
        if n > running + waiting:
            allowed = f"at most {running + waiting}: {running} may run and {waiting} may wait here"
            raise errors.InvalidRequest("n", n, allowed)
        alive = self._client.alive + sum(self._compiling.values())
        if alive + n > running + waiting:
            raise errors.QueueFull(alive, n, running, waiting)

    async def _send(
        self, generation: Generation, validated: GenerationRequest, request: Any, context: Any
    ) -> Outcome:
        """Pieces as they come, or at last all sequences in their order: the gateway numbers whole
        answers as they arrive."""
        outcome: Outcome = "stop"
        whole = [proto.Whole() for _ in range(validated.n)]
        ends: dict[int, Any] = {}
        of = request.request_id, validated.prompt_tokens
        while not generation.done:
            for output in await generation.next():
                if not request.stream:
                    whole[output.index].add(output)
                elif output.token_ids:
                    await context.write(proto.chunk_response(*of, output))
                if output.finish_reason is not None:
                    outcome = output.finish_reason
                    ends[output.index] = proto.complete_response(*of, output, whole[output.index])
                    if request.stream:
                        await context.write(ends.pop(output.index))
        for _, end in sorted(ends.items()):
            await context.write(end)
        return outcome


def _is_empty(ledger: CacheLedger) -> bool:
    return ledger.idle and ledger.cached == 0


def _code(error: errors.RequestError) -> tuple[grpc.StatusCode, Outcome]:
    return next((code, outcome) for kind, code, outcome in _CODES if isinstance(error, kind))


class _OwnUsers:
    """The service, for processes of users who may use it; see ``Peers``."""

    def __init__(self, service: SchedulerService) -> None:
        self._service = service
        self.peers: Peers | None = None

    def __getattr__(self, name: str) -> Callable[[Any, Any], Awaitable[Any]]:
        method = getattr(self._service, name)

        async def guarded(request: Any, context: Any) -> Any:
            if self.peers is None or not self.peers.allows(context.peer()):
                message = "this port answers processes of the user who started the server"
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, message)
            return await method(request, context)

        return guarded


class GrpcServer:
    """The service on a port of 127.0.0.1, for processes of the user who runs this one, and root's.

    Attributes:
        port: where it listens.
    """

    def __init__(self, service: SchedulerService, port: int) -> None:
        """Bind; 0 takes a free port. RuntimeError when the port is taken."""
        self._server = grpc.aio.server(options=_SERVER_OPTIONS)
        guard = _OwnUsers(service)
        pb_grpc.add_TokenSpeedSchedulerServicer_to_server(guard, self._server)
        self.port: int = self._server.add_insecure_port(f"127.0.0.1:{port}")
        guard.peers = Peers(self.port)

    async def __aenter__(self) -> GrpcServer:
        await self._server.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._server.stop(_STOP_GRACE_S)
