# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from tokenspeed.plugins.choose.lists import Lists
from tokenspeed.plugins.plan import PluginPlan
from tokenspeed_sdk.contracts.observer import EVENTS, Event


@pytest.fixture
def plan_of(plan_of_sources: Callable[..., PluginPlan]) -> Callable[..., PluginPlan]:
    """``plan_of(good="class Observer: ...")``: a plan with an observer for each source.

    ``needs={"good": ("token_ids",)}`` is what the manifests say; ``named``: allowed by name.
    """

    def make(
        needs: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
        named: tuple[str, ...] = (),
        **sources: str,
    ) -> PluginPlan:
        lists = Lists(allow={"observer": named}) if named else Lists()
        return plan_of_sources("observer", "Observer", sources, needs=needs, lists=lists)

    return make


@pytest.fixture
def log_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where observers of these tests write to: ``open(os.environ["LOG"], "a")``."""
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setenv("LOG", str(path))
    return path


def event(hook: str, **values: Any) -> Event:
    """An event with zeros and empty texts where nothing is said."""
    kind: Any = EVENTS[hook]
    empty: dict[str, Any] = {"str": "", "int": 0, "float": 0.0}
    fields = {name: empty.get(str(note)) for name, note in kind.__annotations__.items()}
    fields.pop("hook")
    fields["outcome" if hook == "request_finished" else "time"] = (
        "stop" if hook == "request_finished" else 0.0
    )
    if hook == "server_ready":
        fields["kernels"] = ()
    result: Event = kind(**{**fields, **values})
    return result


def eventually(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    """Wait for a condition; fails when it does not come true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
