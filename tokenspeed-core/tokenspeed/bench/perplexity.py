# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""How well a model predicts a text, with weights of one format or another.

    perplexity = exp(- mean over t of ln p(token t | tokens before t))

Jelinek et al., 1977, doi:10.1121/1.2016299. One sequence, teacher-forced, in chunks of a few
hundred tokens over a paged cache, with the kernels and weights that an engine has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tokenspeed_sdk.model_files import read_object
from tokenspeed_sdk.testing.model.runner import ModelRunner

from tokenspeed.registry.kernels import KernelRegistry
from tokenspeed.registry.models import load_model

if TYPE_CHECKING:
    from tokenspeed_sdk.contracts.platform import Device

    from tokenspeed.process.launch import LaunchPlan

CHUNK = 256
"""Tokens of one pass: their logits over a large vocabulary are tens of megabytes."""


def perplexity(
    plan: LaunchPlan, device: Device, token_ids: Sequence[int], *, quantization: str | None
) -> float:
    """Of the plan's model on a text, in the device's first dtype.

    Args:
        token_ids: at least two; the first is only read.
    """
    folder = Path(plan.engine.model)
    raw = read_object(folder / "config.json")
    runner = ModelRunner.from_folder(
        load_model(plan.plugins, raw["architectures"]),
        folder,
        page_size=plan.engine.page_size,
        max_model_len=len(token_ids),
        slots=1,
        dtype=device.capabilities.dtypes[0],
        kernels=KernelRegistry(plan.plugins, plan.engine.pins),
        device=device.capabilities,
        torch_device=device.torch_device,
        quantization=quantization,
    )
    inputs, wanted = token_ids[:-1], torch.tensor(token_ids[1:], device=device.torch_device)
    total = 0.0
    for start in range(0, len(inputs), CHUNK):
        logits = runner.step({1: inputs[start : start + CHUNK]})[1]
        target = wanted[start : start + CHUNK]
        total += torch.nn.functional.cross_entropy(logits, target, reduction="sum").item()
    return math.exp(total / len(inputs))
