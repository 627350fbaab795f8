# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Rotary position embedding: what a config says, and the table that kernels read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tokenspeed_sdk.modeling.config import ConfigReader

DEFAULT_THETA = 10000.0


@dataclass(frozen=True)
class Llama3Scaling:
    """Frequencies slowed by ``factor`` where a wave is long, as Llama 3.1 was trained.

    With n = original_length / wavelength, the number of turns within the original length: waves
    with n >= high keep their frequency, those with n <= low are slowed, between them it is blended
    linearly in n.
    """

    factor: float
    low: float
    high: float
    original_length: int

    def apply(self, frequencies: torch.Tensor) -> torch.Tensor:
        """[n] float32 radians per token -> the same, scaled."""
        turns = self.original_length * frequencies / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return (1 - kept) * frequencies / self.factor + kept * frequencies


@dataclass(frozen=True)
class RopeConfig:
    """How positions turn the leading ``rotary`` elements of each head."""

    rotary: int
    theta: float = DEFAULT_THETA
    scaling: Llama3Scaling | None = None
    interleaved: bool = False


def read_rope(config: Mapping[str, Any], rotary: int, interleaved: bool = False) -> RopeConfig:
    """The rope of a parsed config.json, in either spelling.

    New: ``rope_parameters`` with rope_theta, rope_type and its numbers. Old: ``rope_theta`` beside
    ``rope_scaling`` with rope_type (or type) and its numbers.

    Raises:
        ValueError: names a rope_type that is not supported, or the field that is wrong.
    """
    if rotary % 2:
        raise ValueError(f"config.json: the rotated part of a head must be even; got {rotary}")
    top = ConfigReader(config)
    for key in ("rope_parameters", "rope_scaling"):
        found = top.section(key)
        if found:
            break
    else:
        key, found = "rope_scaling", {}
    nested = ConfigReader(found, f"config.json: {key}")
    theta = nested.number("rope_theta", top.number("rope_theta", DEFAULT_THETA))
    kind = found.get("rope_type", found.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise ValueError(
            f"config.json: {key}: rope_type {kind!r} is not supported; "
            f"this version knows 'default' and 'llama3'"
        )
    scaling = _read_llama3(nested) if kind == "llama3" else None
    return RopeConfig(rotary, theta, scaling, interleaved)


def _read_llama3(reader: ConfigReader) -> Llama3Scaling:
    scaling = Llama3Scaling(
        factor=reader.number("factor"),
        low=reader.number("low_freq_factor"),
        high=reader.number("high_freq_factor"),
        original_length=reader.size("original_max_position_embeddings"),
    )
    if not scaling.low < scaling.high:
        raise ValueError(
            f"config.json: low_freq_factor must be below high_freq_factor; "
            f"got {scaling.low} and {scaling.high}"
        )
    return scaling


def cos_sin_table(rope: RopeConfig, length: int, device: str) -> torch.Tensor:
    """Cosines and sines for positions [0, length): [length, rotary] float32, as ``rope@1`` reads.

    Frequency i of rotary/2 is ``theta ** (-2 i / rotary)``. Frequencies and angles are rounded to
    float32 on purpose: so they were while checkpoints were trained, and at position 100,000 that
    rounding moves an angle by more than a thousandth.
    """
    exponents = torch.arange(0, rope.rotary, 2, dtype=torch.float32) / rope.rotary
    frequencies = 1.0 / rope.theta**exponents
    if rope.scaling is not None:
        frequencies = rope.scaling.apply(frequencies)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=1).to(device)
