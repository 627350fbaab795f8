# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Contract ``manifest``: what a plugin says about itself, before a line of its code runs.

The entry point group ``tokenspeed.plugins`` names the file::

    <id> = "<package>:tokenspeed_plugin.toml"

The file::

    manifest = "1.0"                # number of this format
    id = "acme"

    [[provides]]
    contract = "kernel"             # a key of CONTRACTS
    number = "1.0"                  # the contract number it was written against
    name = "acme"                   # an entry point of this name in group "tokenspeed.kernel"
    claims = ["rms_norm@1:acme"]    # keys that nobody else may hold, see Provision
    devices = ["cuda"]              # torch device types it is for; left out: all
    needs = []                      # what the engine must do for it, a subset of NEEDS

    [[native]]                      # only with a shared library; see NativeLibrary
    file = "libacme.so"
    abi = "1"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

PLUGIN_GROUP = "tokenspeed.plugins"
"""The entry point group that names manifests."""

MANIFEST_FILE = "tokenspeed_plugin.toml"
"""What a manifest is called in its package."""


@dataclass(frozen=True, order=True)
class ContractNumber:
    """A minor adds, a major removes. While the major is 0, each minor may do either."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> ContractNumber:
        """From MAJOR.MINOR. ValueError for any other text."""
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


MANIFEST = ContractNumber(1, 0)
"""The number of the manifest format itself."""

CONTRACTS: Mapping[str, ContractNumber] = MappingProxyType(
    {
        "platform": ContractNumber(1, 0),
        "kernel": ContractNumber(1, 0),
        "model": ContractNumber(1, 1),
        "observer": ContractNumber(1, 5),
        "grammar": ContractNumber(1, 0),
        "drafter": ContractNumber(1, 0),
    }
)
"""The contracts of this sdk and their numbers; objects stand in group ``tokenspeed.<contract>``."""

RESERVED: Mapping[str, ContractNumber] = MappingProxyType(
    {
        name: ContractNumber(0, 0)
        for name in (
            "quantization",
            "collective",
            "kv_transport",
            "kv_store",
        )
    }
)
"""Names of contracts to come, without any promise: no engine serves them yet."""

TOKEN_IDS = "token_ids"
"""Need of an observer: events carry the generated ids, which the front otherwise does not keep."""

NEEDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "platform": frozenset(),
        "kernel": frozenset(),
        "model": frozenset(),
        "observer": frozenset({TOKEN_IDS}),
        "grammar": frozenset(),
        "drafter": frozenset(),
    }
)
"""Contract to what its plugins may need; the engine derives its own settings from them."""


@dataclass(frozen=True)
class Provision:
    """One object that a plugin offers under one contract.

    Attributes:
        claims: keys that it alone holds: "op@major:name" of every kernel, every architecture of a
            model, the name of a platform, a grammar backend or a drafter; an observer
            claims nothing.
        devices: torch device types it is for, such as "cuda". A launch on another device neither
            imports nor asks it. Empty: all. Of a platform: the type of its devices.
        needs: what the engine must do for it, a subset of ``NEEDS[contract]``.
    """

    contract: str
    number: ContractNumber
    name: str
    claims: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class NativeLibrary:
    """A shared library of the wheel, and what it was built for; compared before it is opened.

    A tag that is None is not compared: leave out what the library does not link.

    Attributes:
        file: its name beside the manifest, in any folder of the package.
        abi: version of the kernel ABI (``tokenspeed/kernel.h``) that it exports.
        torch: torch's release that it links, "2.11".
        cuda: major of the CUDA runtime that it links, "13".
        cxx: C++ runtime and string ABI that it shares with torch, such as "libstdc++-cxx11".
    """

    file: str
    abi: str | None = None
    torch: str | None = None
    cuda: str | None = None
    cxx: str | None = None


@dataclass(frozen=True)
class Manifest:
    """One plugin: its id, what it provides, and the libraries that it brings."""

    id: str
    provides: tuple[Provision, ...]
    native: tuple[NativeLibrary, ...] = ()
