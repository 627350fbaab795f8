# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Discover: which plugins are installed and what they say about themselves.

Reads metadata and manifests only. What is wrong with a plugin is a value, not an exception: the
command line lists broken plugins, and a launch refuses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokenspeed_sdk.contracts.manifest import CONTRACTS, Manifest, NativeLibrary, Provision

from tokenspeed.plugins.discover.build_tags import NativeFile, installed_build, mismatches
from tokenspeed.plugins.discover.manifest import (
    UPGRADE_CORE,
    find_manifest,
    package_folders,
    read_manifest,
)
from tokenspeed.plugins.discover.metadata import Metadata, read_distributions
from tokenspeed.plugins.discover.origin import complain, reinstall, upgrade
from tokenspeed.plugins.errors import (
    BuildError,
    ContractError,
    ManifestError,
    PluginError,
    forget_frames,
)
from tokenspeed.plugins.plan import Planned


@dataclass(frozen=True)
class InstalledPlugin:
    """One plugin of one distribution.

    Attributes:
        manifest: path of the manifest, "" when it was not found.
        provisions: what it provides; empty when the manifest is not valid.
        error: why it cannot be used, or None.
        offers: (contract, name) of its entry points, known even when its manifest is not valid.
        native: the shared libraries that it declares.
    """

    id: str
    distribution: str
    version: str
    manifest: str = ""
    provisions: tuple[Planned, ...] = ()
    error: PluginError | None = None
    offers: tuple[tuple[str, str], ...] = ()
    native: tuple[NativeFile, ...] = ()

    @property
    def claims(self) -> frozenset[str]:
        """The keys that it claims, as far as its manifest could be read."""
        return frozenset(claim for p in self.provisions for claim in p.claims)

    @property
    def owner(self) -> str:
        return f"{self.distribution} {self.version}"


def discover() -> tuple[InstalledPlugin, ...]:
    """All installed plugins in a fixed order, whatever the order of the import path."""
    plugins = [plugin for metadata in read_distributions() for plugin in _plugins_of(metadata)]
    return tuple(sorted(plugins, key=lambda plugin: (plugin.id, plugin.distribution)))


def _plugins_of(metadata: Metadata) -> list[InstalledPlugin]:
    plugins = [_read_plugin(metadata, id, value) for id, value in metadata.manifests.items()]
    declared = {offer for plugin in plugins for offer in plugin.offers}
    stray = tuple(sorted(set(metadata.code) - declared))
    unread = [plugin for plugin in plugins if not plugin.provisions and plugin.error is not None]
    if stray and unread:  # any of these may have meant to declare them
        return [replace(p, offers=stray) if p in unread else p for p in plugins]
    problem = metadata.problem
    if stray and not problem:
        problem = 'no manifest provides {} "{}"'.format(*stray[0])
    if not problem or any(plugin.error is not None for plugin in plugins):
        return plugins
    error = ManifestError(
        f"{metadata.owner}: {problem}",
        where=f"installed metadata of {metadata.distribution}",
        fix=complain(metadata.distribution),
    )
    first = plugins[0] if plugins else _Read(metadata, metadata.distribution).plugin()
    offers = (*first.offers, *stray)
    return [replace(first, provisions=(), error=error, offers=offers), *plugins[1:]]


def _read_plugin(metadata: Metadata, id: str, value: str) -> InstalledPlugin:
    """All that can be known of a plugin without running it; the first thing wrong is its error."""
    read = _Read(metadata, id)
    try:
        read.manifest = str(found := find_manifest(value, metadata.distribution))
        manifest = read_manifest(found, metadata.distribution)
        _check_agreement(manifest, metadata, id, read.manifest)
        read.provisions = tuple(_planned(p, metadata, id) for p in manifest.provides)
        _check_numbers(manifest, metadata, read.manifest)
        folders = package_folders(value, metadata.distribution)
        read.native = tuple(_locate(library, folders) for library in manifest.native)
        _check_native(read.native, folders, metadata)
    except PluginError as problem:
        read.error = problem
    except Exception as error:  # whatever stands in its files, others must be found
        read.error = _unreadable(metadata, read.manifest or value, error)
    return read.plugin()


def _unreadable(metadata: Metadata, where: str, error: Exception) -> ManifestError:
    said = getattr(error, "strerror", None) or error  # without the name of the file, for a table
    problem = ManifestError(
        f"the plugin of {metadata.owner} cannot be read: {type(error).__name__}: {said}",
        where=where,
        fix=complain(metadata.distribution),
    )
    problem.__cause__ = error
    forget_frames(problem)
    return problem


@dataclass
class _Read:
    """A plugin while it is read."""

    metadata: Metadata
    id: str
    manifest: str = ""
    provisions: tuple[Planned, ...] = ()
    error: PluginError | None = None
    native: tuple[NativeFile, ...] = ()

    def plugin(self) -> InstalledPlugin:
        return InstalledPlugin(
            id=self.id,
            distribution=self.metadata.distribution,
            version=self.metadata.version,
            manifest=self.manifest,
            provisions=self.provisions,
            error=self.error,
            offers=tuple((p.contract, p.name) for p in self.provisions),
            native=self.native,
        )


def _planned(provision: Provision, metadata: Metadata, id: str) -> Planned:
    return Planned(
        contract=provision.contract,
        name=provision.name,
        value=metadata.code[provision.contract, provision.name],
        distribution=metadata.distribution,
        version=metadata.version,
        number=str(provision.number),
        claims=provision.claims,
        devices=provision.devices,
        needs=provision.needs,
        plugin=id,
    )


def _locate(library: NativeLibrary, folders: Sequence[Path]) -> NativeFile:
    found = (folder / library.file for folder in folders if (folder / library.file).is_file())
    return NativeFile(library, str(next(found, "")))


def _check_native(files: Sequence[NativeFile], folders: Sequence[Path], metadata: Metadata) -> None:
    """BuildError: a library is missing, or was built for something else than what is installed."""
    for file in files:
        if not file.path:
            raise BuildError(
                f"{metadata.owner} has no library {file.library.file}",
                where=", ".join(map(str, folders)),
                fix=f"install its wheel for this machine: {reinstall(metadata.distribution)}",
            )
        wrong = mismatches(file.library, installed_build())
        if wrong:
            raise BuildError(
                f"{file.library.file} of {metadata.owner}: " + "; ".join(wrong),
                where=file.path,
                fix=f"install the build of {metadata.distribution} for what is installed here",
            )


def _check_agreement(manifest: Manifest, metadata: Metadata, id: str, path: str) -> None:
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
            f"{metadata.owner}: {problem}",
            where=path,
            fix=complain(metadata.distribution),
        )


def _check_numbers(manifest: Manifest, metadata: Metadata, path: str) -> None:
    for provision in manifest.provides:
        served = CONTRACTS[provision.contract]
        if not served.serves(provision.number):
            stale = provision.number < served
            raise ContractError(
                f"{metadata.owner} provides {provision.contract} "
                f'"{provision.name}" for contract number {provision.number}; '
                f"this engine serves {served}",
                where=path,
                fix=upgrade(metadata.distribution) if stale else UPGRADE_CORE,
            )
