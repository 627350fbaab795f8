# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The catalog of ops, and the resolver that binds references."""

from __future__ import annotations

import inspect

import pytest
import torch
from tokenspeed_sdk.contracts.kernel import CallSite, Trait
from tokenspeed_sdk.contracts.platform import Capabilities
from tokenspeed_sdk.ops import OPS, Op, ReferenceResolver

DEVICE = Capabilities("cpu", "any", ("float32",), frozenset(), 1)


def site(op: str, **traits: Trait) -> CallSite:
    return CallSite(op, "here", "float32", DEVICE, traits)


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_every_op_is_documented_and_typed(op: Op) -> None:
    signature = inspect.signature(op.reference)
    text = inspect.getdoc(op.reference) or ""
    assert "Args:" in text
    assert "Raises:" in text
    for name, parameter in signature.parameters.items():
        assert parameter.annotation is not inspect.Parameter.empty
        assert name in text, f"{op.name} does not document {name}"
    keywords = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert tuple(keywords) == op.keywords
    assert set(op.keywords) <= set(op.traits)
    assert op.name == f"{op.reference.__name__}@1"


def test_binds_the_traits_that_the_reference_takes() -> None:
    traits: dict[str, Trait] = {"head_dim": 4, "rotary": 4, "interleaved": True}
    binding = ReferenceResolver().bind(site("rope@1", **traits))
    q, k = torch.ones(1, 1, 4), torch.ones(1, 1, 4)
    quarter = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    assert binding.kernel == "reference"
    binding.call(q, k, torch.zeros(1, dtype=torch.int32), quarter)
    assert q.flatten().tolist() == [-1.0, 1.0, -1.0, 1.0]


def test_weights_stay_as_they_are() -> None:
    weight = torch.ones(2, 2)
    binding = ReferenceResolver().bind(site("linear@1", n=2, k=2, bias=False))
    assert binding.pack_weight(weight) is weight


def test_unknown_op() -> None:
    with pytest.raises(LookupError, match=r"'here' asks for 'linear@9', .* use one of embedding@1"):
        ReferenceResolver().bind(site("linear@9"))


def test_traits_must_fit() -> None:
    with pytest.raises(ValueError, match=r"missing traits \['k'\], unknown traits \['m'\]"):
        ReferenceResolver().bind(site("linear@1", n=2, m=2, bias=False))
