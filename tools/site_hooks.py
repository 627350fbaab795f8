# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Hooks of the documentation site: what pages get from the code, and files outside docs/.

A page may link to any file of the repository by its relative path, as it must to work in a file
browser too. The site takes every such file in, so that it is complete without a network; a link to
nothing is left alone, and the strict build refuses it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import mmdr
from properdocs.structure.files import File
from rule_tests import ROOT, proofs

DOCS = ROOT / "docs"
TAKEN_IN = "repository/"
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
SLOT = re.compile(r"^<!-- generated: (.+) -->$", re.MULTILINE)
LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".cpp": "cpp", ".toml": "toml", ".json": "json"}


def on_config(config: Any) -> None:
    """Draw fences of language "mermaid" while the site is built."""
    fence = {"name": "mermaid", "class": "diagram", "format": draw}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]


def on_files(files: Any, config: Any) -> None:
    """Take in what pages link to outside docs/, and what that links to in turn."""
    pending = [DOCS / file.src_uri for file in files.documentation_pages()]
    seen = set(pending)
    while pending:
        page = pending.pop()
        if page.suffix != ".md":
            continue
        for target in targets(page):
            if target not in seen and not target.is_relative_to(DOCS):
                seen.add(target)
                pending.append(target)
                files.append(File.generated(config, page_of(target), content=shown(target)))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill the slots, and point links that leave docs/ at the pages that were taken in."""
    uri = page.file.src_uri
    source = ROOT / uri.removeprefix(TAKEN_IN) if uri.startswith(TAKEN_IN) else DOCS / uri
    if uri.startswith(TAKEN_IN) and source.suffix != ".md":
        return markdown

    def redirect(match: re.Match[str]) -> str:
        target = resolved(source, match[1])
        if target is None:
            return match[1]
        inside = target.is_relative_to(DOCS)
        wanted = target.relative_to(DOCS).as_posix() if inside else page_of(target)
        return posixpath.relpath(wanted, posixpath.dirname(uri))

    return LINK.sub(redirect, filled(markdown))


def targets(page: Path) -> list[Path]:
    """Files and folders of the repository that a page links to."""
    found = (resolved(page, link) for link in LINK.findall(filled(page.read_text())))
    return [target for target in found if target is not None]


def resolved(page: Path, link: str) -> Path | None:
    """Where a link leads; None when that is not in the repository."""
    target = (page.parent / link).resolve()
    return target if target.exists() and target.is_relative_to(ROOT) else None


def page_of(target: Path) -> str:
    """The site's source path of a file outside docs/."""
    name = target.relative_to(ROOT).as_posix()
    if target.is_dir():
        return f"{TAKEN_IN}{name}/index.md"
    return TAKEN_IN + name + ("" if target.suffix == ".md" else ".md")


def shown(target: Path) -> str:
    """A file as a page: Markdown as it is, a folder as its list, all else as code."""
    name = target.relative_to(ROOT).as_posix()
    if target.is_dir():
        names = sorted(path.name for path in target.iterdir() if path.name[0] not in "._")
        return "\n".join([f"# {name}", "", *(f"- `{entry}`" for entry in names)])
    text = target.read_text(encoding="utf-8")
    if target.suffix == ".md":
        return text
    return f"# {name}\n\n``````{LANGUAGES.get(target.suffix, '')}\n{text}``````\n"


def draw(source: str, *_: Any, **__: Any) -> str:
    """A Mermaid diagram as SVG."""
    return f'<div class="diagram">{mmdr.render(source).svg()}</div>'


def filled(markdown: str) -> str:
    """The page with every ``<!-- generated: NAME ARGUMENT -->`` replaced."""
    return SLOT.sub(lambda match: _generated(*match[1].split()), markdown)


def _generated(name: str, *arguments: str) -> str:
    return GENERATORS[name](*arguments)


@cache
def ops() -> str:
    """Every public op: its traits, and the reference that defines it."""
    from tokenspeed_sdk.ops import OPS

    def names(values: tuple[str, ...]) -> str:
        return ", ".join(f"`{value}`" for value in values) or "none"

    return "\n\n".join(
        f"## {op.name}\n\n"
        f"Traits: {names(op.traits)}. Of them, the reference takes as keywords: "
        f"{names(op.keywords)}.\n\n"
        f"::: {op.reference.__module__}.{op.reference.__name__}\n"
        "    options:\n"
        "      show_root_heading: true"
        for op in OPS.values()
    )


@cache
def tests_of(rule: str) -> str:
    """Links to the files with tests that are marked with a rule, and their names."""
    files = proofs().get(rule, {})
    rows = [
        f"- [`{path}`](../{path}): {', '.join(f'`{test}`' for test in tests)}"
        for path, tests in files.items()
    ]
    return "\n".join(["Tests:", "", *rows]) if rows else "No test names this rule."


GENERATORS: dict[str, Callable[..., str]] = {"ops": ops, "tests": tests_of}
