# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Cases of every public op, generated from a grid of sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from tokenspeed_sdk.testing.kernel.cases import (
    adjusted,
    fp8,
    fused,
    int8,
    likely,
    paged,
    rows,
    tables,
)
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
        "linear_fp8@1": fp8.linear,
        "linear_int8@1": int8.linear,
        "rms_norm@1": rows.rms_norm,
        "add_rms_norm@1": rows.add_rms_norm,
        "add_norm_linear@1": fused.add_norm_linear,
        "add_norm_linear_fp8@1": fp8.add_norm_linear,
        "add_norm_linear_int8@1": int8.add_norm_linear,
        "rope@1": rows.rope,
        "kv_write@1": paged.kv_write,
        "kv_write_fp8@1": fp8.kv_write,
        "rope_kv_write@1": fused.rope_kv_write,
        "rope_kv_write_fp8@1": fp8.rope_kv_write,
        "attention_prefill@1": paged.attention_prefill,
        "attention_prefill_fp8@1": fp8.attention_prefill,
        "attention_decode@1": paged.attention_decode,
        "attention_decode_fp8@1": fp8.attention_decode,
        "attention_verify@1": paged.attention_verify,
        "attention_verify_fp8@1": fp8.attention_verify,
        "silu_and_mul@1": rows.silu_and_mul,
        "silu_linear_fp8@1": fp8.silu_linear,
        "gather_rows@1": rows.gather_rows,
        "adjust_logits@1": adjusted.adjust_logits,
        "adjust_logits_verify@1": adjusted.adjust_logits_verify,
        "mask_logits@1": tables.mask_logits,
        "sample@1": tables.sample,
        "record_tokens@1": adjusted.record_tokens,
        "logprobs@1": likely.logprobs,
        "page_table_update@1": tables.page_table_update,
    }
)

_ROUNDED = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
"""One rounding of the result, with a margin; sums of a few thousand terms in float32."""

_TWICE = _ROUNDED | {"float32": 2e-5}
"""Sums over long rows, and weights of attention that are rounded once, too."""

_CHAINED = {dtype: 2 * bound for dtype, bound in _ROUNDED.items()}
"""Several ops in one, which may round between them."""

_CODED = {"float32": 2e-3, "float16": 5e-3, "bfloat16": 1.2e-2}
"""Activations become codes on the way. Those that lie between two codes may become either, as the
quotient is rounded: often in bfloat16, whose few digits meet the middle, hardly ever in float32. A
product without that step is off by 2.6e-2."""

_INTEGERS = {"float32": 5e-4, "float16": 3e-3, "bfloat16": 1.1e-2}
"""The same with codes that are 127 apart at most: a product without that step is off by 5e-3."""

_CODED_CHAIN = {"float32": 4e-3, "float16": 3e-2, "bfloat16": 8e-2}
"""The same behind a norm that is rounded or not, which moves one code in 50 in bfloat16. Gate times
up doubles what that makes, and a short row has few codes to hide it among."""

_INTEGERS_CHAIN = _CODED_CHAIN | {"float32": 1e-3}
"""The same with integers."""

_CODES = dict.fromkeys(_ROUNDED, 3.2e-2)
"""A key may be one code higher or lower, which is an eighth of it: LONE bounds of an element."""

FACTS: Mapping[str, Facts] = MappingProxyType(
    {
        "embedding@1": Facts(weight=1),
        "linear@1": Facts(_TWICE, weight=1),
        "linear_fp8@1": Facts(_CODED, weight=1, kept=(1, 2)),
        "linear_int8@1": Facts(_INTEGERS, weight=1, kept=(1, 2)),
        "rms_norm@1": Facts(_ROUNDED),
        "add_rms_norm@1": Facts(_ROUNDED, changed=(1,)),
        "add_norm_linear@1": Facts(_CHAINED, weight=4, changed=(2,)),
        "add_norm_linear_fp8@1": Facts(_CODED_CHAIN, weight=4, changed=(2,), kept=(4, 5)),
        "add_norm_linear_int8@1": Facts(_INTEGERS_CHAIN, weight=4, changed=(2,), kept=(4, 5)),
        "rope@1": Facts(_ROUNDED, changed=(0, 1), kept=(3,)),
        "kv_write@1": Facts(changed=(2, 3)),
        "kv_write_fp8@1": Facts(changed=(2, 3)),
        "rope_kv_write@1": Facts(_ROUNDED, changed=(0, 5, 6), exact=(6,), kept=(4,)),
        "rope_kv_write_fp8@1": Facts(_CODES, changed=(0, 5, 6), exact=(6,), kept=(4, 5, 6, 11, 12)),
        "attention_prefill@1": Facts(_TWICE),
        "attention_prefill_fp8@1": Facts(_TWICE, kept=(1, 2, 7, 8)),
        "attention_decode@1": Facts(_TWICE),
        "attention_decode_fp8@1": Facts(_TWICE, kept=(1, 2, 6, 7)),
        "attention_verify@1": Facts(_TWICE),
        "attention_verify_fp8@1": Facts(_TWICE, kept=(1, 2, 6, 7)),
        "silu_and_mul@1": Facts(_ROUNDED),
        "silu_linear_fp8@1": Facts(_CODED_CHAIN, weight=1, kept=(1, 2)),
        "gather_rows@1": Facts(),
        "adjust_logits@1": Facts(changed=(0, 1), any_dtype=True),
        "adjust_logits_verify@1": Facts(changed=(0, 1), any_dtype=True),
        "mask_logits@1": Facts(changed=(0,), any_dtype=True),
        "sample@1": Facts(any_dtype=True),
        "record_tokens@1": Facts(changed=(0, 1), any_dtype=True),
        "logprobs@1": Facts(_ROUNDED, changed=(4, 5), exact=(4,), any_dtype=True),
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
