# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Each plugin rule has tests that name it, and a section that links to exactly those."""

from __future__ import annotations

import ast
import re

import pytest
from distributions import ROOT
from rule_tests import marked, proofs

PAGE = (ROOT / "docs" / "plugin-rules.md").read_text()
RULES = [f"R{number}" for number in range(1, 21)]


@pytest.mark.parametrize("rule", RULES)
def test_a_test_names_the_rule(rule: str) -> None:
    assert rule in proofs(), f'no test is marked @pytest.mark.rule("{rule}")'


def test_no_test_names_a_rule_that_is_not_there() -> None:
    assert set(proofs()) <= set(RULES)


def test_the_page_has_every_rule_in_order_with_its_reason() -> None:
    assert re.findall(r"^## (R\d+):", PAGE, re.MULTILINE) == RULES
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        assert "*Why:*" in section, section.splitlines()[0]


@pytest.mark.parametrize("rule", RULES)
def test_the_built_page_links_to_exactly_the_marked_tests(site, rule: str) -> None:
    sections = re.split(r"<h2[^>]*>(R\d+):", site.html("plugin-rules.html"))
    section = sections[sections.index(rule) + 1]
    linked = re.findall(r'href="repository/([^"]+)\.html"', section)
    assert linked == list(proofs().get(rule, {}))


def test_marks_on_functions_classes_modules_and_parameters_count() -> None:
    module = ast.parse(
        "import pytest\n"
        'pytestmark = [pytest.mark.rule("R1")]\n'
        '@pytest.mark.rule("R2")\n'
        "class TestIt:\n"
        '    @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.rule("R3"))])\n'
        "    def test_a(self, x): ...\n"
        "def helper(): ...\n"
        '@pytest.mark.rule("R4", "R5")\n'
        "async def test_b(): ...\n"
    )
    assert list(marked(module)) == [
        *[(rule, "test_a") for rule in ("R1", "R2", "R3")],
        *[(rule, "test_b") for rule in ("R1", "R4", "R5")],
    ]
