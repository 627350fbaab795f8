# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The cases of one op as those of another that computes the same of coded numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from tokenspeed_sdk.testing.kernel.cases.base import Call, Case, Inputs

Args: TypeAlias = tuple[Any, ...]


def recast(cases: Iterator[Case], op: str, coded: Callable[[Inputs, Args], Args]) -> Iterator[Case]:
    """The cases as those of another op, which takes other arguments."""

    def makes(case: Case) -> Callable[[Inputs], Call]:
        def make(inputs: Inputs) -> Call:
            call = case.make(inputs)
            return replace(call, args=coded(inputs, call.args))

        return make

    for case in cases:
        yield replace(case, op=op, make=makes(case))
