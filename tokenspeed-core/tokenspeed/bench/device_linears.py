# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A model's linear layers on any device, all layers and the head in one captured graph.

They read every weight once, so a decode step that keeps its weights cannot be faster than they are.
Where the device captures no graphs, they are launched one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from tokenspeed_sdk.contracts.platform import GRAPH_CAPTURE

from tokenspeed.bench.model_sites import CODED, LINEARS, number
from tokenspeed.registry.autotune import Autotuner
from tokenspeed.registry.kernels import KernelRegistry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed_sdk.contracts.kernel import Binding, CallSite
    from tokenspeed_sdk.contracts.platform import Device

    from tokenspeed.process.launch import LaunchPlan

PASSES = 20
"""Passes behind each other for one measurement: the launch of the first does not count then."""


@dataclass(frozen=True)
class _Linear:
    """Input features, and what multiplies with a weight."""

    k: int
    weight_bytes: int
    call: Callable[[torch.Tensor], torch.Tensor]
    by_torch: Callable[[torch.Tensor], torch.Tensor]


class DeviceLinears:
    """All linears of the plan's model with random weights, by the kernels that the engine takes.

    The same by torch is for comparing devices: it does not change with our kernels.

    Attributes:
        weight_bytes: what one pass reads at least.
    """

    def __init__(self, plan: LaunchPlan, device: Device, sites: Sequence[CallSite]) -> None:
        """``sites``: all of the model's."""
        self._device = device
        self._stream = device.stream()
        linears = [site for site in sites if site.op in LINEARS]
        self._dtype = getattr(torch, linears[0].dtype)
        tuner = Autotuner.on(device, plan.engine.autotune)
        registry = KernelRegistry(plan.plugins, plan.engine.pins, tuner=tuner)
        with closing(tuner) if tuner else nullcontext():  # while the device is empty
            bindings = [registry.bind(site) for site in linears]
        self._calls = [self._prepared(*each) for each in zip(linears, bindings, strict=True)]
        self.weight_bytes = sum(each.weight_bytes for each in self._calls)

    def seconds(self, rows: int, *, by_torch: bool = False) -> float:
        """Seconds of one pass over all of them with ``rows`` tokens."""
        inputs = {each.k: self._random(rows, each.k, 1.0) for each in self._calls}

        @torch.inference_mode()
        def work() -> None:
            for each in self._calls:
                (each.by_torch if by_torch else each.call)(inputs[each.k])

        self._stream.run(work)  # what is compiled at first use is, before the capture
        run = work
        if GRAPH_CAPTURE in self._device.capabilities.features:
            run = self._device.capture(work, self._stream).replay
        self._time(run, 1)
        return self._time(run, PASSES) / PASSES

    def _time(self, run: Callable[[], None], passes: int) -> float:
        start = time.perf_counter()
        for _ in range(passes):
            self._stream.run(run)
        self._stream.record().wait()
        return time.perf_counter() - start

    def _prepared(self, site: CallSite, binding: Binding) -> _Linear:
        n, k = number(site, "n"), number(site, "k")
        plain = self._random(n, k, k**-0.5)
        bias = self._random(1, n, 1.0)[0] if site.traits.get("bias") else None
        weights: tuple[torch.Tensor, ...] = (plain,)
        if (coded := CODED.get(site.op)) is not None:
            weights = coded.quantize(plain)
        packed = (binding.pack_weight(weights[0]), *weights[1:])
        return _Linear(
            k,
            weight_bytes=sum(each.nbytes for each in weights),
            call=lambda x: binding.call(x, *packed, bias),
            by_torch=lambda x: torch.nn.functional.linear(x, plain, bias),
        )

    def _random(self, rows: int, columns: int, spread: float) -> torch.Tensor:
        made = torch.empty(rows, columns, dtype=self._dtype, device=self._device.torch_device)
        return made.normal_(0.0, spread)
