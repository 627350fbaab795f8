# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What was resolved, as plain data: it travels to every process of a launch and is proved there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from tokenspeed.plugins.choose.lists import Lists


class Planned(msgspec.Struct, frozen=True, order=True):
    """One object of one distribution that this launch may load.

    Attributes:
        contract: a key of the sdk's CONTRACTS, such as "kernel".
        name: name of its entry point in group "tokenspeed.<contract>".
        value: the entry point's value, "module" or "module:attribute".
        distribution, version: who provides it.
        number: contract number it was written against.
        claims: keys that it alone holds, such as "rms_norm@1:acme" or an architecture.
        devices: torch device types it is for; empty: all.
        needs: what the engine must do for it.
        plugin: id of the plugin that it is a part of.
    """

    contract: str
    name: str
    value: str
    distribution: str
    version: str
    number: str
    claims: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    plugin: str = ""

    @property
    def owner(self) -> str:
        """The distribution with its version, for people."""
        return f"{self.distribution} {self.version}"

    def fits(self, devices: tuple[str, ...]) -> bool:
        """Whether it is for one of these device types; either side may leave it open."""
        return not self.devices or not devices or bool(set(self.devices) & set(devices))


class PluginPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The platform that was chosen, and all that may be used with it.

    Equal hashes mean: the same distributions in the same versions would load the same objects.
    Build it with ``PluginPlan.make``.

    Attributes:
        provisions: what is installed, sound and allowed; kernels only for the platform's devices.
        lists: the operator's allow and deny lists, by which children resolve as their parent did.
    """

    platform: str
    provisions: tuple[Planned, ...]
    lists: Lists = Lists()
    hash: str

    @classmethod
    def make(
        cls,
        platform: str,
        provisions: Iterable[Planned],
        lists: Lists = Lists(),  # noqa: B008 (frozen)
    ) -> PluginPlan:
        """Of the provisions, kernels for other devices than the platform's are left out."""
        ordered = tuple(sorted(fitting(platform, provisions)))
        digest = hashlib.sha256(msgspec.json.encode((platform, ordered, lists), order="sorted"))
        return cls(platform=platform, provisions=ordered, lists=lists, hash=digest.hexdigest()[:16])

    def of(self, contract: str) -> tuple[Planned, ...]:
        """The provisions of one contract, in a fixed order."""
        return tuple(p for p in self.provisions if p.contract == contract)

    def needs(self, contract: str) -> frozenset[str]:
        """All that the plugins of one contract need of the engine."""
        return frozenset(need for planned in self.of(contract) for need in planned.needs)

    def differences(self, other: PluginPlan) -> list[str]:
        """What ``other`` has otherwise, one line each, for people."""
        lines = []
        if self.platform != other.platform:
            lines.append(f"platform {self.platform} here, {other.platform} there")
        if self.lists != other.lists:
            lines.append(f"lists here: {self.lists.text()}; there: {other.lists.text()}")
        for provision in sorted(set(self.provisions) ^ set(other.provisions)):
            side = "only here" if provision in self.provisions else "only there"
            lines.append(f"{provision.contract} {provision.name} of {provision.owner}: {side}")
        return lines


def fitting(platform: str, provisions: Iterable[Planned]) -> tuple[Planned, ...]:
    """All provisions but the kernels that are for other devices than the platform's."""
    every = tuple(provisions)
    devices = platform_devices(platform, every)
    return tuple(p for p in every if p.contract != "kernel" or p.fits(devices))


def platform_devices(platform: str, provisions: Iterable[Planned]) -> tuple[str, ...]:
    """Device types of a platform; empty where its manifest leaves them open."""
    return next(
        (p.devices for p in provisions if p.contract == "platform" and p.name == platform), ()
    )
