# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""One bound kernel that is called again and again, as a server calls it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tokenspeed_sdk.contracts.kernel import CallSite, Kernel
from tokenspeed_sdk.testing.kernel.call_check import CallCheck
from tokenspeed_sdk.testing.kernel.cases import Call, Facts
from tokenspeed_sdk.testing.kernel.memory import FreshMemory, address, bits


class BindingCheck:
    """Calls of one bound kernel, each compared with the reference, until one is wrong.

    The weight is that of the first call, as it is in a model. What a call returned must stay as it
    is, in memory of its own, whatever calls follow.

    Attributes:
        bound: what the error may be.
        error: the largest ||out - ref|| / ||ref|| of all calls.
        problems: what is wrong with the last call, each a sentence; empty is good.
    """

    def __init__(self, kernel: Kernel, site: CallSite, facts: Facts, bound: float) -> None:
        self.error = 0.0
        self.problems: list[str] = []
        self._kernel = kernel
        self._site = site
        self._facts = facts
        self.bound = bound
        self._bound_kernel = kernel.bind(site)
        self._weights: tuple[Any, Any] | None = None
        self._calls = 0
        self._returned: list[tuple[torch.Tensor, torch.Tensor]] = []

    def run(self, call: Call, name: str) -> None:
        """One more call, with arguments of the case of this name."""
        weight = self._facts.weight
        if self._weights is not None and weight is not None:
            call = replace(call, args=_with(call.args, weight, self._weights[0]))
        check = CallCheck(self._site, self._facts, self.bound, call)
        args = call.args
        if weight is not None:
            if self._weights is None:
                with FreshMemory():
                    packed = self._kernel.pack_weight(self._site, args[weight])
                self._weights = args[weight], packed
            args = _with(args, weight, self._weights[1])
        out = check.run(self._bound_kernel, args)
        problems = check.problems
        if isinstance(out, torch.Tensor) and not problems:
            problems = self._compare_returned(out)
            self._returned.append((out, out.clone()))
        self.error = max(self.error, check.error)
        self._calls += 1
        again = f"call {self._calls} of one bound kernel, {name}: " if self._calls > 1 else ""
        self.problems = [again + problem for problem in problems]

    def _compare_returned(self, out: torch.Tensor) -> list[str]:
        """Whether a result leaves those of earlier calls alone."""
        if any(address(out) == address(earlier) != 0 for earlier, _ in self._returned):
            return ["two calls return the same memory"]
        if any(not bits(earlier).equal(bits(held)) for earlier, held in self._returned):
            return ["writes into the result of an earlier call"]
        return []


def _with(args: Sequence[Any], index: int, value: Any) -> tuple[Any, ...]:
    """The arguments with another one at a position."""
    return (*args[:index], value, *args[index + 1 :])
