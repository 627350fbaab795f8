# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""linear@1 and embedding@1 over packed panels."""

from __future__ import annotations

import pytest
import torch

from .support import bind, embedded, find, randn, reference, site

SHAPES = [(576, 576), (960, 64), (49, 17), (1, 1), (16, 1025), (130, 2050)]


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 6, 7, 13, 16, 17, 31, 33, 75])
@pytest.mark.usefixtures("isa")
def test_linear_equals_reference(rng: torch.Generator, n: int, k: int, rows: int) -> None:
    weight, bias = randn(rng, n, k), randn(rng, n)
    x = embedded(randn(rng, rows, k))
    kernel = find("linear@1")
    for b in (None, bias):
        traits = {"n": n, "k": k, "bias": b is not None}
        packed = kernel.pack_weight(site("linear@1", **traits), weight)
        out = bind("linear@1", **traits)(x, packed, b)
        wanted = reference("linear@1", **traits)(
            x.double(), weight.double(), b if b is None else b.double()
        )
        torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=2e-5 * k**0.5)


def test_rows_of_another_width_are_refused() -> None:
    """A stranger's kernel may have made them; reading on would be reading somebody's memory."""
    call = bind("linear@1", n=32, k=64, bias=False)
    packed = find("linear@1").pack_weight(
        site("linear@1", n=32, k=64, bias=False), torch.ones(32, 64)
    )
    with pytest.raises(ValueError, match="x has 3 columns, the weight takes 64"):
        call(torch.ones(5, 3), packed, None)


@pytest.mark.parametrize("name", ["onednn", "torch"])
@pytest.mark.parametrize("rows", [1, 16])
def test_other_candidates(rng: torch.Generator, name: str, rows: int) -> None:
    traits = {"n": 96, "k": 64, "bias": True}
    weight, bias, x = randn(rng, 96, 64), randn(rng, 96), randn(rng, rows, 64)
    packed = find("linear@1", name).pack_weight(site("linear@1", **traits), weight)
    out = bind("linear@1", name, **traits)(x, packed, bias)
    torch.testing.assert_close(out, reference("linear@1", **traits)(x, weight, bias))


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


@pytest.mark.parametrize(
    ("vocab", "hidden", "tokens"), [(50, 32, 7), (16, 5, 1), (300, 576, 200), (3, 4, 0)]
)
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.usefixtures("isa")
def test_embedding_equals_reference(
    rng: torch.Generator, vocab: int, hidden: int, tokens: int, packed: bool
) -> None:
    traits = {"vocab": vocab, "hidden": hidden}
    weight = embedded(randn(rng, vocab, hidden))
    ids = torch.randint(0, vocab, (tokens,), generator=rng)
    given = (
        find("embedding@1").pack_weight(site("embedding@1", **traits), weight) if packed else weight
    )
    assert torch.equal(bind("embedding@1", **traits)(ids, given), weight[ids])


def test_an_id_outside_the_table_yields_zeros(rng: torch.Generator) -> None:
    out = bind("embedding@1", vocab=5, hidden=8)(torch.tensor([-1, 5, 2]), randn(rng, 5, 8))
    assert out[:2].eq(0).all()
    assert out[2].ne(0).all()
