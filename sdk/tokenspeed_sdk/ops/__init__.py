# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The public ops: what a model may call, and what a kernel must compute.

Each op is one function in plain torch: its signature, its argument checks and its naive definition.
That reference is the oracle of every kernel, never a fast path. Letters in shapes: T query tokens,
R rows, E rows that sample, S2 slots + 2 (slot 0 and the last one are nobody's), M pages per row at
most, P pages + 1 (page 0 is the null page), H hidden size, D head size, V vocabulary.

References compute in float32, in float64 when the inputs are float64, and round once at the end.
Tensors may have any strides with a unit last one. Slot 0, the last slot and page 0 may be read and
written freely by padded rows.
"""

from tokenspeed_sdk.ops.activation import silu_and_mul
from tokenspeed_sdk.ops.add_norm_linear import add_norm_linear
from tokenspeed_sdk.ops.add_norm_linear_fp8 import add_norm_linear_fp8
from tokenspeed_sdk.ops.add_norm_linear_int8 import add_norm_linear_int8
from tokenspeed_sdk.ops.adjust_logits import adjust_logits, adjust_logits_verify
from tokenspeed_sdk.ops.attention import attention_decode, attention_prefill, attention_verify
from tokenspeed_sdk.ops.attention_fp8 import (
    attention_decode_fp8,
    attention_prefill_fp8,
    attention_verify_fp8,
)
from tokenspeed_sdk.ops.catalog import OPS
from tokenspeed_sdk.ops.embedding import embedding
from tokenspeed_sdk.ops.gather import gather_rows
from tokenspeed_sdk.ops.kv_write import kv_write
from tokenspeed_sdk.ops.kv_write_fp8 import kv_write_fp8
from tokenspeed_sdk.ops.linear import linear
from tokenspeed_sdk.ops.linear_fp8 import linear_fp8
from tokenspeed_sdk.ops.linear_int8 import linear_int8
from tokenspeed_sdk.ops.logprobs import logprobs
from tokenspeed_sdk.ops.mask_logits import mask_logits
from tokenspeed_sdk.ops.norm import add_rms_norm, rms_norm
from tokenspeed_sdk.ops.op import Op
from tokenspeed_sdk.ops.page_table import page_table_update
from tokenspeed_sdk.ops.record_tokens import record_tokens
from tokenspeed_sdk.ops.reference import ReferenceResolver
from tokenspeed_sdk.ops.rope import rope
from tokenspeed_sdk.ops.rope_kv_write import rope_kv_write
from tokenspeed_sdk.ops.rope_kv_write_fp8 import rope_kv_write_fp8
from tokenspeed_sdk.ops.sample import sample
from tokenspeed_sdk.ops.silu_linear_fp8 import silu_linear_fp8

__all__ = [
    "OPS",
    "Op",
    "ReferenceResolver",
    "add_norm_linear",
    "add_norm_linear_fp8",
    "add_norm_linear_int8",
    "add_rms_norm",
    "adjust_logits",
    "adjust_logits_verify",
    "attention_decode",
    "attention_decode_fp8",
    "attention_prefill",
    "attention_prefill_fp8",
    "attention_verify",
    "attention_verify_fp8",
    "embedding",
    "gather_rows",
    "kv_write",
    "kv_write_fp8",
    "linear",
    "linear_fp8",
    "linear_int8",
    "logprobs",
    "mask_logits",
    "page_table_update",
    "record_tokens",
    "rms_norm",
    "rope",
    "rope_kv_write",
    "rope_kv_write_fp8",
    "sample",
    "silu_and_mul",
    "silu_linear_fp8",
]
