# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How linear@1 and embedding@1 share panels, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from .support import bind, embedded, find, randn, site


def test_rows_of_another_width_are_refused() -> None:
    """A stranger's kernel may have made them; reading on would be reading somebody's memory."""
    call = bind("linear@1", n=32, k=64, bias=False)
    packed = find("linear@1").pack_weight(
        site("linear@1", n=32, k=64, bias=False), torch.ones(32, 64)
    )
    with pytest.raises(ValueError, match=r"x must have shape \[5, 64\]; got \[5, 3\]"):
        call(torch.ones(5, 3), packed, None)


def test_packs_a_strided_weight(rng: torch.Generator) -> None:
    weight = randn(rng, 40, 24)
    traits = {"n": 40, "k": 24, "bias": False}
    call, pack = bind("linear@1", **traits), find("linear@1").pack_weight
    x = randn(rng, 4, 24)
    for same in (embedded(weight), weight.t().contiguous().t()):
        packed = pack(site("linear@1", **traits), same)
        torch.testing.assert_close(call(x, packed), x @ weight.t())


def test_a_tied_head_shares_the_panels_of_the_embedding(rng: torch.Generator) -> None:
    weight = randn(rng, 50, 32)
    embedding = find("embedding@1").pack_weight(site("embedding@1", vocab=50, hidden=32), weight)
    head = find("linear@1").pack_weight(site("linear@1", n=50, k=32, bias=False), weight)
    assert embedding is head
    other = find("linear@1").pack_weight(site("linear@1", n=50, k=32, bias=False), weight.clone())
    assert other.data_ptr() != head.data_ptr()


@pytest.mark.usefixtures("isa")
def test_embedding_reads_a_plain_table_too(rng: torch.Generator) -> None:
    weight = embedded(randn(rng, 50, 37))
    ids = torch.randint(0, 50, (70,), generator=rng)
    assert torch.equal(bind("embedding@1", vocab=50, hidden=37)(ids, weight), weight[ids])


def test_an_id_outside_the_table_yields_zeros(rng: torch.Generator) -> None:
    out = bind("embedding@1", vocab=5, hidden=8)(torch.tensor([-1, 5, 2]), randn(rng, 5, 8))
    assert out[:2].eq(0).all()
    assert out[2].ne(0).all()
