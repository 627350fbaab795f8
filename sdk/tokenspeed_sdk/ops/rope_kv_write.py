# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""rope_kv_write@1: all that happens to query and key heads before attention, in one launch."""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops._args import FLOATS, INT32, Args
from tokenspeed_sdk.ops.kv_write import kv_write
from tokenspeed_sdk.ops.norm import rms_norm
from tokenspeed_sdk.ops.op import Op
from tokenspeed_sdk.ops.rope import rope


def rope_kv_write(
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
    eps: float,
    *,
    interleaved: bool,
) -> None:
    """``rms_norm@1`` of every head where there are weights, ``rope@1``, then ``kv_write@1``.

    q changes in place. Keys are normalised and rotated on their way into the cache alone: k and v
    stay as they are. A normalised head is rounded to its dtype before it is rotated.

    Args:
        q: [T, Hq, D] floating; becomes normalised and rotated IN PLACE.
        k, v: [T, Hkv, D] in the dtype of ``q``.
        positions: [T] int32, each in [0, max_pos) and in [0, M * page).
        cos_sin: [max_pos, rotary] float32, as ``rope`` takes it.
        k_cache, v_cache: [P, Hkv, page, D] in the dtype of ``q``; written IN PLACE.
        page_table: [S2, M] int32, each used entry in [0, P).
        token_slot: [T] int32, each in [0, S2). Padded tokens point to the null page 0, where
            several may land: what it holds is unspecified.
        q_weight, k_weight: [D] in the dtype of ``q``, or both None: no norm.
        eps: positive, added to the mean of squares; unused without weights.
        interleaved: False for pairs in halves, True for neighbours.

    Raises:
        ValueError: a shape or dtype is wrong, one weight alone is given, or an index lies outside
            its tensor.
    """
    args = Args("rope_kv_write@1")
    args.tensor("q", q, "T Hq D", FLOATS)
    args.tensor("k", k, "T Hkv D", FLOATS)
    args.tensor("v", v, "T Hkv D", FLOATS)
    args.tensor("positions", positions, "T", INT32)
    args.tensor("k_cache", k_cache, "P Hkv page D", FLOATS)
    args.tensor("v_cache", v_cache, "P Hkv page D", FLOATS)
    args.same_dtype(q=q, k=k, v=v, k_cache=k_cache, v_cache=v_cache)
    keys = normalised(args, q, k, q_weight, k_weight, eps)
    rope(q, keys, positions, cos_sin, interleaved=interleaved)
    kv_write(keys, v, k_cache, v_cache, page_table, token_slot, positions)


def normalised(
    args: Args,
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Normalises q in place; returns the keys in fresh memory."""
    if q_weight is None or k_weight is None:
        if q_weight is not k_weight:
            args.fail("k_weight", "must be given with q_weight, or both be None")
        return k.clone()
    args.tensor("q_weight", q_weight, "D", FLOATS)
    args.tensor("k_weight", k_weight, "D", FLOATS)
    args.same_dtype(q=q, q_weight=q_weight, k_weight=k_weight)
    q.copy_(rms_norm(q, q_weight, eps))
    return rms_norm(k, k_weight, eps)


ROPE_KV_WRITE = Op(
    "rope_kv_write@1",
    rope_kv_write,
    traits=("heads", "kv_heads", "head_dim", "page_size", "rotary", "interleaved", "head_norm"),
    keywords=("interleaved",),
)
