# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What an op says of its arguments and of what a call returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenspeed_sdk.contracts.kernel import CallSite
from tokenspeed_sdk.ops import OPS
from tokenspeed_sdk.testing import CPU
from tokenspeed_sdk.testing.kernel.cases import TINY, Inputs, cases_of

SILU = CallSite("silu_and_mul@1", "mlp.act", "bfloat16", CPU, {"inter": 4})


@pytest.mark.parametrize("name", OPS)
def test_every_reference_returns_what_its_op_says(name: str) -> None:
    op = OPS[name]
    for case in cases_of(name, TINY):
        site = CallSite(name, "layer", "bfloat16", CPU, case.traits)
        args = case.make(Inputs(1, torch.bfloat16)).args
        op.check_result(site, args, op.bind_reference(site)(*args))
        for parameter, value in zip(op.parameters, args, strict=False):
            wanted = parameter.number or torch.Tensor
            assert isinstance(value, wanted) or (parameter.optional and value is None)
        required = [parameter for parameter in op.parameters if not parameter.optional]
        assert len(required) <= len(args) <= len(op.parameters)


def test_tensors_stand_before_numbers() -> None:
    """The native border counts on it."""
    for op in OPS.values():
        numbers = [parameter.number is not None for parameter in op.parameters]
        assert numbers == sorted(numbers), op.name


def test_optional_arguments_are_read_from_their_annotations() -> None:
    optional = {
        name: [parameter.name for parameter in op.parameters if parameter.optional]
        for name, op in OPS.items()
    }
    assert optional["linear@1"] == ["bias"]
    assert optional["add_norm_linear@1"] == ["bias"]
    assert optional["rope_kv_write@1"] == ["q_weight", "k_weight"]
    assert optional["rms_norm@1"] == []


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (torch.zeros(3, 5, dtype=torch.bfloat16), r"\[3, 5\] of bfloat16"),
        (torch.zeros(3, 4), r"\[3, 4\] of float32"),
        (None, "None"),
        ((torch.zeros(3, 4),), "a tuple"),
    ],
)
def test_another_result_is_named(returned: Any, found: str) -> None:
    args = (torch.zeros(3, 8, dtype=torch.bfloat16),)
    pattern = rf"silu_and_mul@1 at 'mlp.act' must return \[3, 4\] of bfloat16; .* returned {found}"
    with pytest.raises(ValueError, match=pattern):
        OPS[SILU.op].check_result(SILU, args, returned)


def test_an_op_that_writes_in_place_returns_nothing() -> None:
    site = CallSite("kv_write@1", "layer", "float32", CPU)
    OPS["kv_write@1"].check_result(site, (), None)
    with pytest.raises(ValueError, match=r"must return None; the kernel returned \[2\] of float32"):
        OPS["kv_write@1"].check_result(site, (), torch.zeros(2))
