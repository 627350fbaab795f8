# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""All public ops by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tokenspeed_sdk.ops.activation import SILU_AND_MUL
from tokenspeed_sdk.ops.add_norm_linear import ADD_NORM_LINEAR
from tokenspeed_sdk.ops.add_norm_linear_fp8 import ADD_NORM_LINEAR_FP8
from tokenspeed_sdk.ops.add_norm_linear_int8 import ADD_NORM_LINEAR_INT8
from tokenspeed_sdk.ops.adjust_logits import ADJUST_LOGITS, ADJUST_LOGITS_VERIFY
from tokenspeed_sdk.ops.attention import ATTENTION_DECODE, ATTENTION_PREFILL, ATTENTION_VERIFY
from tokenspeed_sdk.ops.attention_fp8 import (
    ATTENTION_DECODE_FP8,
    ATTENTION_PREFILL_FP8,
    ATTENTION_VERIFY_FP8,
)
from tokenspeed_sdk.ops.embedding import EMBEDDING
from tokenspeed_sdk.ops.gather import GATHER_ROWS
from tokenspeed_sdk.ops.kv_write import KV_WRITE
from tokenspeed_sdk.ops.kv_write_fp8 import KV_WRITE_FP8
from tokenspeed_sdk.ops.linear import LINEAR
from tokenspeed_sdk.ops.linear_fp8 import LINEAR_FP8
from tokenspeed_sdk.ops.linear_int8 import LINEAR_INT8
from tokenspeed_sdk.ops.logprobs import LOGPROBS
from tokenspeed_sdk.ops.mask_logits import MASK_LOGITS
from tokenspeed_sdk.ops.norm import ADD_RMS_NORM, RMS_NORM
from tokenspeed_sdk.ops.op import Op
from tokenspeed_sdk.ops.page_table import PAGE_TABLE_UPDATE
from tokenspeed_sdk.ops.record_tokens import RECORD_TOKENS
from tokenspeed_sdk.ops.rope import ROPE
from tokenspeed_sdk.ops.rope_kv_write import ROPE_KV_WRITE
from tokenspeed_sdk.ops.rope_kv_write_fp8 import ROPE_KV_WRITE_FP8
from tokenspeed_sdk.ops.sample import SAMPLE
from tokenspeed_sdk.ops.silu_linear_fp8 import SILU_LINEAR_FP8

OPS: Mapping[str, Op] = MappingProxyType(
    {
        op.name: op
        for op in (
            EMBEDDING,
            LINEAR,
            LINEAR_FP8,
            LINEAR_INT8,
            RMS_NORM,
            ADD_RMS_NORM,
            ADD_NORM_LINEAR,
            ADD_NORM_LINEAR_FP8,
            ADD_NORM_LINEAR_INT8,
            ROPE,
            KV_WRITE,
            KV_WRITE_FP8,
            ROPE_KV_WRITE,
            ROPE_KV_WRITE_FP8,
            ATTENTION_PREFILL,
            ATTENTION_PREFILL_FP8,
            ATTENTION_DECODE,
            ATTENTION_DECODE_FP8,
            ATTENTION_VERIFY,
            ATTENTION_VERIFY_FP8,
            SILU_AND_MUL,
            SILU_LINEAR_FP8,
            GATHER_ROWS,
            ADJUST_LOGITS,
            ADJUST_LOGITS_VERIFY,
            MASK_LOGITS,
            SAMPLE,
            RECORD_TOKENS,
            LOGPROBS,
            PAGE_TABLE_UPDATE,
        )
    }
)
"""Name, such as "linear@1", to op."""
