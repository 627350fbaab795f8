# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Versioned interfaces between the engine and its plugins.

These modules import the standard library only, so a plugin's entry point stays light: dtypes are
strings such as ``"float32"``, tensors are named in annotations alone.
"""

from tokenspeed_sdk.contracts.manifest import (
    CONTRACTS,
    ContractNumber,
    Manifest,
    NativeLibrary,
    Provision,
)
from tokenspeed_sdk.contracts.probe import Accept, Decline, Verdict

__all__ = [
    "CONTRACTS",
    "Accept",
    "ContractNumber",
    "Decline",
    "Manifest",
    "NativeLibrary",
    "Provision",
    "Verdict",
]
