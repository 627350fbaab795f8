# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Drive a built model in plain Python: slots, pages, prefill, decode, without an engine.

runner = ModelRunner.from_folder(LlamaForCausalLM, folder, page_size=16, max_model_len=256)
logits = runner.step({1: prompt_ids})[1]              # [len(prompt_ids), vocabulary]
logits = runner.step({1: [next_id], 2: other_ids})    # decode and prefill in one batch
runner.release(1)
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from tokenspeed_sdk.contracts.kernel import KernelResolver
from tokenspeed_sdk.contracts.model import CacheGroup, Model, ModelEntry
from tokenspeed_sdk.contracts.platform import Capabilities
from tokenspeed_sdk.modeling.batch import CacheView, ForwardBatch
from tokenspeed_sdk.modeling.context import BuildContext
from tokenspeed_sdk.modeling.dtypes import torch_dtype
from tokenspeed_sdk.modeling.loader import load_weights
from tokenspeed_sdk.ops.reference import ReferenceResolver

STALE = 1e4
"""What fresh pages hold: a kernel that reads a token nobody wrote gives visibly wrong logits."""


def plain_device(dtype: str = "float32") -> Capabilities:
    """A CPU without further claims, for references."""
    return Capabilities("cpu", "any", (dtype,), frozenset(), 1)


def plain_context(dtype: str = "float32", **fields: Any) -> BuildContext:
    """For models on references, on a plain device; ``fields`` of it that are to be others."""
    plain = {
        "kernels": ReferenceResolver(),
        "device": plain_device(dtype),
        "torch_device": "cpu",
        "dtype": dtype,
        "max_model_len": 64,
        "page_size": 4,
    }
    return BuildContext(**{**plain, **fields})


class PagedCache:
    """The pages and page tables of one model, all cache groups alike."""

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        *,
        slots: int,
        pages_per_slot: int,
        page_size: int,
        dtype: torch.dtype,
        device: str,
        seed: int,
    ) -> None:
        self.page_size = page_size
        self.pages = slots * pages_per_slot
        self._free = list(range(1, self.pages + 1))
        random.Random(seed).shuffle(self._free)
        self._owned: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}
        self.page_table = torch.zeros(slots + 2, pages_per_slot, dtype=torch.int32, device=device)
        self.views = tuple(self._view(group, dtype, device) for group in groups)

    def _view(self, group: CacheGroup, dtype: torch.dtype, device: str) -> CacheView:
        shape = (len(group.layers), self.pages + 1, group.kv_heads, self.page_size, group.head_dim)
        stale = min(STALE, torch.finfo(dtype).max)
        keys = torch.full(shape, stale, dtype=dtype, device=device)
        values = torch.full(shape, stale, dtype=dtype, device=device)
        return CacheView(keys.unbind(0), values.unbind(0), self.page_table)

    def extend(self, slot: int, tokens: int) -> None:
        """Own enough pages for ``tokens`` more tokens of a slot."""
        if not 0 < slot < self.page_table.shape[0] - 1:
            raise ValueError(f"slot {slot} is nobody's; use 1 to {self.page_table.shape[0] - 2}")
        length = self.lengths.get(slot, 0) + tokens
        owned = self._owned.setdefault(slot, [])
        while len(owned) * self.page_size < length:
            if len(owned) == self.page_table.shape[1]:
                raise ValueError(f"slot {slot} would hold {length} tokens; raise max_model_len")
            owned.append(self._free.pop())
            self.page_table[slot, len(owned) - 1] = owned[-1]
        self.lengths[slot] = length

    def share(self, slot: int, other: int, pages: int) -> None:
        """A slot without pages gets the first ones of another, which neither may give back."""
        self._owned[slot] = self._owned[other][:pages]
        self.page_table[slot, :pages] = self.page_table[other, :pages]
        self.lengths[slot] = pages * self.page_size

    def release(self, slot: int) -> None:
        """Give the pages of a slot back; their content stays, as it would in an engine."""
        self._free = self._owned.pop(slot, []) + self._free
        self.lengths.pop(slot, None)
        self.page_table[slot] = 0


@dataclass(frozen=True)
class Row:
    """The new tokens of one slot, the first of them at position ``start``."""

    slot: int
    tokens: list[int]
    start: int
    live: bool = True


