# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Layers that do in one launch what several layers do. ``fusion`` makes them; models do not.

They own no parameter: their parts keep them, load them and pack them. Each is made from its parts
by ``make``, which answers None where no kernel serves it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, Self

import torch

from tokenspeed_sdk.contracts.kernel import Binding, BoundKernel
from tokenspeed_sdk.modeling.context import BuildContext
from tokenspeed_sdk.modeling.layer import Layer
from tokenspeed_sdk.modeling.layers.activation import SiluAndMul
from tokenspeed_sdk.modeling.layers.attention import Attention
from tokenspeed_sdk.modeling.layers.heads import SplitHeads
from tokenspeed_sdk.modeling.layers.linear import Linear
from tokenspeed_sdk.modeling.layers.norm import AddRMSNorm, RMSNorm
from tokenspeed_sdk.modeling.layers.rope import Rope
from tokenspeed_sdk.modeling.placement import Replicate
from tokenspeed_sdk.modeling.rows import Rows
from tokenspeed_sdk.ops import OPS

MOST_ROWS = 32
"""Of a launch for few tokens. There, reading the weight is all that takes time; with more, every
block would compute norms again that one launch before them computes once."""

MANY_ROWS = 129
"""Tokens from which a launch for a prompt pays: what stands between two products is then bound by
memory, and one pass over it replaces two. Between the two, the parts' own kernels compete."""

NO_NORM_EPS = 1.0
"""What ``rope_kv_write`` gets where it normalises nothing."""


def fused_name(parts: Sequence[Layer]) -> str:
    """Names of the parts, with what they share in front: "layers.0.{norm + mlp.up}"."""
    names = [part.name for part in parts]
    columns = zip(*(name.split(".") for name in names), strict=False)
    shared = "".join(f"{words[0]}." for words in takewhile(lambda w: len(set(w)) == 1, columns))
    return f"{shared}{{{' + '.join(name.removeprefix(shared) for name in names)}}}"


class Packed:
    """A fused kernel, and the weight of one of its parts as it wants it."""

    def __init__(self, binding: Binding, linear: Linear) -> None:
        self.call = binding.call
        self.weights = linear.weights
        self._pack: Callable[[Any], Any] = binding.pack_weight
        self._linear = linear

    def pack(self) -> None:
        """Before the part does: it wants the plain weight."""
        weight, *rest = self._linear.weights
        self.weights = (self._pack(weight), *rest)


def bind_add_norm(
    context: BuildContext,
    norm: AddRMSNorm,
    linear: Linear,
    activation: SiluAndMul | None,
    rows: tuple[int, int | None],
) -> Packed | None:
    """The kernel that does norm, linear and activation at once; None: call those."""
    op = f"add_norm_{linear.op}"
    if op not in OPS:
        return None
    gated = activation is not None
    parts = ("add_rms_norm@1", linear.op, *(("silu_and_mul@1",) if gated else ()))
    name = fused_name((norm, linear, activation) if activation else (norm, linear))
    binding = context.bind_fused(op, name, parts, {**linear.traits, "gated": gated}, rows=rows)
    return None if binding is None else Packed(binding, linear)


