# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a plan's model asks kernels for, without its weights."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tokenspeed_sdk.model_files import read_object
from tokenspeed_sdk.modeling import WEIGHT_FORMATS, BuildContext

from tokenspeed.bench.floors import Sizes
from tokenspeed.engine.formats import Formats
from tokenspeed.registry.models import load_model

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokenspeed_sdk.contracts.kernel import CallSite
    from tokenspeed_sdk.contracts.platform import Device

    from tokenspeed.process.launch import LaunchPlan
    from tokenspeed.registry.kernels import KernelRegistry

LINEAR = "linear@1"
CODED = {each.linear_op: each for each in WEIGHT_FORMATS.values()}
"""Linears of codes: op to what their weights are."""

LINEARS = (LINEAR, *CODED)
PREFILL_ATTENTION = "attention_prefill"


def model_sites(plan: LaunchPlan, device: Device, registry: KernelRegistry) -> list[CallSite]:
    """All call sites of the plan's model, in its order; one for each op and layer."""
    raw = read_object(Path(plan.engine.model) / "config.json")
    entry = load_model(plan.plugins, raw["architectures"])
    context = BuildContext(
        kernels=registry,
        device=device.capabilities,
        torch_device="meta",  # the sites are wanted, not the weights
        max_model_len=raw["max_position_embeddings"],
        page_size=plan.engine.page_size,
        **asdict(Formats.choose(plan.engine, raw, device.capabilities)),
    )
    entry.build(entry.read_config(raw), context)
    return list(
        {(bound.site.op, bound.site.layer): bound.site for bound in registry.bound}.values()
    )


def sizes(sites: Iterable[CallSite], vocab_size: int) -> Sizes:
    """The model's sizes; the head is the linear layer with a row for each token id."""
    layers = head = pairs = 0
    for site in sites:
        if site.op in LINEARS:
            n, k = number(site, "n"), number(site, "k")
            if n == vocab_size:
                head += n * k
            else:
                layers += n * k
        elif site.op.startswith(PREFILL_ATTENTION):
            pairs += 4 * number(site, "heads") * number(site, "head_dim")
    return Sizes(layer_weights=layers, head_weights=head, pair_flops=pairs)


def number(site: CallSite, trait: str) -> int:
    """A trait that is a number."""
    value = site.traits[trait]
    assert isinstance(value, int)
    return value


def heads(sites: Iterable[CallSite]) -> tuple[int, int]:
    """Query heads and their dimension in the first attention."""
    first = next(site for site in sites if site.op.startswith(PREFILL_ATTENTION))
    return number(first, "heads"), number(first, "head_dim")
