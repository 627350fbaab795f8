# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""rope_kv_write_fp8@1: all that happens to heads before attention over eight-bit pages."""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops._args import FLOATS, INT32, Args
from tokenspeed_sdk.ops.kv_write_fp8 import check_cache, kv_write_fp8
from tokenspeed_sdk.ops.op import Op
from tokenspeed_sdk.ops.rope import rope
from tokenspeed_sdk.ops.rope_kv_write import normalised


def rope_kv_write_fp8(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    token_slot: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    eps: float,
    *,
    interleaved: bool,
) -> None:
    """``rope_kv_write@1`` with ``kv_write_fp8@1`` at its end.

    A kernel need not round rotated keys to the dtype of ``k`` before it encodes them.

    Args:
        q: [T, Hq, D] floating; becomes normalised and rotated IN PLACE.
        k, v: [T, Hkv, D] in the dtype of ``q``; left as they are.
        positions: [T] int32, each in [0, max_pos) and in [0, M * page).
        cos_sin: [max_pos, rotary] float32, as ``rope`` takes it.
        k_cache, v_cache: [P, Hkv, page, D] float8_e4m3fn; written IN PLACE.
        page_table: [S2, M] int32, each used entry in [0, P).
        token_slot: [T] int32, each in [0, S2). Padded tokens point to the null page 0.
        q_weight, k_weight: [D] in the dtype of ``q``, or both None: no norm.
        k_scale, v_scale: [1] float32, positive.
        eps: positive, added to the mean of squares; unused without weights.
        interleaved: False for pairs in halves, True for neighbours.

    Raises:
        ValueError: a shape or dtype is wrong, one weight alone is given, or an index lies outside
            its tensor.
    """
    args = Args("rope_kv_write_fp8@1")
    args.tensor("q", q, "T Hq D", FLOATS)
    args.tensor("k", k, "T Hkv D", FLOATS)
    args.tensor("v", v, "T Hkv D", FLOATS)
    args.same_dtype(q=q, k=k, v=v)
    args.tensor("positions", positions, "T", INT32)
    check_cache(args, k_cache, v_cache, k_scale, v_scale)
    keys = normalised(args, q, k, q_weight, k_weight, eps)
    rope(q, keys, positions, cos_sin, interleaved=interleaved)
    cache = (k_cache, v_cache, page_table, token_slot, positions)
    kv_write_fp8(keys, v, *cache, k_scale, v_scale)


ROPE_KV_WRITE_FP8 = Op(
    "rope_kv_write_fp8@1",
    rope_kv_write_fp8,
    traits=("heads", "kv_heads", "head_dim", "page_size", "rotary", "interleaved", "head_norm"),
    keywords=("interleaved",),
)
