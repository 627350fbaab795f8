# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A replayed step against the same step launched, bit for bit: sampled tokens and all KV."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenspeed.cache.slab import Slab
from tokenspeed.engine.buffers import Limits, StepBuffers, StepLayout
from tokenspeed.engine.device_step import DeviceStep, StepShape
from tokenspeed.engine.graphs import DecodeGraphs, StepKind, graph_sizes
from tokenspeed_models.llama import LlamaForCausalLM
from tokenspeed_sdk.modeling import BuildContext, load_weights

pytestmark = pytest.mark.gpu

VOCABULARY = 97
PAGE, CONTEXT, SEQUENCES, GUESSES, MIXES = 4, 256, 24, 3, 200
PAGES = SEQUENCES * CONTEXT // PAGE


class Side:
    """A device step with KV and page tables of its own; slot s owns a fixed run of pages."""

    def __init__(self, model: Any, groups: Any, gpu: Any, context: Any, limits: Limits) -> None:
        self.slab = Slab(gpu, groups, PAGE, PAGES, context.dtype)
        caches = [self.slab.layers(group) for group in groups]
        self.step = DeviceStep(model, gpu, context, caches, limits, VOCABULARY)
        self.buffers = StepBuffers(gpu, StepLayout(limits), limits)

    @property
    def kv(self) -> torch.Tensor:
        """Every page that somebody owns, as bytes: NaN equals itself."""
        return self.slab.rows[1:]


def build(gpu: Any, kernels: Any, folder: Path, dtype: str) -> tuple[Any, Any, Any]:
    config = LlamaForCausalLM.read_config(json.loads((folder / "config.json").read_text()))
    context = BuildContext(
        kernels=kernels,
        device=gpu.capabilities,
        torch_device=gpu.torch_device,
        dtype=dtype,
        max_model_len=CONTEXT,
        page_size=PAGE,
        row_tokens=1 + GUESSES,
    )
    model = LlamaForCausalLM.build(config, context)
    load_weights(model.weight_map(), folder)
    model.prepare()
    return model, LlamaForCausalLM.cache_groups(config), context


def fill(
    host: dict[str, np.ndarray], rng: np.random.Generator, slots: np.ndarray, kind: StepKind
) -> int:
    """A decode step of ``slots`` at random lengths, with random guesses; every row states all its
    pages as deltas. Its tokens."""
    rows = len(slots)
    counts = 1 + rng.integers(0, 1 + GUESSES, rows) if kind.verifies else np.ones(rows, np.int64)
    starts = np.concatenate(([0], np.cumsum(counts)))
    tokens = int(starts[-1])
    lengths = rng.integers(1 + GUESSES, CONTEXT, rows)
    positions = np.repeat(lengths - counts - starts[:-1], counts) + np.arange(tokens)
    host["row_slot"][:rows] = slots
    host["row_kv_len"][:rows] = lengths
    host["row_query_start"][: rows + 1] = starts
    host["token_slot"][:tokens] = host["emit_slot"][:tokens] = np.repeat(slots, counts)
    host["token_ids"][:tokens] = rng.integers(0, VOCABULARY, tokens)
    host["positions"][:tokens] = positions
    host["emit_token"][:tokens] = np.arange(tokens)
    host["emit_position"][:tokens] = positions + 1
    host["temperature"][:tokens] = rng.choice([0.0, 0.7, 1.5], tokens)
    host["top_k"][:tokens] = rng.choice([-1, 5], tokens)
    host["top_p"][:tokens] = rng.choice([1.0, 0.8], tokens)
    host["min_p"][:tokens] = 0.0
    host["seed"][:tokens] = rng.integers(0, 2**62, tokens)
    host["wanted"][:tokens] = 0
    state_pages(host, rng.choice(slots))
    return tokens


def state_pages(host: dict[str, np.ndarray], slot: int) -> None:
    """One slot's whole table as deltas; the step's array holds no more than one table."""
    count = CONTEXT // PAGE
    host["delta_count"][0] = count
    host["delta_slot"][0, :count] = slot
    host["delta_epoch"][0, :count] = 1
    host["delta_index"][0, :count] = np.arange(count)
    host["delta_page"][0, :count] = 1 + (slot - 1) * count + np.arange(count)


def _mix(rng: np.random.Generator) -> np.ndarray:
    """Any number of slots in any order."""
    return rng.permutation(SEQUENCES)[: rng.integers(1, SEQUENCES + 1)] + 1


def decode_shape(tokens: int, kind: StepKind) -> StepShape:
    return StepShape(
        rows=tokens,
        decode_rows=tokens,
        tokens=tokens,
        emits=tokens,
        has_deltas=True,
        max_query_len=1,
        max_kv_len=CONTEXT,
        verifies=kind.verifies,
        flat=kind.verifies,
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("verifies", [False, True], ids=["one_token", "guesses"])
def test_replay_equals_eager_bit_for_bit(
    gpu: Any, kernels: Any, small_llama: Path, dtype: str, verifies: bool
) -> None:
    model, groups, context = build(gpu, kernels, small_llama, dtype)
    limits = Limits(SEQUENCES, 128, len(groups), CONTEXT, PAGE, row_tokens=1 + GUESSES)
    eager, captured = (Side(model, groups, gpu, context, limits) for _ in range(2))
    kind, sizes = StepKind(verifies), graph_sizes(limits)
    stream = gpu.stream()
    graphs = DecodeGraphs(captured.step, gpu, stream, limits, sizes)
    used = set()
    rng = np.random.default_rng(6)
    mixes = [np.array([slot]) for slot in range(1, SEQUENCES + 1)]  # every slot gets its pages
    mixes += [_mix(rng) for _ in range(MIXES)]
    for mix, slots in enumerate(mixes):
        tokens = fill(captured.buffers.host, rng, slots, kind)
        bucket = graphs.find(kind, tokens)
        assert bucket is not None
        used.add(bucket)
        graphs.pad(kind, captured.buffers, tokens, bucket)
        eager.buffers.packed.copy_(captured.buffers.packed)
        shape = decode_shape(bucket, kind)
        stream.run(lambda: captured.step.upload(captured.buffers, decode=not verifies))
        stream.run(lambda b=bucket: graphs.replay(kind, b))
        stream.run(lambda: captured.step.download(captured.buffers))
        stream.run(lambda: eager.step.upload(eager.buffers))
        stream.run(lambda s=shape: eager.step.run(s, eager.buffers.arrays))
        stream.run(lambda: eager.step.download(eager.buffers))
        stream.record().wait()
        drawn, wanted = (side.buffers.sampled[:tokens] for side in (captured, eager))
        assert drawn.equal(wanted), mix
        assert captured.kv.equal(eager.kv), mix
        assert captured.step._last_token[1:].equal(eager.step._last_token[1:]), mix
    print(f"{len(mixes)} batches equal bit for bit, in buckets of {sorted(used)} tokens")
    assert used >= set(sizes[kind]) - {min(sizes[kind]), max(sizes[kind])}
    assert bool(captured.kv.any())
    stream.close()
