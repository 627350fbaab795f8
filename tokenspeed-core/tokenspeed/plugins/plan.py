# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What was resolved, as plain data: it travels to every process of a launch and is proved there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec


class Planned(msgspec.Struct, frozen=True, order=True):
    """One object of one distribution that this launch may load.

    Attributes:
        contract: a key of the sdk's CONTRACTS, such as "kernel".
        name: name of its entry point in group "tokenspeed.<contract>".
        value: the entry point's value, "module" or "module:attribute".
        distribution, version: who provides it.
        number: contract number it was written against.
        claims: keys that it alone holds, such as "rms_norm@1:acme" or an architecture.
    """

    contract: str
    name: str
    value: str
    distribution: str
    version: str
    number: str
    claims: tuple[str, ...] = ()

    @property
    def owner(self) -> str:
        """The distribution with its version, for people."""
        return f"{self.distribution} {self.version}"


class PluginPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The platform that was chosen, and the kernels and models that may be used.

    Equal hashes mean: the same distributions in the same versions would load the same objects.
    Build it with ``PluginPlan.make``.
    """

    platform: str
    provisions: tuple[Planned, ...]
    hash: str

    @classmethod
    def make(cls, platform: str, provisions: Iterable[Planned]) -> PluginPlan:
        ordered = tuple(sorted(provisions))
        digest = hashlib.sha256(msgspec.json.encode((platform, ordered)))
        return cls(platform=platform, provisions=ordered, hash=digest.hexdigest()[:16])

    def of(self, contract: str) -> tuple[Planned, ...]:
        """The provisions of one contract, in a fixed order."""
        return tuple(p for p in self.provisions if p.contract == contract)

    def differences(self, other: PluginPlan) -> list[str]:
        """What ``other`` has otherwise, one line each, for people."""
        lines = []
        if self.platform != other.platform:
            lines.append(f"platform {self.platform} here, {other.platform} there")
        for provision in sorted(set(self.provisions) ^ set(other.provisions)):
            side = "only here" if provision in self.provisions else "only there"
            lines.append(f"{provision.contract} {provision.name} of {provision.owner}: {side}")
        return lines
