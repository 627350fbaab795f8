# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What an operator may choose. Plain data: it travels to child processes as JSON."""

from __future__ import annotations

import msgspec


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One engine.

    Attributes:
        model: folder with config.json, weights and tokenizer.
        load: "auto" reads the folder's weights; "dummy" makes random ones, for measuring.
        dtype: dtype of weights and activations; "auto" takes the platform's first choice.
        max_model_len: longest prompt and answer together, in tokens; None takes the model's.
        kv_pages: usable KV pages; None fills the memory that is free after loading.
        page_size: tokens per page.
        prefix_cache: whether computed pages are kept for later prompts.
        max_num_seqs: requests that run at once.
        max_step_tokens: query tokens in one step, the prefill chunk.
        prefill_share: share of max_step_tokens that prefill may take while others decode.
        graphs: whether decode steps are captured and replayed, where the device can.
        verify_page_tables: whether every step's page tables on the device are compared with the
            scheduler's; slow, for tests.
        threads: CPU threads of the engine; None leaves one core to the other processes.
        platform: name of the platform; None resolves it.
        pins: op -> kernel name that must be used.
    """

    model: str
    load: str = "auto"
    dtype: str = "auto"
    max_model_len: int | None = None
    kv_pages: int | None = None
    page_size: int = 16
    prefix_cache: bool = True
    max_num_seqs: int = 64
    max_step_tokens: int = 512
    prefill_share: float = 0.75
    graphs: bool = True
    verify_page_tables: bool = False
    threads: int | None = None
    platform: str | None = None
    pins: dict[str, str] = {}


class FrontConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The process between the gateway and the engine.

    Attributes:
        model: folder with the tokenizer.
        served_model_name: name in the API; by default the folder's.
        grpc_port, admin_port: on 127.0.0.1; 0 takes a free one.
        request_timeout: seconds after which a request ends with DEADLINE_EXCEEDED.
        max_queue: requests that may wait; one more gets RESOURCE_EXHAUSTED.
    """

    model: str
    served_model_name: str
    grpc_port: int = 0
    admin_port: int = 0
    request_timeout: float = 600.0
    max_queue: int = 1024
