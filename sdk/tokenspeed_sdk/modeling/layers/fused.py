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
"""Of ``AddNormLinear``'s launch. There, reading the weight is all that takes time; with more rows
every block would compute norms again that one launch before them computes once."""

NO_NORM_EPS = 1.0
"""What ``rope_kv_write`` gets where it normalises nothing."""


def fused_name(parts: Sequence[Layer]) -> str:
    """Names of the parts, with what they share in front: "layers.0.{norm + mlp.up}"."""
    names = [part.name for part in parts]
    columns = zip(*(name.split(".") for name in names), strict=False)
    shared = "".join(f"{words[0]}." for words in takewhile(lambda w: len(set(w)) == 1, columns))
    return f"{shared}{{{' + '.join(name.removeprefix(shared) for name in names)}}}"


class AddNormLinear(Layer):
    """``x, residual [tokens, k] -> projection [tokens, n], residual + x``.

    With up to MOST_ROWS tokens in one launch, which reads the plain weight in the layout that its
    kernel packs; with more, part by part. Where the layouts of the two are different, both are in
    memory.
    """

    def __init__(
        self, binding: Binding, norm: AddRMSNorm, linear: Linear, activation: SiluAndMul | None
    ) -> None:
        parts = (norm, linear, activation) if activation else (norm, linear)
        super().__init__(fused_name(parts), norm.takes, (parts[-1].gives[0], norm.gives[1]))
        self._norm = norm
        self._linear = linear
        self._activation = activation
        self._call = binding.call
        self._pack: Callable[[Any], Any] = binding.pack_weight
        self._weights = linear.weights

    @classmethod
    def make(
        cls,
        context: BuildContext,
        norm: AddRMSNorm,
        linear: Linear,
        activation: SiluAndMul | None = None,
    ) -> Self | None:
        """Of a norm and the linear behind it; of a linear of gate and up, the activation too."""
        op = f"add_norm_{linear.op}"
        if op not in OPS:
            return None
        gated = activation is not None
        parts = ("add_rms_norm@1", linear.op, *(("silu_and_mul@1",) if gated else ()))
        binding = context.bind_fused(
            op,
            fused_name((norm, linear, activation) if activation else (norm, linear)),
            parts,
            {**linear.traits, "gated": gated},
            rows=(1, MOST_ROWS),
        )
        return None if binding is None else cls(binding, norm, linear, activation)

    def run(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not 1 <= x.shape[0] <= MOST_ROWS:
            return self._part_by_part(x, residual)
        norm, bias = self._norm, self._linear.bias
        summed = torch.empty_like(residual)
        out: torch.Tensor = self._call(
            x, residual, summed, norm.weight, *self._weights, bias, norm.eps
        )
        return out, summed

    def pack_weights(self) -> None:
        """Before the parts do: it wants the plain weight."""
        weight, *rest = self._linear.weights
        self._weights = (self._pack(weight), *rest)

    def _part_by_part(
        self, x: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, residual = self._norm.run(x, residual)
        out = self._linear.run(hidden)
        return out if self._activation is None else self._activation.run(out), residual


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
