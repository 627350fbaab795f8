# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The site is complete and stands alone."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from distributions import ROOT

LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}


class _Loads(HTMLParser):
    """Addresses that a browser fetches by itself, and the targets of local links."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag in LOADING and LOADING[tag] in values:
            self.fetched.append(values[LOADING[tag]])
        if tag == "link" and values.get("rel") in ("stylesheet", "preload", "icon"):
            self.fetched.append(values["href"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])


def _read(page: Path) -> _Loads:
    parser = _Loads()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def test_nothing_is_loaded_from_another_host(site) -> None:
    pages = list(site.folder.rglob("*.html"))
    assert len(pages) > 15
    assert not [
        (page.name, address)
        for page in pages
        for address in _read(page).fetched
        if address.startswith(("http:", "https:", "//"))
    ]
    for sheet in site.folder.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", sheet.read_text()), sheet


def test_every_local_link_leads_somewhere(site) -> None:
    """The strict build checks those of the pages; this one those of the generated text too."""
    broken = []
    for page in site.folder.rglob("*.html"):
        for link in _read(page).links:
            path = link.partition("#")[0]
            if path and ":" not in path and page.name != "404.html":
                broken += [(page.name, link)] * (not (page.parent / path).exists())
    assert not broken


def test_diagrams_are_drawn(site) -> None:
    assert '<div class="diagram"><svg' in site.html("scheduler.html")
    assert '<div class="diagram"><svg' in site.html("structure.html")


def test_the_configuration_does_not_leave_out_a_page() -> None:
    config = (ROOT / "properdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert f": {name}\n" in config, f"{name} is not in the navigation"
