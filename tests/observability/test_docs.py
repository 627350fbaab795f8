# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The table of metrics in the documentation is what a live server says."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import Metric
from tokenspeed.observe import delivery, observers

from .conftest import Page, Run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "observability.md"
BEGIN, END = "<!-- metrics: begin -->\n", "<!-- metrics: end -->"


def table(page: Page) -> str:
    """A row for each family, in the order of the page."""
    head = "| metric | type | labels | what it says |\n|---|---|---|---|\n"
    return head + "".join(row(family) for family in page.values())


def row(family: Metric) -> str:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    labels = {label: None for sample in family.samples for label in sample.labels if label != "le"}
    shown = ", ".join(f"`{label}`" for label in labels)
    return f"| `{name}` | {family.type} | {shown} | {family.documentation} |\n"


def test_the_table_of_metrics(run: Run) -> None:
    text = PAGE.read_text()
    written = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    assert written == table(run.late), f"put this between the marks:\n{table(run.late)}"


def test_the_numbers_in_the_text() -> None:
    text = PAGE.read_text()
    assert f"once {delivery.QUEUE_EVENTS} wait" in text
    assert f"after {delivery.MAX_ERRORS} it is switched off" in text
    assert f"ends {observers.CLOSE_SECONDS:g} s later" in text


def test_the_queries_name_metrics_that_exist(run: Run) -> None:
    known = {sample.name for family in run.late.values() for sample in family.samples}
    queried = set(re.findall(r"tokenspeed_\w+(?=[\[{)])", PAGE.read_text()))
    assert len(queried) >= 5
    assert queried <= known
