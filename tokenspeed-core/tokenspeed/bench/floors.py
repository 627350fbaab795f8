# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a device allows a model at best, from rates that the same run measures.

A decode step reads every weight of the linear layers once and the KV of every sequence's context.
Prefill is bound by arithmetic: two operations for a weight and a token, and four for a head's
dimension and a pair of query and key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """What of a model counts.

    Attributes:
        layer_weights: elements of the linear layers, the head left out.
        head_weights: elements of the head, which sees the last token of a prompt only.
        pair_flops: operations of all layers' attention for one pair of query and key.
    """

    layer_weights: int
    head_weights: int
    pair_flops: int


@dataclass(frozen=True)
class Rates:
    """What the device reached.

    Attributes:
        linears_s: rows -> seconds of all linear layers and the head alone, by the kernels that the
            engine takes or by torch's, whichever are faster.
        read_bytes_s: bytes a second that a sum reads.
        matrix_flops_s: operations a second of a large matrix product.
        attention_flops_s: prompt length -> operations a second of causal attention alone.
    """

    linears_s: Mapping[int, float]
    read_bytes_s: float
    matrix_flops_s: float
    attention_flops_s: Mapping[int, float]


@dataclass(frozen=True)
class Turns:
    """Conversations of ``users``, each with a history and turns of new and decoded tokens."""

    users: int
    history: int
    turns: int
    added: int
    output: int

    @property
    def longest(self) -> int:
        """Tokens of a whole conversation."""
        return self.history + self.turns * (self.added + self.output)


class Floors:
    """Least seconds of the workloads."""

    def __init__(self, sizes: Sizes, rates: Rates, kv_bytes_per_token: float) -> None:
        self._sizes = sizes
        self._rates = rates
        self._kv_bytes = kv_bytes_per_token

    def decode(self, batch: int, context: float) -> float:
        """Of one step, ``context`` tokens for each sequence on average."""
        kv = batch * context * self._kv_bytes / self._rates.read_bytes_s
        return self._rates.linears_s[batch] + kv

    def prefill(self, tokens: int) -> float:
        """Of a prompt from its submission to its first token."""
        return self._products(tokens, heads=1) + self._attention(tokens * (tokens + 1) / 2, tokens)

    def agentic(self, work: Turns) -> float:
        """Of all turns after the histories are cached. The first token of a turn is prefill's."""
        seconds = 0.0
        for turn in range(work.turns):
            before = work.history + turn * (work.added + work.output)
            pairs = work.users * work.added * (before + (work.added + 1) / 2)
            seconds += self._products(work.users * work.added, heads=work.users)
            seconds += self._attention(pairs, work.history)
            middle = before + work.added + work.output / 2
            seconds += (work.output - 1) * self.decode(work.users, middle)
        return seconds

    def _products(self, tokens: int, heads: int) -> float:
        weights = tokens * self._sizes.layer_weights + heads * self._sizes.head_weights
        return 2 * weights / self._rates.matrix_flops_s

    def _attention(self, pairs: float, tokens: int) -> float:
        """At the rate that was measured at the length nearest to ``tokens``."""
        rates = self._rates.attention_flops_s
        nearest = min(rates, key=lambda length: abs(length - tokens))
        return pairs * self._sizes.pair_flops / rates[nearest]
