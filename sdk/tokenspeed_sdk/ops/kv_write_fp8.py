# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""kv_write_fp8@1: put keys and values of new tokens into pages of eight-bit numbers."""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops._args import E4M3, FLOAT32, FLOATS, Args
from tokenspeed_sdk.ops.fp8 import encode
from tokenspeed_sdk.ops.kv_write import write_tokens
from tokenspeed_sdk.ops.op import Op


def kv_write_fp8(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    token_slot: torch.Tensor,
    positions: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    """``kv_write@1`` of ``e4m3(k / k_scale)`` and ``e4m3(v / v_scale)``, divided in float32.

    What lies beyond the largest code becomes that code, +-448.

    Args:
        k, v: [T, Hkv, D] floating, of one dtype.
        k_cache, v_cache: [P, Hkv, page, D] float8_e4m3fn; written IN PLACE.
        page_table: [S2, M] int32, each used entry in [0, P).
        token_slot: [T] int32, each in [0, S2). Padded tokens point to the null page 0.
        positions: [T] int32, each in [0, M * page).
        k_scale, v_scale: [1] float32, positive.

    Raises:
        ValueError: a shape or dtype is wrong, or an index lies outside its tensor.
    """
    args = Args("kv_write_fp8@1")
    args.tensor("k", k, "T Hkv D", FLOATS)
    args.tensor("v", v, "T Hkv D", FLOATS)
    args.same_dtype(k=k, v=v)
    check_cache(args, k_cache, v_cache, k_scale, v_scale)
    codes = encode(k, k_scale), encode(v, v_scale)
    write_tokens(args, *codes, k_cache, v_cache, page_table, token_slot, positions)


def check_cache(
    args: Args,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    """Shapes and dtypes of codes and scales."""
    args.tensor("k_cache", k_cache, "P Hkv page D", E4M3)
    args.tensor("v_cache", v_cache, "P Hkv page D", E4M3)
    args.tensor("k_scale", k_scale, "1", FLOAT32)
    args.tensor("v_scale", v_scale, "1", FLOAT32)


KV_WRITE_FP8 = Op("kv_write_fp8@1", kv_write_fp8, traits=("kv_heads", "head_dim", "page_size"))
