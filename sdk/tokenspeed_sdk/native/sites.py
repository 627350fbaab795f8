# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Call sites and scalars as a library reads them."""

from __future__ import annotations

import ctypes

from tokenspeed_sdk.contracts.kernel import CallSite, Trait
from tokenspeed_sdk.native import abi


class NativeSite:
    """A CallSite as a struct, with the memory that the struct points to.

    Attributes:
        struct: lives as long as this object.
    """

    def __init__(self, site: CallSite) -> None:
        features = sorted(site.device.features)
        self._features = (ctypes.c_char_p * len(features))(*map(str.encode, features))
        self._traits = (abi.Trait * len(site.traits))()
        for trait, (name, value) in zip(self._traits, site.traits.items(), strict=True):
            trait.name = name.encode()
            write_value(trait.value, value)
        least, most = site.rows
        struct = abi.fresh(abi.Site)
        struct.op = site.op.encode()
        struct.dtype = site.dtype.encode()
        struct.device_type = site.device.device_type.encode()
        struct.arch = site.device.arch.encode()
        struct.features = self._features
        struct.num_features = len(features)
        struct.traits = self._traits
        struct.num_traits = len(site.traits)
        struct.rows_min, struct.rows_max = least, -1 if most is None else most
        struct.units = site.device.units
        self.struct = struct


def write_value(target: abi.Value, value: Trait) -> None:
    """Write a trait or scalar. A text's bytes live as long as ``target``."""
    if value is None:
        target.kind = abi.NONE
    elif isinstance(value, str):
        target.kind, target.as_.s = abi.TEXT, value.encode()
    elif isinstance(value, float):
        target.kind, target.as_.f = abi.REAL, value
    else:  # bool is an int
        target.kind, target.as_.i = abi.INT, int(value)
