# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""kv_write@1: put keys and values of new tokens into their pages.

Paged KV memory: Kwon et al., 2023, arXiv:2309.06180.
"""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops._args import FLOATS, INT32, Args
from tokenspeed_sdk.ops.op import Op


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    token_slot: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """Token t goes to page ``page_table[token_slot[t], positions[t] // page]``, at offset
    ``positions[t] % page``.

    Tokens of one slot have different positions. Padded tokens point to the null page 0, where
    several may land: what it holds is unspecified.

    Args:
        k, v: [T, Hkv, D] in the dtype of the caches.
        k_cache, v_cache: [P, Hkv, page, D] floating; written IN PLACE.
        page_table: [S2, M] int32, each used entry in [0, P).
        token_slot: [T] int32, each in [0, S2).
        positions: [T] int32, each in [0, M * page).

    Raises:
        ValueError: a shape or dtype is wrong, or an index lies outside its tensor.
    """
    args = Args("kv_write@1")
    args.tensor("k", k, "T Hkv D", FLOATS)
    args.tensor("v", v, "T Hkv D", FLOATS)
    args.tensor("k_cache", k_cache, "P Hkv page D", FLOATS)
    args.tensor("v_cache", v_cache, "P Hkv page D", FLOATS)
    args.same_dtype(k_cache=k_cache, v_cache=v_cache, k=k, v=v)
    write_tokens(args, k, v, k_cache, v_cache, page_table, token_slot, positions)


def write_tokens(
    args: Args,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    token_slot: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """Copy tokens of the caches' dtype to their places; checks these."""
    args.tensor("page_table", page_table, "S2 M", INT32)
    args.tensor("token_slot", token_slot, "T", INT32)
    args.tensor("positions", positions, "T", INT32)
    page = k_cache.shape[2]
    args.within("token_slot", token_slot, 0, page_table.shape[0])
    args.within("positions", positions, 0, page_table.shape[1] * page)
    for t, (slot, position) in enumerate(zip(token_slot.tolist(), positions.tolist(), strict=True)):
        entry = page_table[slot, position // page]
        args.within("page_table", entry, 0, k_cache.shape[0])
        k_cache[int(entry), :, position % page] = k[t]
        v_cache[int(entry), :, position % page] = v[t]


KV_WRITE = Op("kv_write@1", kv_write, traits=("kv_heads", "head_dim", "page_size"))
