# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a claim may look like: a kernel's names an op that exists, so that a typo is found early."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tokenspeed_sdk.contracts.kernel import PUBLIC_OPS

from tokenspeed.plugins.errors import did_you_mean

REFERENCE = "reference"
"""Name of the sdk's own kernel of every op; no plugin may claim it."""

_VENDOR_OP = re.compile(r"\w+::\w+@\d+")
_NAME = re.compile(r"[\w.-]+")


def is_op(name: str) -> bool:
    """Whether it is a public op, or has the form of a vendor's own: "vendor::op@major"."""
    return name in PUBLIC_OPS or _VENDOR_OP.fullmatch(name) is not None


def check_claims(contract: str, claims: Iterable[str]) -> None:
    """ValueError: a claim that this contract does not know."""
    for claim in claims:
        if contract == "observer":
            raise ValueError(f'observers claim nothing; take out "{claim}"')
        if contract == "kernel":
            _check_kernel_claim(claim)


def _check_kernel_claim(claim: str) -> None:
    op, _, name = claim.rpartition(":")
    if not op or not _NAME.fullmatch(name):
        raise ValueError(f'claim "{claim}" is not OP:NAME, such as "rms_norm@1:acme"')
    if name == REFERENCE:
        raise ValueError(f'claim "{claim}" is held by tokenspeed-sdk: every op has that kernel')
    if not is_op(op):
        raise ValueError(
            f'claim "{claim}" names no public op ({did_you_mean(op, PUBLIC_OPS)}), '
            'nor one of your own, such as "acme::op@1"'
        )
