# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""What a plugin says about itself in a static file, before a line of its code runs.

The entry point group ``tokenspeed.plugins`` names the file::

    <id> = "<package>:tokenspeed_plugin.toml"

    id = "acme"

    [[provides]]
    contract = "kernel"      # a key of CONTRACTS
    number = "0.1"           # the contract number it was written against
    name = "acme"            # an entry point of this name in group "tokenspeed.kernel"
    claims = ["rms_norm@1:acme"]   # keys nobody else may hold: op:name of kernels, architectures
"""

from __future__ import annotations

from dataclasses import dataclass

PLUGIN_GROUP = "tokenspeed.plugins"
MANIFEST_FILE = "tokenspeed_plugin.toml"


@dataclass(frozen=True, order=True)
class ContractNumber:
    """A minor adds, a major removes. While the major is 0, each minor may do either."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> ContractNumber:
        major, dot, minor = text.partition(".")
        if not (dot and major.isdecimal() and minor.isdecimal()):
            raise ValueError(f"a contract number is MAJOR.MINOR, such as 1.0; got {text!r}")
        return cls(int(major), int(minor))

    def serves(self, written_against: ContractNumber) -> bool:
        """Whether an engine with this number can run a plugin written against that one."""
        if self.major == 0:
            return self == written_against
        return self.major == written_against.major and self.minor >= written_against.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


CONTRACTS: dict[str, ContractNumber] = {
    "platform": ContractNumber(0, 1),
    "kernel": ContractNumber(0, 1),
    "model": ContractNumber(0, 1),
}
"""The contracts of this sdk and their numbers; objects stand in group ``tokenspeed.<contract>``."""


@dataclass(frozen=True)
class Provision:
    """One object that a plugin offers under one contract."""

    contract: str
    number: ContractNumber
    name: str
    claims: tuple[str, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """One plugin: its id and what it provides."""

    id: str
    provides: tuple[Provision, ...]