def add_norm_linear(
    fused: Packed, norm: AddRMSNorm, linear: Linear, x: torch.Tensor, residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A call of what ``bind_add_norm`` bound: the projection, and the sum."""
    summed = torch.empty_like(residual)
    out: torch.Tensor = fused.call(
        x, residual, summed, norm.weight, *fused.weights, linear.bias, norm.eps
    )
    return out, summed


class AddNormLinear(Layer):
    """``x, residual [tokens, k] -> projection [tokens, n], residual + x``.

    In one launch with up to MOST_ROWS tokens, or with MANY_ROWS and more where no activation is
    behind it and a kernel serves that; else part by part. Each reads the plain weight in the layout
    that its kernel packs: where layouts are different, all are in memory.
    """

    def __init__(
        self,
        few: Packed | None,
        many: Packed | None,
        norm: AddRMSNorm,
        linear: Linear,
        activation: SiluAndMul | None,
    ) -> None:
        parts = (norm, linear, activation) if activation else (norm, linear)
        super().__init__(fused_name(parts), norm.takes, (parts[-1].gives[0], norm.gives[1]))
        self._norm = norm
        self._linear = linear
        self._activation = activation
        self._few = few
        self._many = many

    @classmethod
    def make(
        cls,
        context: BuildContext,
        norm: AddRMSNorm,
        linear: Linear,
        activation: SiluAndMul | None = None,
    ) -> Self | None:
        """Of a norm and the linear behind it; of a linear of gate and up, the activation too."""
        few = bind_add_norm(context, norm, linear, activation, (1, MOST_ROWS))
        plain = activation is None
        many = bind_add_norm(context, norm, linear, None, (MANY_ROWS, None)) if plain else None
        return None if few is many is None else cls(few, many, norm, linear, activation)

    def run(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = x.shape[0]
        fused = self._few if 1 <= rows <= MOST_ROWS else self._many if rows >= MANY_ROWS else None
        if fused is None:
            return self._part_by_part(x, residual)
        return add_norm_linear(fused, self._norm, self._linear, x, residual)

    def pack_weights(self) -> None:
        for fused in (self._few, self._many):
            if fused is not None:
                fused.pack()

    def _part_by_part(
        self, x: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, residual = self._norm.run(x, residual)
        out = self._linear.run(hidden)
        return out if self._activation is None else self._activation.run(out), residual


class AddNormMlp(Layer):
    """``x, residual [tokens, k] -> the gated MLP of their norm [tokens, n], residual + x``.

    Below MANY_ROWS tokens the activation belongs to the product in front, which may compute it from
    its sums. With more it belongs to the one behind, which then quantises what it just computed.
    """

    def __init__(
        self,
        front: AddNormLinear,
        wide: Packed | None,
        silu: Packed,
        parts: tuple[AddRMSNorm, Linear, SiluAndMul, Linear],
    ) -> None:
        norm, widen, _, narrow = parts
        super().__init__(fused_name(parts), norm.takes, (narrow.gives[0], norm.gives[1]))
        self._front = front
        self._wide = wide
        self._silu = silu
        self._norm = norm
        self._widen = widen
        self._narrow = narrow

    @classmethod
    def make(
        cls,
        context: BuildContext,
        norm: AddRMSNorm,
        widen: Linear,
        activation: SiluAndMul,
        narrow: Linear,
    ) -> Self | None:
        """None, too, where no kernel joins activation and product: the shorter runs remain."""
        op, many = f"silu_{narrow.op}", (MANY_ROWS, None)
        if op not in OPS:
            return None
        name, parts = fused_name((activation, narrow)), ("silu_and_mul@1", narrow.op)
        silu = context.bind_fused(op, name, parts, narrow.traits, rows=many)
        front = AddNormLinear.make(context, norm, widen, activation)
        if silu is None or front is None:
            return None
        wide = bind_add_norm(context, norm, widen, None, many)
        return cls(front, wide, Packed(silu, narrow), (norm, widen, activation, narrow))

    def run(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if x.shape[0] < MANY_ROWS:
            inner, summed = self._front.run(x, residual)
            return self._narrow.run(inner), summed
        if self._wide is None:
            hidden, summed = self._norm.run(x, residual)
            pair = self._widen.run(hidden)
        else:
            pair, summed = add_norm_linear(self._wide, self._norm, self._widen, x, residual)
        out: torch.Tensor = self._silu.call(pair, *self._silu.weights, self._narrow.bias)
        return out, summed

    def pack_weights(self) -> None:
        self._front.pack_weights()
        for fused in (self._wide, self._silu):
            if fused is not None:
                fused.pack()


class RopeAttention(Layer):
    """``qkv [tokens, all heads * head_dim], positions, rows -> [tokens, heads * head_dim]``.

    Norms of heads, rotation and KV write in one launch, then attention. Changes ``qkv``.
    """

    def __init__(
        self,
        call: BoundKernel,
        split: SplitHeads,
        rope: Rope,
        attention: Attention,
        norms: tuple[RMSNorm, RMSNorm] | None,
    ) -> None:
        name = fused_name((split, *(norms or ()), rope, attention))
        super().__init__(name, (*split.takes, Replicate(), Replicate()), attention.gives)
        self._call = call
        self._split = split
        self._rope = rope
        self._attention = attention
        self._norms = norms

    @classmethod
    def make(
        cls,
        context: BuildContext,
        split: SplitHeads,
        rope: Rope,
        attention: Attention,
        norms: tuple[RMSNorm, RMSNorm] | None = None,
    ) -> Self | None:
        """With ``norms`` of query and key heads, whose eps must agree, or without."""
        if norms is not None and norms[0].eps != norms[1].eps:
            return None
        head_norm = norms is not None
        binding = context.bind_fused(
            f"rope_{attention.write_op}",
            fused_name((split, *(norms or ()), rope, attention)),
            (*(("rms_norm@1",) if head_norm else ()), "rope@1", attention.write_op),
            {
                **attention.traits,
                "rotary": rope.rotary,
                "interleaved": rope.interleaved,
                "head_norm": head_norm,
            },
        )
        return None if binding is None else cls(binding.call, split, rope, attention, norms)

    def run(self, qkv: torch.Tensor, positions: torch.Tensor, rows: Rows) -> torch.Tensor:
        q, k, v = self._split.run(qkv)
        attention = self._attention
        self._call(
            q,
            k,
            v,
            positions,
            self._rope.table,
            *attention.cache(rows),
            rows.batch.token_slot,
            *self._norm_weights(),
            *attention.scales,
            self._norms[0].eps if self._norms else NO_NORM_EPS,
        )
        return attention.attend(q, rows)

    def _norm_weights(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Read at each call: they are the parts' own."""
        if self._norms is None:
            return None, None
        return self._norms[0].weight, self._norms[1].weight
