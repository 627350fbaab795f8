# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""A model's linear layers on any device, all layers and the head in one captured graph.

They read every weight once, so a decode step that keeps its weights cannot be faster than they are.
Where the device captures no graphs, they are launched one by one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tokenspeed_sdk.contracts.platform import GRAPH_CAPTURE
from tokenspeed_sdk.modeling import BuildContext

from tokenspeed.registry.kernels import KernelRegistry
from tokenspeed.registry.models import load_model

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.kernel import CallSite
    from tokenspeed_sdk.contracts.platform import Device

    from tokenspeed.process.launch import LaunchPlan

OP = "linear@1"
PASSES = 20
"""Passes behind each other for one measurement: the launch of the first does not count then."""


class DeviceLinears:
    """All linears of the plan's model with random weights, by the kernels that the engine takes.

    Attributes:
        weight_bytes: what one pass reads at least.
    """

    def __init__(self, plan: LaunchPlan, device: Device) -> None:
        self._device = device
        self._stream = device.stream()
        self._dtype = getattr(torch, device.capabilities.dtypes[0])
        self._registry = KernelRegistry(plan.plugins, plan.engine.pins)
        self._calls = [self._prepared(site) for site in _sites(plan, device, self._registry)]
        self.weight_bytes = sum(n * k for n, k, _ in self._calls) * self._dtype.itemsize

    def seconds(self, rows: int) -> float:
        """Seconds of one pass over all of them with ``rows`` tokens."""
        inputs = {k: self._random(rows, k, 1.0) for _, k, _ in self._calls}

        @torch.inference_mode()
        def work() -> None:
            for _, k, call in self._calls:
                call(inputs[k])

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

    def _prepared(self, site: CallSite) -> tuple[int, int, Callable[[torch.Tensor], torch.Tensor]]:
        """Rows and columns of a weight, and its kernel with a packed random one."""
        n, k = site.traits["n"], site.traits["k"]
        assert isinstance(n, int)
        assert isinstance(k, int)
        binding = self._registry.bind(site)
        weight = binding.pack_weight(self._random(n, k, k**-0.5))
        bias = self._random(1, n, 1.0)[0] if site.traits.get("bias") else None

        def call(x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = binding.call(x, weight, bias)
            return out

        return n, k, call

    def _random(self, rows: int, columns: int, spread: float) -> torch.Tensor:
        made = torch.empty(rows, columns, dtype=self._dtype, device=self._device.torch_device)
        return made.normal_(0.0, spread)


def _sites(plan: LaunchPlan, device: Device, registry: KernelRegistry) -> list[CallSite]:
    """The linears that the plan's model asks for, in its order."""
    raw = json.loads((Path(plan.engine.model) / "config.json").read_text())
    entry = load_model(plan.plugins, raw["architectures"])
    context = BuildContext(
        kernels=registry,
        device=device.capabilities,
        torch_device="meta",  # the sites are wanted, not the weights
        dtype=device.capabilities.dtypes[0],
        max_model_len=raw["max_position_embeddings"],
        page_size=plan.engine.page_size,
    )
    entry.build(entry.read_config(raw), context)
    return [bound.site for bound in registry.bound if bound.site.op == OP]
