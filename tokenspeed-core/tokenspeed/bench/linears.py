# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The linear layers of a model alone, all layers and the head: what a decode step cannot beat.

Each kernel that serves them is timed, whether the engine chose it or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tokenspeed_sdk.model_files import read_object
from tokenspeed_sdk.modeling import BuildContext

from tokenspeed.bench.model_sites import CODED, LINEARS
from tokenspeed.plugins.load.activate import load_platform
from tokenspeed.registry.kernels import KernelRegistry
from tokenspeed.registry.models import load_model

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.kernel import CallSite

    from tokenspeed.process.launch import LaunchPlan


class LinearsAlone:
    """All linears of a model with random weights, by one kernel.

    Attributes:
        kernel: its name.
    """

    def __init__(self, plan: LaunchPlan, kernel: str, sites: Sequence[CallSite]) -> None:
        registry = KernelRegistry(plan.plugins, {sites[0].op: kernel})
        self.kernel = kernel
        self._calls = [_prepared(registry, site) for site in sites]
        self._widths = sorted({_trait(site, "k") for site in sites})

    @torch.inference_mode()
    def step(self, rows: int) -> float:
        """Seconds for one pass over all of them with ``rows`` tokens."""
        inputs = {width: torch.randn(rows, width) for width in self._widths}
        start = time.perf_counter()
        for width, call in self._calls:
            call(inputs[width])
        return time.perf_counter() - start


def linear_sites(plan: LaunchPlan) -> tuple[list[CallSite], list[str]]:
    """The linears that the plan's model asks for, and the kernels that serve all of them.

    Layers and head must be of one op, as they are with plain weights and with int8.
    """
    folder = Path(plan.engine.model)
    raw = read_object(folder / "config.json")
    entry = load_model(plan.plugins, raw["architectures"])
    registry = KernelRegistry(plan.plugins, {})
    context = BuildContext(
        kernels=registry,
        device=load_platform(plan.plugins).open().capabilities,
        torch_device="meta",  # the sites are wanted, not the weights
        dtype="float32",
        max_model_len=raw["max_position_embeddings"],
        page_size=plan.engine.page_size,
        quantization=plan.engine.quantization,
    )
    entry.build(entry.read_config(raw), context)
    bound = [bound for bound in registry.bound if bound.site.op in LINEARS]
    names = {b.decision.chosen for b in bound}
    names |= {other.name for b in bound for other in b.decision.runners_up}
    sites = [b.site for b in bound]
    serving = [name for name in sorted(names - {"reference"}) if _serves(plan, name, sites)]
    return sites, serving


def _serves(plan: LaunchPlan, kernel: str, sites: Sequence[CallSite]) -> bool:
    registry = KernelRegistry(plan.plugins, {sites[0].op: kernel})
    try:
        for site in sites:
            registry.bind(site)
    except LookupError:
        return False
    return True


def _prepared(
    registry: KernelRegistry, site: CallSite
) -> tuple[int, Callable[[torch.Tensor], torch.Tensor]]:
    """Input width of a site, and its kernel with a packed random weight."""
    n, k = _trait(site, "n"), _trait(site, "k")
    binding = registry.bind(site)
    weights: tuple[torch.Tensor, ...] = (torch.randn(n, k) * k**-0.5,)
    if (coded := CODED.get(site.op)) is not None:
        weights = coded.quantize(weights[0])
    packed = (binding.pack_weight(weights[0]), *weights[1:])
    bias = torch.zeros(n) if site.traits.get("bias") else None

    def call(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = binding.call(x, *packed, bias)
        return out

    return k, call


def _trait(site: CallSite, name: str) -> int:
    value = site.traits[name]
    assert isinstance(value, int)
    return value
