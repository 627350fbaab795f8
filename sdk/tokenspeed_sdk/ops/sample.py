# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""sample@1: one token per row of logits.

Top-k: Fan et al., 2018, arXiv:1805.04833; top-p (nucleus): Holtzman et al., 2019,
arXiv:1904.09751; min-p: Nguyen et al., 2024, arXiv:2407.01082. The draw is an exponential race (the
Gumbel trick) over Philox4x32-10: Salmon et al., 2011.
"""

from __future__ import annotations

import torch

from tokenspeed_sdk.ops._args import INT32, INT64, Args
from tokenspeed_sdk.ops.op import Op, Result, Traits
from tokenspeed_sdk.ops.philox import MASK, philox4x32

NO_TOKEN = -1
"""What a row yields whose logits define no distribution."""

_REAL = (torch.float32, torch.float64)


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
) -> torch.Tensor:
    """Draw one token id per row.

    Temperature 0 takes the largest logit, the lowest id among equals. Otherwise, with
    ``p = softmax(logits / temperature)``, three filters follow each other:

    1. the ``top_k`` largest (equals by lower id; ``top_k <= 0`` keeps all);
    2. of those, renormalised and sorted, the smallest prefix whose mass reaches ``top_p`` (at least
       one token; ``top_p >= 1`` keeps all);
    3. of those, the tokens with ``p >= min_p * max(p)``.

    The kept token i with the largest ``p_i / e_i`` wins, where ``e_i = -ln(u_i)``,
    ``u_i = (w_i + 0.5) / 2^32``, and ``w_i`` is the first word of the Philox block with the seed as
    key (low word, high word) and the counter (i, position low, position high, 0). A draw depends on
    its own row alone, whatever shares the batch. In float32, ``u`` near 1 rounds to 1: compute
    ``e`` so that it stays positive.

    Args:
        logits: [E, V] float32; -inf for a token that may not be drawn.
        temperature: [E] float32, not negative.
        top_k: [E] int32.
        top_p, min_p: [E] float32.
        seed: [E] int64; all 64 bits count.
        position: [E] int64, position of the drawn token in its request.

    Returns:
        [E] int64; -1 for a row whose largest logit is not finite (a NaN, +inf, or all -inf).

    Raises:
        ValueError: a shape or dtype is wrong, or a temperature is negative.
    """
    args = Args("sample@1")
    args.tensor("logits", logits, "E V", _REAL)
    args.tensor("temperature", temperature, "E", _REAL)
    args.tensor("top_k", top_k, "E", INT32)
    args.tensor("top_p", top_p, "E", _REAL)
    args.tensor("min_p", min_p, "E", _REAL)
    args.tensor("seed", seed, "E", INT64)
    args.tensor("position", position, "E", INT64)
    if bool((temperature < 0).any()):
        args.fail("temperature", f"must not be negative; got {float(temperature.min())}")
    drawn = [
        _sample_row(
            logits[e].double(),
            float(temperature[e]),
            int(top_k[e]),
            float(top_p[e]),
            float(min_p[e]),
            int(seed[e]),
            int(position[e]),
        )
        for e in range(logits.shape[0])
    ]
    return torch.tensor(drawn, dtype=torch.int64, device=logits.device)


def _sample_row(
    logits: torch.Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    position: int,
) -> int:
    if not bool(logits.max().isfinite()):
        return NO_TOKEN
    if temperature == 0:
        return int((logits == logits.max()).nonzero()[0])
    # The largest logit becomes 0 first, so that a tiny temperature overflows nothing.
    p = ((logits - logits.max()) / temperature).softmax(0)
    kept = _filter(p, top_k, top_p, min_p)
    race = p[kept].log() + gumbel(kept, seed, position)
    return int(kept[race.argmax()])


def _filter(p: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """Ids that survive top-k, top-p and min-p, by falling probability; never empty."""
    sorted_p, ids = p.sort(descending=True, stable=True)
    if top_k > 0:
        sorted_p, ids = sorted_p[:top_k], ids[:top_k]
    if top_p < 1:
        share = sorted_p / sorted_p.sum()
        before = share.cumsum(0) - share
        keep = max(1, int((before < top_p).sum()))
        sorted_p, ids = sorted_p[:keep], ids[:keep]
    return ids[sorted_p >= min(min_p, 1.0) * sorted_p[0]]


def gumbel(ids: torch.Tensor, seed: int, position: int) -> torch.Tensor:
    """``-ln(e_i)`` of each token id: [n] int64 -> [n] float64."""
    key = (seed & MASK, (seed >> 32) & MASK)
    low, high = (torch.full_like(ids, word) for word in (position & MASK, (position >> 32) & MASK))
    word, _, _, _ = philox4x32(key, (ids, low, high, torch.zeros_like(ids)))
    u = (word.double() + 0.5) * 2.0**-32
    return -(-u.log()).log()


def _result(traits: Traits, logits: torch.Tensor, *_: object) -> Result:
    return ((logits.shape[0],), torch.int64)


SAMPLE = Op("sample@1", sample, traits=("vocab",), result=_result)
