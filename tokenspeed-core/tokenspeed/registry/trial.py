# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Work to time: a kernel called on example arguments of its op, over and over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from tokenspeed_sdk.contracts.kernel import CallSite, Kernel, PlannedKernel
from tokenspeed_sdk.ops import OPS, Op

from tokenspeed.registry.candidates import own
from tokenspeed.registry.stopwatch import Run, Stopwatch

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.platform import Device
    from tokenspeed_sdk.ops.examples import Calls

PROMPT_ROWS = 2048
"""Rows that stand for a range without an end."""

CAPTURED_ROWS = 128
"""Most rows of calls that are measured in a graph, as decode steps run. Larger ones are launched
one by one, as prompts are: their graphs would keep too much memory."""

ROTATED_BYTES = 128 << 20
"""Copies of the arguments take as much together: more than a cache of the device holds, since in a
model other weights pass between two calls of a layer."""

MOST_COPIES = 256

FEWEST_CALLS = 16
"""Rounds of the example calls in one piece of work."""

MEMORY_SHARE = 0.25
"""Of the device's free memory, for copies."""

WEIGHT = "weight"
"""The argument that a kernel packs, where it has two dimensions."""


def examples(op: Op, site: CallSite, device: Device, watch: Stopwatch) -> list[Calls]:
    """Copies of an op's example calls for the most rows of a site. What they raise is raised."""
    assert op.example is not None
    make = op.example
    rows = PROMPT_ROWS if site.rows[1] is None else site.rows[1]
    first: Calls = watch.finish(lambda: make(site, rows, device.torch_device))
    each = max(_bytes(first), 1)
    room = int(device.memory().free * MEMORY_SHARE) // each
    wanted = min(math.ceil(ROTATED_BYTES / each), MOST_COPIES, room)
    others: list[Calls] = watch.finish(
        lambda: [make(site, rows, device.torch_device) for _ in range(wanted - 1)]
    )
    return [first, *others]


def rounds(copies: Sequence[Calls]) -> int:
    """How often ``prepare``'s work goes through the example calls."""
    return len(copies) * max(1, math.ceil(FEWEST_CALLS / len(copies)))


def prepare(
    kernel: Kernel, site: CallSite, copies: Sequence[Calls], watch: Stopwatch
) -> Run | None:
    """A kernel's calls on all copies, run once; None for one that plans its steps.

    Raises what the kernel raised, and HangError.
    """
    bound = kernel.bind(own(site))
    if isinstance(bound, PlannedKernel):
        return None
    calls = [
        args for calls in watch.finish(lambda: _packed(kernel, site, copies)) for args in calls
    ]
    repeats = rounds(copies) // len(copies)

    @torch.inference_mode()
    def work() -> None:
        for _ in range(repeats):
            for args in calls:
                bound(*args)

    watch.finish(work)
    most = site.rows[1]
    return watch.captured(work) if most is not None and most <= CAPTURED_ROWS else work


def _packed(kernel: Kernel, site: CallSite, copies: Sequence[Calls]) -> list[Calls]:
    """The same with weights as the kernel wants them; a weight of several calls is packed once."""
    names = [parameter.name for parameter in OPS[site.op].parameters]
    place = names.index(WEIGHT) if WEIGHT in names else -1
    if place < 0 or copies[0][0][place].dim() != 2:
        return list(copies)
    packed: list[Calls] = []
    for calls in copies:
        weight = kernel.pack_weight(own(site), calls[0][place])
        packed.append(tuple((*args[:place], weight, *args[place + 1 :]) for args in calls))
    return packed


def _bytes(calls: Calls) -> int:
    """Of all tensors, each once."""
    tensors: dict[int, Any] = {
        id(each): each for args in calls for each in args if isinstance(each, torch.Tensor)
    }
    return sum(int(each.nbytes) for each in tensors.values())
