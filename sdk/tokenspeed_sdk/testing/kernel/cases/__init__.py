# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Cases of every public op, generated from a grid of sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from tokenspeed_sdk.testing.kernel.cases import fused, paged, rows, tables
from tokenspeed_sdk.testing.kernel.cases.base import (
    LARGE,
    TINY,
    USUAL,
    Call,
    Case,
    Facts,
    Grid,
    Inputs,
)

__all__ = ["FACTS", "LARGE", "TINY", "USUAL", "Call", "Case", "Facts", "Grid", "Inputs", "cases_of"]

Generator = Callable[[Grid], Iterator[Case]]

GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "embedding@1": rows.embedding,
        "linear@1": rows.linear,
        "rms_norm@1": rows.rms_norm,
        "add_rms_norm@1": rows.add_rms_norm,
        "add_norm_linear@1": fused.add_norm_linear,
        "rope@1": rows.rope,
        "kv_write@1": paged.kv_write,
        "rope_kv_write@1": fused.rope_kv_write,
        "attention_prefill@1": paged.attention_prefill,
        "attention_decode@1": paged.attention_decode,
        "silu_and_mul@1": rows.silu_and_mul,
        "gather_rows@1": rows.gather_rows,
        "sample@1": tables.sample,
        "page_table_update@1": tables.page_table_update,
    }
)

_ROUNDED = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
"""One rounding of the result, with a margin; sums of a few thousand terms in float32."""

_TWICE = _ROUNDED | {"float32": 2e-5}
"""Sums over long rows, and weights of attention that are rounded once, too."""

_CHAINED = {dtype: 2 * bound for dtype, bound in _ROUNDED.items()}
"""Several ops in one, which may round between them."""

FACTS: Mapping[str, Facts] = MappingProxyType(
    {
        "embedding@1": Facts(weight=1),
        "linear@1": Facts(_TWICE, weight=1),
        "rms_norm@1": Facts(_ROUNDED),
        "add_rms_norm@1": Facts(_ROUNDED, changed=(1,)),
        "add_norm_linear@1": Facts(_CHAINED, weight=4, changed=(2,)),
        "rope@1": Facts(_ROUNDED, changed=(0, 1), kept=(3,)),
        "kv_write@1": Facts(changed=(2, 3)),
        "rope_kv_write@1": Facts(_ROUNDED, changed=(0, 5, 6), exact=(6,), kept=(4,)),
        "attention_prefill@1": Facts(_TWICE),
        "attention_decode@1": Facts(_TWICE),
        "silu_and_mul@1": Facts(_ROUNDED),
        "gather_rows@1": Facts(),
        "sample@1": Facts(any_dtype=True),
        "page_table_update@1": Facts(changed=(0, 1), any_dtype=True),
    }
)
"""Op to what a check must know of it. Without bounds, results must be equal."""


def cases_of(op: str, grid: Grid = USUAL) -> tuple[Case, ...]:
    """The cases of a public op.

    Raises:
        LookupError: no such public op.
    """
    if op not in GENERATORS:
        raise LookupError(f"{op!r} is no public op; use one of {', '.join(GENERATORS)}")
    return tuple(GENERATORS[op](grid))
