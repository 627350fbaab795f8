# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Priority and salt: what an id and custom_params may say, and what the engine is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenspeed.front.caller import (
    Caller,
    caller_of_custom_params,
    caller_of_request_id,
    namespace_of,
)
from tokenspeed.front.errors import InvalidRequest
from tokenspeed.front.request import GenerationRequest, Limits
from tokenspeed.front.sampling_params import SamplingParams

from .conftest import Front
from .test_generate import code_of, request, responses

UUID = "0191d5d2-7a3c-7000-8000-000000000000"
"""What the gateway appends, after a dash."""


@pytest.mark.parametrize(
    ("header", "priority", "salt"),
    [
        ("p=5,s=acme,mine", 5, "acme"),
        ("s=acme,p=-100,mine", -100, "acme"),
        ("p=100,", 100, None),
        ("s=a b=c;p=9,x,y", None, "a b=c;p=9"),
        ("p=0,own,p=7,s=x", 0, None),
        ("mine", None, None),
        ("priority=5,s=acme,mine", None, None),
        (" p=5,mine", None, None),
        ("P=5,mine", None, None),
        ("", None, None),
    ],
)
def test_fields_of_an_id(header: str, priority: int | None, salt: str | None) -> None:
    assert caller_of_request_id(f"{header}-{UUID}") == Caller(priority=priority, salt=salt)


@pytest.mark.parametrize(
    ("header", "field", "value", "allowed"),
    [
        ("p=abc,mine", "priority", "'abc'", "an integer from -100 to 100"),
        ("p=9999,mine", "priority", "'9999'", "an integer from -100 to 100"),
        ("p=-101,mine", "priority", "-101", "an integer from -100 to 100"),
        ("p=,mine", "priority", "''", "an integer from -100 to 100"),
        ("p=+5,mine", "priority", "'+5'", "an integer from -100 to 100"),
        ("p= 5,mine", "priority", "' 5'", "an integer from -100 to 100"),
        ("p=05,mine", "priority", "'05'", "an integer from -100 to 100"),
        ("p=1.0,mine", "priority", "'1.0'", "an integer from -100 to 100"),
        ("p=٣,mine", "priority", "'٣'", "an integer from -100 to 100"),
        ("p=" + "9" * 5000 + ",mine", "priority", "'999", "an integer from -100 to 100"),
        ("s=acme,p=x,mine", "priority", "'x'", "an integer from -100 to 100"),
        ("p=1,p=2,mine", "priority", "'2'", "there once"),
        ("s=a,p=1,s=b,mine", "salt", "'b'", "there once"),
        ("s=,mine", "salt", "''", "1 to 128 characters"),
        ("s=" + "x" * 129 + ",mine", "salt", "'xxx", "1 to 128 characters"),
        ("p=5", "priority", f"'5-{UUID}'", "followed by a comma"),
        ("p=5,s=acme", "salt", f"'acme-{UUID}'", "followed by a comma"),
    ],
)
def test_a_malformed_field_is_named(header: str, field: str, value: str, allowed: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        caller_of_request_id(f"{header}-{UUID}")
    assert str(error.value).startswith(f"{field} ({field[0]}= in x-request-id) is {value}")
    assert allowed in str(error.value)


@given(
    st.integers(-100, 100),
    st.text(st.characters(exclude_characters=",", exclude_categories=["Cs"]), min_size=1),
)
def test_what_is_written_is_read(priority: int, salt: str) -> None:
    salt = salt[:128]
    read = caller_of_request_id(f"p={priority},s={salt},mine-{UUID}")
    assert read == Caller(priority=priority, salt=salt)


def test_custom_params() -> None:
    assert caller_of_custom_params({"priority": 5.0, "salt": "acme"}) == Caller(
        priority=5, salt="acme"
    )
    assert caller_of_custom_params({"priority": None, "salt": None}) == Caller()
    for params, named in (
        ({"priority": 5.5}, "priority is 5.5, but must be an integer from -100 to 100"),
        ({"priority": 101.0}, "priority is 101, but must be an integer from -100 to 100"),
        ({"priority": float("inf")}, "priority is inf"),
        ({"priority": True}, "priority is True"),
        ({"priority": "5"}, "priority is '5'"),
        ({"salt": 5.0}, "salt is 5.0, but must be a text of 1 to 128 characters"),
        ({"salt": ""}, "salt is ''"),
        ({"tenant": "acme"}, "custom_params is 'tenant', but must be priority or salt"),
    ):
        with pytest.raises(InvalidRequest) as error:
            caller_of_custom_params(params)
        assert str(error.value).startswith(named)


def test_the_namespace_of_a_salt_never_changes() -> None:
    """Caches outlive processes and versions; another number would make strangers of friends."""
    assert namespace_of(None) == 0
    assert namespace_of("acme") == 0x36A2235EABF75662
    assert len({namespace_of(f"tenant {i}") for i in range(1000)} - {0}) == 1000


def test_every_sequence_carries_both() -> None:
    limits = Limits(max_model_len=16, vocab_size=100)
    made = GenerationRequest.validated([5], SamplingParams(priority=-3, salt="acme", n=2), limits)
    submits = made.submits([1, 2], 0)
    assert {(s.priority, s.namespace) for s in submits} == {(-3, namespace_of("acme"))}


async def test_the_engine_is_told(front: Front) -> None:
    ids = {
        "r1": {},
        "p=7,s=acme,r1": {},
        "p=7,s=acme,r2": {"custom_params": {"priority": -1}},
        "p=7,s=acme,r3": {"custom_params": {"salt": "other"}},
        "r4": {"custom_params": {"priority": 100, "salt": "acme"}},
    }
    for request_id, sampling in ids.items():
        async for _ in front.stub.Generate(request(request_id, max_new_tokens=1, **sampling)):
            pass
    acme, other = namespace_of("acme"), namespace_of("other")
    told = [(s.priority, s.namespace) for s in front.engine.submits]
    assert told == [(0, 0), (7, acme), (-1, acme), (7, other), (100, acme)]
    code, text = await code_of(front.stub.Generate(request("p=abc,mine")))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert text == "priority (p= in x-request-id) is 'abc', but must be an integer from -100 to 100"


async def test_isolated_tenants_need_a_salt(serving: Callable[..., Any]) -> None:
    async with serving(isolate_tenants=True) as front:
        code, text = await code_of(front.stub.Generate(request("p=1,mine")))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert text.startswith("salt is None, but must be given, because this server isolates")
        assert "x-request-id: s=" in text
        assert front.engine.submits == []
        call = front.stub.Generate(request(max_new_tokens=1, custom_params={"salt": "acme"}))
        _, [complete] = await responses(call)
        assert complete.finish_reason == "length"
