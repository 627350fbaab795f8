# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which formats weights and KV may have, and what a checkpoint says of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tokenspeed_sdk.modeling.config import ConfigReader

FP8 = "fp8"
"""Weights of linears in e4m3 with a scale for each block of 128 x 128; see ``linear_fp8@1``."""

INT8 = "int8"
"""Linears and head of integers, with a scale for 32 inputs of an output; see ``linear_int8@1``."""

QUANTIZATIONS = (FP8, INT8)
"""All that weights of linears may have."""

FP8_KV = "float8_e4m3fn"
"""KV in e4m3 with a scale for the keys and one for the values of each layer."""

SECTION = "quantization_config"
BLOCK_SIZE = [128, 128]

_NEVER_QUANTISED = re.compile(r"lm_head|.*norm|.*embed_tokens|.*\.mlp\.gate")
"""Modules that stay in the model's dtype here, too, whether a checkpoint lists them or not."""


def read_quantization(config: Mapping[str, Any]) -> str | None:
    """The format of a checkpoint's weights, from a parsed config.json: FP8, or None for floating.

    Raises:
        ValueError: it is another one; names field and value.
    """
    section = ConfigReader(config).section(SECTION)
    if section is None:
        return None
    read = ConfigReader(section, f"config.json: {SECTION}")
    read.choice("quant_method", (FP8,))
    read.choice("fmt", ("e4m3",), default="e4m3")
    read.choice("activation_scheme", ("dynamic",))
    if (found := section.get("weight_block_size")) != BLOCK_SIZE:
        raise ValueError(
            f"config.json: {SECTION}: weight_block_size must be {BLOCK_SIZE}; got {found!r}; use "
            f"the checkpoint in bfloat16 with --quantization fp8"
        )
    for field in ("modules_to_not_convert", "ignored_layers"):
        for module in section.get(field) or ():
            if not _NEVER_QUANTISED.fullmatch(str(module)):
                raise ValueError(
                    f"config.json: {SECTION}: {field} names {module!r}, a layer that would be "
                    f"quantised; use the checkpoint in bfloat16"
                )
    return FP8
