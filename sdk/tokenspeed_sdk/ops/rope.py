# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""rope@1: rotary position embedding.

Su et al., RoFormer, 2021, arXiv:2104.09864. Two layouts of the rotated pairs are in use: halves
(GPT-NeoX; pair i is elements i and i + rotary/2) and interleaved (GPT-J; elements 2i and 2i + 1).
"""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops._args import FLOATS, INT32, Args, compute_dtype
from tokenspeed_sdk.ops.op import Op


def rope(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    interleaved: bool,
) -> None:
    """Rotate the leading ``rotary`` elements of every head of q and k IN PLACE.

    Pair (a, b) with frequency f at position p becomes
    ``(a * cos(p f) - b * sin(p f), b * cos(p f) + a * sin(p f))``; the rest of a head stays.

    Args:
        q: [T, Hq, D] floating, any strides with a unit last one.
        k: [T, Hkv, D] in the dtype of ``q``.
        positions: [T] int32, each in [0, max_pos).
        cos_sin: [max_pos, rotary] float32, rotary even and at most D; a row holds the cosines of
            the rotary/2 frequencies, then their sines.
        interleaved: False for pairs in halves, True for neighbours.

    Raises:
        ValueError: a shape or dtype is wrong, or a position lies outside the table.
    """
    args = Args("rope@1")
    args.tensor("q", q, "T Hq D", FLOATS)
    args.tensor("k", k, "T Hkv D", FLOATS)
    args.same_dtype(q=q, k=k)
    args.tensor("positions", positions, "T", INT32)
    args.tensor("cos_sin", cos_sin, "max_pos rotary", (torch.float32,))
    rotary = cos_sin.shape[1]
    if rotary % 2 or rotary > q.shape[-1]:
        args.fail("cos_sin", f"must have an even width of at most {q.shape[-1]}; got {rotary}")
    args.within("positions", positions, 0, cos_sin.shape[0])
    table = cos_sin[positions.long()].to(compute_dtype(q))
    cos, sin = table[:, None, : rotary // 2], table[:, None, rotary // 2 :]
    for heads in (q, k):
        _rotate(heads[..., :rotary], cos, sin, interleaved)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> None:
    half = x.shape[-1] // 2
    first = x[..., 0::2] if interleaved else x[..., :half]
    second = x[..., 1::2] if interleaved else x[..., half:]
    a, b = first.to(cos.dtype), second.to(cos.dtype)
    rotated_a, rotated_b = a * cos - b * sin, b * cos + a * sin
    first.copy_(rotated_a)
    second.copy_(rotated_b)


ROPE = Op(
    "rope@1",
    rope,
    traits=("head_dim", "rotary", "interleaved"),
    keywords=("interleaved",),
)
