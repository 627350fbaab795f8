# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Causal attention over paged KV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tokenspeed_sdk.contracts.kernel import BoundKernel, PlannedKernel, Trait
from tokenspeed_sdk.contracts.model import CacheGroup
from tokenspeed_sdk.modeling.context import BuildContext
from tokenspeed_sdk.modeling.layer import Layer
from tokenspeed_sdk.modeling.placement import Replicate, Shard
from tokenspeed_sdk.modeling.quantization import FP8_KV
from tokenspeed_sdk.modeling.rows import RowRange, Rows
from tokenspeed_sdk.modeling.weights import WeightMap


@dataclass(frozen=True)
class CachePlace:
    """Where the KV of one layer lies: cache group, and place in the group."""

    group: int
    index: int


def cache_place(groups: Sequence[CacheGroup], layer: int) -> CachePlace:
    """The place of a layer. ValueError: it is in no group, or in two."""
    found = [
        CachePlace(number, group.layers.index(layer))
        for number, group in enumerate(groups)
        if layer in group.layers
    ]
    if len(found) != 1:
        raise ValueError(f"layer {layer} must be in exactly one cache group; it is in {len(found)}")
    return found[0]


class Attention(Layer):
    """``q, k, v [tokens, heads, head_dim], rows -> [tokens, heads * head_dim]``.

    Writes keys and values into the cache, then attends: decode rows, which come first in a batch,
    with one kernel, prefill rows with the other. Decode rows that may be runs have a third where
    one is for them. ``scale`` is ``head_dim ** -0.5`` unless given.

    Over eight-bit pages (``kv_dtype`` of the context) a stored number times its scale is the key or
    value. The two scales of a layer are fixed while it lives, so a page has no state of its own:
    copied, moved to another tier or given to another request, it means the same.

    Attributes:
        write_op: the op that it writes with.
        traits: of its sites.
        k_scale, v_scale: [1] float32, 1 where a checkpoint has none; None for pages of the dtype of
            the model.
    """

    def __init__(
        self,
        context: BuildContext,
        name: str,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        cache: CachePlace,
        scale: float | None = None,
    ) -> None:
        super().__init__(name, (Shard(1), Shard(1), Shard(1), Replicate()), (Shard(1),))
        self._cache = cache
        self._scale = head_dim**-0.5 if scale is None else scale
        eight_bits = context.kv_dtype == FP8_KV
        suffix = "_fp8@1" if eight_bits else "@1"
        self.k_scale = _one(context) if eight_bits else None
        self.v_scale = _one(context) if eight_bits else None
        self.write_op = f"kv_write{suffix}"
        kv = {"kv_heads": kv_heads, "head_dim": head_dim, "page_size": context.page_size}
        self.traits: Mapping[str, Trait] = {"heads": heads, **kv}
        self._write = context.bind(self.write_op, name, **kv).call
        prefill, decode = (
            context.bind(op, name, **self.traits, window=None).call
            for op in (f"attention_prefill{suffix}", f"attention_decode{suffix}")
        )
        self._prefill, self._planned_prefill = prefill, _planned(prefill)
        self._decode, self._planned_decode = decode, _planned(decode)
        self._verify = self._bind_verify(context, suffix)

    def _bind_verify(self, context: BuildContext, suffix: str) -> BoundKernel | None:
        """For runs; None: they are not to come, or are rows like all others."""
        if context.row_tokens == 1:
            return None
        binding = context.bind_fused(
            f"attention_verify{suffix}",
            self.name,
            (f"attention_decode{suffix}",),
            {**self.traits, "window": None, "queries": context.row_tokens},
        )
        return None if binding is None else binding.call

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: Rows) -> torch.Tensor:
        self.write(k, v, rows)
        return self.attend(q, rows)

    def write(self, k: torch.Tensor, v: torch.Tensor, rows: Rows) -> None:
        """Put the batch's keys and values, [tokens, kv_heads, head_dim], into the cache."""
        batch = rows.batch
        self._write(k, v, *self.cache(rows), batch.token_slot, batch.positions, *self.scales)

    @property
    def scales(self) -> tuple[torch.Tensor, ...]:
        """Of keys and of values, as ops of eight-bit pages take them; else nothing."""
        if self.k_scale is None or self.v_scale is None:
            return ()
        return self.k_scale, self.v_scale

    def map_weights(self, weights: WeightMap) -> None:
        """Checkpoints name a scale in one of three places; for plain pages it is not needed."""
        module = self.name.rpartition(".")[0]
        for kind, scale in (("k", self.k_scale), ("v", self.v_scale)):
            name, *others = (
                f"{module}.{place}{kind}_scale" for place in ("", "attn.", f"{kind}_proj.")
            )
            if scale is None:
                weights.unneeded.update((name, *others))
                continue
            weights.add(name, scale, default=1.0)
            for other in others:
                weights.tie(other, name)

    def cache(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys and values of its layer, and the page table, in the order in which ops take them."""
        view = rows.batch.caches[self._cache.group]
        return view.keys[self._cache.index], view.values[self._cache.index], view.page_table

    def attend(self, q: torch.Tensor, rows: Rows) -> torch.Tensor:
        """``run`` once the batch's keys and values are in the cache."""
        return self._attend(q, self.cache(rows), rows).flatten(1)

    def _attend(self, q: torch.Tensor, cache: tuple[torch.Tensor, ...], rows: Rows) -> torch.Tensor:
        if rows.prefill is None and rows.decode is not None:
            return self._run_decode(q, cache, rows, rows.decode)
        if rows.decode is None and rows.prefill is not None:
            return self._run_prefill(q, cache, rows, rows.prefill)
        assert rows.decode is not None
        assert rows.prefill is not None
        n = rows.batch.num_decode_rows
        return torch.cat(
            (
                self._run_decode(q[:n], cache, rows, rows.decode),
                self._run_prefill(q[n:], cache, rows, rows.prefill),
            )
        )

    def _run_decode(
        self, q: torch.Tensor, cache: tuple[torch.Tensor, ...], rows: Rows, part: RowRange
    ) -> torch.Tensor:
        args = (q, *cache, part.row_slot, part.kv_len, *self.scales, self._scale)
        if rows.batch.has_runs and self._verify is not None:
            verified: torch.Tensor = self._verify(*args)
            return verified
        return self._call(self._decode, self._planned_decode, args, rows, part)

    def _run_prefill(
        self, q: torch.Tensor, cache: tuple[torch.Tensor, ...], rows: Rows, part: RowRange
    ) -> torch.Tensor:
        lengths = (part.query_start, part.kv_len)
        args = (q, *cache, part.row_slot, *lengths, *self.scales, self._scale)
        return self._call(self._prefill, self._planned_prefill, args, rows, part)

    def _call(
        self,
        kernel: BoundKernel,
        planned: PlannedKernel | None,
        args: tuple[Any, ...],
        rows: Rows,
        part: RowRange,
    ) -> torch.Tensor:
        out: torch.Tensor
        if planned is None:
            out = kernel(*args)
        else:
            plan = rows.plan(planned, part, self._cache.group, self._scale)
            out = planned(*args, plan=plan)
        return out


def _one(context: BuildContext) -> torch.Tensor:
    return torch.ones(1, dtype=torch.float32, device=context.torch_device)


def _planned(kernel: BoundKernel) -> PlannedKernel | None:
    return kernel if isinstance(kernel, PlannedKernel) else None
