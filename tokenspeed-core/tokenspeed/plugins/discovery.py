# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Discover: which plugins are installed and what they say about themselves.

Reads metadata and manifests only. What is wrong with a plugin is a value, not an exception: the
command line lists broken plugins, and a launch refuses them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import importlib_metadata
from importlib_metadata import Distribution
from tokenspeed_sdk.contracts.manifest import CONTRACTS, PLUGIN_GROUP, Manifest, Provision

from tokenspeed.plugins.errors import ContractError, ManifestError, PluginError
from tokenspeed.plugins.manifest import find_manifest, read_manifest
from tokenspeed.plugins.plan import Planned

CODE_GROUPS = {f"tokenspeed.{contract}": contract for contract in CONTRACTS}


@dataclass(frozen=True)
class InstalledPlugin:
    """One plugin of one distribution.

    Attributes:
        manifest: path of the manifest, "" when it was not found.
        provisions: what it provides; empty when the manifest is not valid.
        error: why it cannot be used, or None.
    """

    id: str
    distribution: str
    version: str
    manifest: str = ""
    provisions: tuple[Planned, ...] = ()
    error: PluginError | None = None

    @property
    def owner(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True)
class _Metadata:
    """What one distribution's entry points say: (contract, name) -> value for code."""

    distribution: str
    version: str
    manifests: dict[str, str]
    code: dict[tuple[str, str], str]


def discover() -> tuple[InstalledPlugin, ...]:
    """All installed plugins in a fixed order, whatever the order of the import path.

    Where a distribution is found twice, the first counts: it is the one that Python imports.
    """
    found: dict[str, _Metadata] = {}
    for distribution in cast("Iterable[Distribution]", importlib_metadata.distributions()):
        metadata = _read_metadata(distribution)
        if metadata is not None:
            found.setdefault(re.sub(r"[-_.]+", "-", metadata.distribution).lower(), metadata)
    plugins = [plugin for metadata in found.values() for plugin in _plugins_of(metadata)]
    return tuple(sorted(plugins, key=lambda plugin: (plugin.id, plugin.distribution)))


def _read_metadata(distribution: Distribution) -> _Metadata | None:
    manifests, code = {}, {}
    for entry_point in distribution.entry_points:
        if entry_point.group == PLUGIN_GROUP:
            manifests[entry_point.name] = entry_point.value
        elif entry_point.group in CODE_GROUPS:
            code[CODE_GROUPS[entry_point.group], entry_point.name] = entry_point.value
    if not manifests and not code:
        return None
    return _Metadata(distribution.name, distribution.version, manifests, code)


def _plugins_of(metadata: _Metadata) -> list[InstalledPlugin]:
    plugins = [_read_plugin(metadata, id, value) for id, value in metadata.manifests.items()]
    declared = {(p.contract, p.name) for plugin in plugins for p in plugin.provisions}
    stray = sorted(set(metadata.code) - declared)
    if stray and all(plugin.error is None for plugin in plugins):
        contract, name = stray[0]
        error = ManifestError(
            f'no manifest provides {contract} "{name}"',
            where=f"entry points of {metadata.distribution} {metadata.version}",
            fix=f"report it to the authors of {metadata.distribution}, or remove it: "
            f"pip uninstall {metadata.distribution}",
        )
        id = plugins[0].id if plugins else metadata.distribution
        plugins[:1] = [InstalledPlugin(id, metadata.distribution, metadata.version, error=error)]
    return plugins


def _read_plugin(metadata: _Metadata, id: str, value: str) -> InstalledPlugin:
    path = ""
    provisions: tuple[Planned, ...] = ()
    error: PluginError | None = None
    try:
        path = str(found := find_manifest(value, metadata.distribution))
        manifest = read_manifest(found, metadata.distribution)
        _check_agreement(manifest, metadata, id, path)
        provisions = tuple(_planned(provision, metadata) for provision in manifest.provides)
        _check_numbers(manifest, metadata, path)
    except PluginError as problem:
        error = problem
    return InstalledPlugin(id, metadata.distribution, metadata.version, path, provisions, error)


def _planned(provision: Provision, metadata: _Metadata) -> Planned:
    return Planned(
        contract=provision.contract,
        name=provision.name,
        value=metadata.code[provision.contract, provision.name],
        distribution=metadata.distribution,
        version=metadata.version,
        number=str(provision.number),
        claims=provision.claims,
    )


def _check_agreement(manifest: Manifest, metadata: _Metadata, id: str, path: str) -> None:
    """Manifest and entry points were written by the same hand."""
    problem = ""
    if manifest.id != id:
        problem = f'the manifest calls itself "{manifest.id}", its entry point "{id}"'
    for provision in manifest.provides:
        if (provision.contract, provision.name) not in metadata.code:
            problem = (
                f'{provision.contract} "{provision.name}" has no entry point in group '
                f'"tokenspeed.{provision.contract}"'
            )
    if problem:
        raise ManifestError(
            f"{metadata.distribution} {metadata.version}: {problem}",
            where=path,
            fix=f"report it to the authors of {metadata.distribution}, or remove it: "
            f"pip uninstall {metadata.distribution}",
        )


def _check_numbers(manifest: Manifest, metadata: _Metadata, path: str) -> None:
    for provision in manifest.provides:
        served = CONTRACTS[provision.contract]
        if not served.serves(provision.number):
            stale = metadata.distribution if provision.number < served else "tokenspeed-core"
            raise ContractError(
                f"{metadata.distribution} {metadata.version} provides {provision.contract} "
                f'"{provision.name}" for contract number {provision.number}; '
                f"this engine serves {served}",
                where=path,
                fix=f"pip install --upgrade {stale}",
            )
