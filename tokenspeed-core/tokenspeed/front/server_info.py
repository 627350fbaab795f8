# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What the gateway is told about the model and the server."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from smg_grpc_proto import tokenspeed_scheduler_pb2 as pb

from tokenspeed.version import engine_version

if TYPE_CHECKING:
    from tokenspeed.config import FrontConfig
    from tokenspeed.front.model_folder import ModelFolder
    from tokenspeed.front.request import Limits
    from tokenspeed.messages import EngineReady


def model_info_response(
    folder: ModelFolder, ready: EngineReady, config: FrontConfig, limits: Limits
) -> Any:
    """The gateway refuses prompts over ``max_context_length``: what model and KV pool can hold."""
    defaults = folder.sampling_defaults()
    return pb.GetModelInfoResponse(
        model_path=str(folder.path),
        tokenizer_path=str(folder.path),
        served_model_name=config.served_model_name,
        model_type=folder.config.get("model_type", ""),
        architectures=[ready.architecture],
        max_context_length=ready.max_model_len,
        max_req_input_len=ready.max_model_len - 1,
        vocab_size=ready.vocab_size,
        eos_token_ids=limits.eos_ids,
        pad_token_id=folder.special_id("pad_token_id") or 0,
        bos_token_id=folder.special_id("bos_token_id") or 0,
        default_sampling_params_json=json.dumps(defaults) if defaults else "",
        model_dtype=ready.dtype,
    )


def server_info_response(
    folder: ModelFolder, ready: EngineReady, config: FrontConfig, active: int, started: float
) -> Any:
    """``started``: seconds since the epoch."""
    response = pb.GetServerInfoResponse(
        active_requests=active,
        is_paused=False,
        uptime_seconds=time.time() - started,
        max_total_num_tokens=ready.total_pages * ready.page_size,
        tokenspeed_version=engine_version(),
        constrained_decoding="requested",
    )
    response.server_args.update(
        {
            "model": str(folder.path),
            "served_model_name": config.served_model_name,
            "tokenizer": str(folder.path),
            "platform": ready.platform,
            "tp_size": 1,
            "dp_size": 1,
            "pp_size": 1,
            "context_length": ready.max_model_len,
            "max_total_tokens": ready.total_pages * ready.page_size,
            "max_running_requests": ready.max_num_seqs,
            "vocab_size": ready.vocab_size,
            "is_embedding": False,
        }
    )
    response.start_time.FromMilliseconds(int(started * 1000))
    return response
