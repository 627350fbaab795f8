# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Complete wheel projects to start a plugin from; ``ts plugins new`` writes them.

    write("kernel", "acme-norm", "acme-norm")     # -> the files, relative to the folder

A template is a folder of files that end in ".tmpl", with ``$name`` where a name goes, as
string.Template has it. What is written belongs to whoever asked for it. Imports neither torch nor
any plugin.
"""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from string import Template

KINDS = ("kernel", "model", "observer")

SUFFIX = ".tmpl"

PACKAGE = "PACKAGE"
"""Stands for the package's name in paths of a template."""

_NAME = re.compile(r"[a-z]([a-z0-9._-]*[a-z0-9])?", re.IGNORECASE | re.ASCII)

_TAKEN = frozenset({"none", "reference", "cpu", "nvidia", "amd", "llama", "qwen2", "qwen3"})
"""What the engine's options and tables mean by these is settled: no plugin, the sdk's own kernels,
and what TokenSpeed's wheels provide. A second provision of such a name would stop a launch."""


class TemplateError(ValueError):
    """A project that cannot be written; says what is wrong and what to do."""


@dataclass(frozen=True)
class Names:
    """All names of a project, derived from the distribution's.

    Attributes:
        name: of the distribution, the plugin and its kernel: "acme-norm".
        package: what Python imports: "acme_norm".
        title: "AcmeNorm", for classes.
    """

    name: str
    package: str
    title: str

    @classmethod
    def derive(cls, name: str) -> Names:
        """TemplateError: NAME cannot be a distribution of a package of its own."""
        if not _NAME.fullmatch(name):
            raise TemplateError(
                f"{name!r} cannot name a distribution: use letters, digits and single hyphens, "
                "starting with a letter, such as acme-norm"
            )
        parts = [part for part in re.split(r"[-_.]+", name.lower()) if part]
        package = "_".join(parts)
        if keyword.iskeyword(package) or package in sys.stdlib_module_names:
            raise TemplateError(
                f"{name!r} would make a package named {package!r}, which is Python's; "
                f"choose another name, such as acme-{name}"
            )
        if package in _TAKEN:
            raise TemplateError(
                f"{name!r} is a name of TokenSpeed's own; choose another one, such as acme-{name}"
            )
        return cls("-".join(parts), package, "".join(part.capitalize() for part in parts))


def write(kind: str, name: str, out: str | Path) -> tuple[str, ...]:
    """Write a project into the folder ``out``, which is made when absent.

    Args:
        kind: one of KINDS.
        name: of the distribution.

    Returns:
        The files, relative to ``out``, sorted.

    Raises:
        TemplateError: the name is not valid or taken, or ``out`` is not an empty folder.
        OSError: it cannot be written.
    """
    if kind not in KINDS:
        raise TemplateError(f"there is no template {kind!r}; there is: {', '.join(KINDS)}")
    names = Names.derive(name)
    _refuse_taken(names)
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TemplateError(f"{folder} exists and is not an empty folder; name another one")
    contents = _render(kind, names)
    for path, text in contents.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return tuple(contents)


def _refuse_taken(names: Names) -> None:
    """TemplateError when the distribution or the package is installed already."""
    try:
        version = distribution(names.name).version
    except PackageNotFoundError:
        pass
    else:
        raise TemplateError(
            f"{names.name} {version} is installed; choose another name, or remove it: "
            f"pip uninstall {names.name}"
        )
    if find_spec(names.package) is not None:
        raise TemplateError(
            f"a package {names.package!r} can be imported already, so that {names.name!r} would "
            "hide it or be hidden; choose another name"
        )


def _render(kind: str, names: Names) -> dict[str, str]:
    """Path in the project -> text, sorted by path."""
    values = {"name": names.name, "package": names.package, "title": names.title}
    contents = {
        str(path).replace(PACKAGE, names.package).removesuffix(SUFFIX): Template(
            file.read_text(encoding="utf-8")
        ).substitute(values)
        for path, file in _walk(files(__name__).joinpath(kind), PurePosixPath())
    }
    return dict(sorted(contents.items()))


def _walk(folder: Traversable, path: PurePosixPath) -> list[tuple[PurePosixPath, Traversable]]:
    found = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _walk(entry, path / entry.name)
        elif entry.name.endswith(SUFFIX):
            found.append((path / entry.name, entry))
    return found
