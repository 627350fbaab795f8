# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Fill weights of codes: with those of a checkpoint, or by quantising it while it is read.

A checkpoint that is quantised holds, beside each ``weight`` of e4m3 codes, ``weight_scale_inv``:
what the codes of a block of 128 x 128 are multiplied with. One that is not holds floating weights,
of which codes of any format are made. At most one weight is in memory twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from tokenspeed_sdk.modeling.checkpoint import CODES, FLOAT_BYTES, Checkpoint
from tokenspeed_sdk.modeling.weights import WeightMap
from tokenspeed_sdk.ops.fp8 import BLOCK

SCALE = "_scale_inv"
"""Behind the name of a tensor of codes: the name of its scales."""


def coded_parts(weights: WeightMap, origin: Mapping[str, str]) -> dict[str, list[str]]:
    """Parameter of codes -> the checkpoint tensors that fill it, in order."""
    parts: dict[str, list[str]] = {name: [] for name in weights.scales}
    for target, part in weights.slices.items():
        if part.parameter in parts and target in origin:
            parts[part.parameter].append(origin[target])
    return parts


def scale_names(checkpoint: Checkpoint, parts: Iterable[Sequence[str]]) -> list[str]:
    """Checkpoint tensors with the scales of those parts that are codes."""
    entries = checkpoint.entries
    return [name + SCALE for part in parts for name in part if entries[name].dtype == CODES]


def misfits(
    weights: WeightMap, checkpoint: Checkpoint, parts: Mapping[str, Sequence[str]]
) -> Iterable[str]:
    """What keeps the parts of parameters of codes from being loaded, each in words."""
    for parameter, sources in parts.items():
        dtypes = {checkpoint.entries[source].dtype for source in sources}
        if CODES not in dtypes:
            continue
        if len(dtypes) > 1:
            yield f"{parameter} is filled by {', '.join(sources)}, of {', '.join(sorted(dtypes))}"
        for source in sources[:-1]:
            if (rows := checkpoint.entries[source].shape[0]) % BLOCK:
                yield (
                    f"{source} has {rows} rows and shares {parameter} with others: its last block "
                    f"of {BLOCK} rows would have two scales"
                )
        for source in sources:
            yield from _misfit_scale(checkpoint, source)


def _misfit_scale(checkpoint: Checkpoint, source: str) -> Iterable[str]:
    found = checkpoint.entries.get(source + SCALE)
    wanted = tuple(-(-size // BLOCK) for size in checkpoint.entries[source].shape)
    if found is None:
        yield f"{source} has no {source + SCALE}"
    elif found.dtype not in FLOAT_BYTES:
        yield f"{source + SCALE} is {found.dtype}, not one of {', '.join(FLOAT_BYTES)}"
    elif found.shape != wanted:
        yield f"{source + SCALE} is {list(found.shape)}, {list(wanted)} are needed"


def fill_codes(
    weights: WeightMap, checkpoint: Checkpoint, parameter: str, sources: Sequence[str]
) -> None:
    """Codes and scales of one parameter, as the checkpoint has them or made of its weights."""
    codes, scale = weights.parameters[parameter], weights.scales[parameter]
    if checkpoint.entries[sources[0]].dtype == CODES:
        codes.copy_(torch.cat([checkpoint.read(source) for source in sources]))
        scale.copy_(torch.cat([checkpoint.read(source + SCALE).float() for source in sources]))
        return
    whole = torch.cat([checkpoint.read(source).to(codes.device) for source in sources])
    made_codes, made_scale = weights.formats[parameter].quantize(whole)
    codes.copy_(made_codes)
    scale.copy_(made_scale)