class ModelRunner:
    """One model, its cache, and batches made of what each slot is to read next.

    Attributes:
        model: the built model.
        cache: its pages.
        dead_rows: padded decode rows that every batch carries on the sentinel slot.
    """

    def __init__(
        self, model: Model, cache: PagedCache, *, device: str = "cpu", dead_rows: int = 0
    ) -> None:
        self.model = model
        self.cache = cache
        self.dead_rows = dead_rows
        self._device = device

    @classmethod
    def from_folder(
        cls,
        entry: ModelEntry,
        folder: str | Path,
        *,
        page_size: int,
        max_model_len: int,
        slots: int = 8,
        dtype: str = "float32",
        kernels: KernelResolver | None = None,
        device: Capabilities | None = None,
        torch_device: str = "cpu",
        seed: int = 0,
        dead_rows: int = 0,
        quantization: str | None = None,
        taps: tuple[int, ...] = (),
    ) -> ModelRunner:
        """Build a model from config.json and weights of a folder, on references by default."""
        text = (Path(folder) / "config.json").read_text(encoding="utf-8")
        config: Any = entry.read_config(json.loads(text))
        context = BuildContext(
            kernels=kernels or ReferenceResolver(),
            device=device or plain_device(dtype),
            torch_device=torch_device,
            dtype=dtype,
            max_model_len=max_model_len,
            page_size=page_size,
            quantization=quantization,
            taps=taps,
        )
        model = entry.build(config, context)
        load_weights(model.weight_map(), folder)
        model.prepare()
        cache = PagedCache(
            entry.cache_groups(config),
            slots=slots,
            pages_per_slot=-(-max_model_len // page_size),
            page_size=page_size,
            dtype=torch_dtype(dtype),
            device=torch_device,
            seed=seed,
        )
        return cls(model, cache, device=torch_device, dead_rows=dead_rows)

    @torch.inference_mode()
    def step(self, tokens: Mapping[int, Sequence[int]]) -> dict[int, torch.Tensor]:
        """One batch: live decode rows (slots with one token), dead rows, then prefill rows.

        Args:
            tokens: slot -> its new tokens.

        Returns:
            Slot -> logits of each of its new tokens, [new tokens, vocabulary] float32.
        """
        sentinel = self.cache.page_table.shape[0] - 1
        dead = [Row(sentinel, [0], 0, live=False)] * self.dead_rows
        live = [self._take(slot, new) for slot, new in tokens.items()]
        decode = [row for row in live if len(row.tokens) == 1] + dead
        rows = decode + [row for row in live if len(row.tokens) != 1]
        batch = self._batch(rows, len(decode))
        logits = self.model.logits(self.model.forward(batch))
        parts = logits.split_with_sizes([len(row.tokens) for row in rows])
        return {row.slot: part for row, part in zip(rows, parts, strict=True) if row.live}

    def release(self, slot: int) -> None:
        """Forget a slot."""
        self.cache.release(slot)

    def _take(self, slot: int, tokens: Sequence[int]) -> Row:
        start = self.cache.lengths.get(slot, 0)
        self.cache.extend(slot, len(tokens))
        return Row(slot, list(tokens), start)

    def _batch(self, rows: Sequence[Row], decoding: int) -> ForwardBatch:
        lengths = [len(row.tokens) for row in rows]
        starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        kv_len = torch.tensor([row.start + len(row.tokens) for row in rows], dtype=torch.int32)
        return ForwardBatch(
            token_ids=self._ints([t for row in rows for t in row.tokens], torch.int64),
            positions=self._ints([row.start + n for row in rows for n in range(len(row.tokens))]),
            token_slot=self._ints([row.slot for row in rows for _ in row.tokens]),
            row_slot=self._ints([row.slot for row in rows]),
            query_start=starts.to(self._device),
            kv_len=kv_len.to(self._device),
            num_decode_rows=decoding,
            max_query_len=max(lengths),
            max_kv_len=int(kv_len.max()),
            caches=self.cache.views,
            host_query_start=starts,
            host_kv_len=kv_len,
        )

    def _ints(self, values: Sequence[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)
