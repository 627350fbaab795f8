# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Modules that stand for installed plugins, and plans that name them."""

from __future__ import annotations

import sys
import types

import pytest
from tokenspeed.plugins.choose.lists import Lists
from tokenspeed.plugins.plan import Planned, PluginPlan
from tokenspeed_sdk.contracts import Accept, Decline


class FakeKernel:
    """Accepts or declines whatever comes; its bound form returns its name."""

    def __init__(self, op, name, verdict):
        self.op, self.name, self.verdict = op, name, verdict

    def accept(self, site):
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict

    def bind(self, site):
        return lambda *args: self.name

    def pack_weight(self, site, weight):
        return (self.name, site.layer, weight)


class Plugins:
    """Plans over modules made of objects."""

    def __init__(self):
        self.planned = []
        self.modules = []
        self.platform("cpu", "acme-cpu")

    def platform(self, name, distribution):
        self.planned.append(Planned("platform", name, "absent:make", distribution, "1.0", "1.0"))

    def add(self, contract, name, distribution, claims, **attributes):
        module = types.ModuleType(f"fake_{distribution}_{name}".replace("-", "_"))
        vars(module).update(attributes)
        sys.modules[module.__name__] = module
        self.modules.append(module.__name__)
        value = module.__name__ + (":make" if contract == "kernel" else "")
        planned = Planned(contract, name, value, distribution, "1.0", "1.0", tuple(claims))
        self.planned.append(planned)

    def kernels(self, distribution, *kernels, claims=None):
        if claims is None:
            claims = [f"{k.op}:{k.name}" for k in kernels]
        self.add("kernel", distribution, distribution, claims, make=lambda: kernels)

    def plan(self, lists=Lists()):  # noqa: B008 (frozen)
        return PluginPlan.make("cpu", self.planned, lists)


@pytest.fixture
def plugins():
    made = Plugins()
    yield made
    for name in made.modules:
        del sys.modules[name]


@pytest.fixture
def kernel():
    """kernel("name", score) accepts; kernel("name", "why") declines."""

    def make(name, verdict, op="rms_norm@1"):
        if isinstance(verdict, int):
            verdict = Accept(verdict, f"scores {verdict}")
        elif isinstance(verdict, str):
            verdict = Decline(verdict)
        return FakeKernel(op, name, verdict)

    return make
