# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Dtypes by the names that contracts use."""

from __future__ import annotations

import torch

ACTIVATION_DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a model. ValueError lists what there is."""
    dtype = ACTIVATION_DTYPES.get(name)
    if dtype is None:
        raise ValueError(f"dtype {name!r} is unknown; use one of {', '.join(ACTIVATION_DTYPES)}")
    return dtype
