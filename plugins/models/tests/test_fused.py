# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Every family with its layers fused: the same logits, and Transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenspeed_models import llama, qwen2, qwen3
from tokenspeed_sdk.ops import ReferenceResolver
from tokenspeed_sdk.testing import TINY_CONFIG
from tokenspeed_sdk.testing.model.oracle import Oracle

FAMILIES = [
    (llama.EntryClass, transformers.LlamaForCausalLM, {}),
    (llama.EntryClass, transformers.LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    (qwen2.EntryClass, transformers.Qwen2ForCausalLM, {}),
    (qwen3.EntryClass, transformers.Qwen3ForCausalLM, {"head_dim": 16}),
]

STEPS: list[dict[int, slice]] = [
    {1: slice(0, 5)},
    {1: slice(5, 6), 2: slice(0, 33)},  # a decode row before a prompt of more rows than one launch
    {1: slice(6, 7), 2: slice(33, 34), 3: slice(0, 3)},
    {1: slice(7, 8), 2: slice(34, 35), 3: slice(3, 4)},
    {3: slice(4, 36)},
]
"""Slot -> which of its tokens come."""


@pytest.mark.parametrize(("entry", "kind", "fields"), FAMILIES)
def test_fused_equals_unfused_and_transformers(
    entry: Any, kind: type[Any], fields: dict[str, Any], tmp_path: Path
) -> None:
    oracle = Oracle.make(entry, kind, {**TINY_CONFIG, **fields}, tmp_path)
    tokens = {slot: oracle.tokens(slot, 40) for slot in (1, 2, 3)}
    plain = oracle.runner(dead_rows=1)
    fused = oracle.runner(dead_rows=1, kernels=ReferenceResolver(fuse=True))
    found: dict[int, list[torch.Tensor]] = {slot: [] for slot in tokens}
    for step in STEPS:
        new = {slot: tokens[slot][part] for slot, part in step.items()}
        wanted = plain.step(new)
        for slot, logits in fused.step(new).items():
            torch.testing.assert_close(logits, wanted[slot], atol=1e-5, rtol=1e-5)
            found[slot].append(logits)
    for slot, parts in found.items():
        logits = torch.cat(parts)
        right = oracle.logits(tokens[slot][: len(logits)])
        torch.testing.assert_close(logits, right, atol=1e-4, rtol=0)
    lines = "\n".join(fused.model.program.lines())  # type: ignore[attr-defined]
    for run in ("layers.1.{input_layernorm + self_attn.qkv_proj}", "rope + attend}", "mlp.act}"):
        assert run in lines
