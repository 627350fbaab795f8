# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The contract ``observer`` agrees with itself: hooks, events, outcomes, and what is written."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any, get_args, get_type_hints

import pytest
from tokenspeed_sdk.contracts import observer
from tokenspeed_sdk.contracts.observer import EVENTS, HOOKS, OUTCOMES, KernelChoice, ObserverHooks


def test_each_hook_takes_its_event() -> None:
    methods = {name: m for name, m in vars(ObserverHooks).items() if not name.startswith("_")}
    assert tuple(methods) == HOOKS == tuple(EVENTS)
    for name, method in methods.items():
        assert list(inspect.signature(method).parameters) == ["self", "event"]
        assert get_type_hints(method) == {"event": EVENTS[name], "return": type(None)}
        assert method.__doc__


def test_the_union_has_every_event() -> None:
    assert set(get_args(observer.Event)) == set(EVENTS.values())
    assert get_args(observer.Outcome) == OUTCOMES


@pytest.mark.parametrize("kind", [*EVENTS.values(), KernelChoice], ids=lambda kind: kind.__name__)
def test_events_are_plain_documented_and_cannot_change(kind: Any) -> None:
    fields = [field.name for field in dataclasses.fields(kind)]
    written = re.findall(r"^ {8}(\w+): ", kind.__doc__, re.MULTILINE)
    assert written == fields, "every field, in order, says what it is"
    event = kind(*[0] * len(fields))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(event, fields[0], 1)
    with pytest.raises((AttributeError, TypeError)):
        event.another = 1
    assert kind is KernelChoice or fields[0] == "time"
