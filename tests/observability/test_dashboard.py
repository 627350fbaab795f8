# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Every query of the Grafana dashboard against two scrapes of a live server.

Nothing on the package index evaluates PromQL, so each query is parsed by a complete parser, and
what it selects, groups by, joins on and takes a rate of is compared with what the server says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
from prometheus_client.samples import Sample

from .conftest import Page, Run

DASHBOARD = Path(__file__).resolve().parents[2] / "bench" / "grafana" / "tokenspeed.json"
GRAFANA = {"$__rate_interval": "1m", "$instance": ".*"}
"""What Grafana fills in before Prometheus sees a query."""
ADDED = {"instance": "127.0.0.1:9000", "job": "tokenspeed"}
"""Labels that Prometheus adds to what it scrapes."""
QUIET = {
    "tokenspeed_observer_dropped_events_total",
    "tokenspeed_observer_errors_total",
    "tokenspeed_tier_transferred_pages_total",
    "tokenspeed_tier_failed_transfers_total",
    "tokenspeed_retractions_to_host_total",
    "tokenspeed_sessions_returned_total",
    "tokenspeed_drafted_tokens_total",
    "tokenspeed_accepted_tokens_total",
}
"""What has no reason to grow in a healthy run without a host tier and a drafter, in which nobody
comes back."""


def panels() -> list[dict[str, Any]]:
    every = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in every if panel["type"] != "row"]


def queries() -> list[Any]:
    """A case for each query."""
    return [
        pytest.param(target["expr"], target["legendFormat"], id=f"{panel['title']}-{index}")
        for panel in panels()
        for index, target in enumerate(panel["targets"])
    ]


def parsed(query: str) -> promql.Expr:
    for name, filled in GRAFANA.items():
        query = query.replace(name, filled)
    assert "$" not in query, "a variable that Grafana does not know here"
    return promql.parse(query)


def parts(expression: promql.Expr) -> list[Any]:
    """All nodes of an expression."""
    found: list[Any] = []
    promql.walk(expression, pre_visit=found.append)
    return found


def selected(page: Page, selector: Any) -> list[Sample]:
    """The samples that a selector finds."""
    named = (s for family in page.values() for s in family.samples if s.name == selector.name)
    matchers = selector.matchers.matchers
    return [s for s in named if all(matches(m, {**s.labels, **ADDED}) for m in matchers)]


def matches(matcher: Any, labels: dict[str, str]) -> bool:
    assert matcher.name in labels, f"nothing has a label {matcher.name}"
    is_pattern = matcher.op in (promql.MatchOp.Re, promql.MatchOp.NotRe)
    pattern = matcher.value if is_pattern else re.escape(matcher.value)
    negated = matcher.op in (promql.MatchOp.NotEqual, promql.MatchOp.NotRe)
    return bool(re.fullmatch(pattern, labels[matcher.name])) != negated


def labels_of(page: Page, expression: Any) -> set[str]:
    """Labels that the selectors inside an expression have in common with each other."""
    sets = [
        {*sample.labels, *ADDED}
        for node in parts(expression)
        if isinstance(node, promql.VectorSelector)
        for sample in selected(page, node)
    ]
    return set.intersection(*sets)


@pytest.mark.parametrize(("query", "legend"), queries())
def test_a_query_finds_what_it_asks_for(run: Run, query: str, legend: str) -> None:
    expression = parsed(query)
    for node in parts(expression):
        if isinstance(node, promql.VectorSelector):
            assert selected(run.late, node), f"nothing matches {node}"
            assert selected(run.early, node), f"nothing matched {node} from the start"
        elif isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            missing = set(node.modifier.labels) - labels_of(run.late, node.expr)
            assert not missing, f"{node.expr} has no label {missing}"
        elif isinstance(node, promql.BinaryExpr) and node.modifier is not None:
            check_join(run.late, node)
        elif isinstance(node, promql.Call):
            check_call(run, node)
    shown = set(re.findall(r"{{(\w+)}}", legend))
    assert shown <= grouped_by(expression), f"the legend shows labels that are not there: {shown}"


def check_join(page: Page, node: Any) -> None:
    """The labels that are matched or ignored exist on one side at least."""
    matching = node.modifier.matching
    if matching is not None:
        known = labels_of(page, node.lhs) | labels_of(page, node.rhs)
        assert set(matching.labels) <= known, f"{node} joins on {matching.labels}"


def check_call(run: Run, node: Any) -> None:
    """Rates are of what only grows, and did grow; quantiles are of buckets by their bounds."""
    if node.func.name == "rate":
        selector = node.args[0].vector_selector
        suffix = selector.name.rpartition("_")[2]
        assert suffix in {"total", "bucket", "count", "sum"}, f"{selector.name} is no counter"
        before, after = (
            sum(s.value for s in selected(page, selector)) for page in (run.early, run.late)
        )
        failures = "outcome" in str(selector)
        assert after > before or selector.name in QUIET or failures, f"{selector} did not grow"
    elif node.func.name == "histogram_quantile":
        buckets = node.args[1]
        assert isinstance(buckets, promql.AggregateExpr)
        assert "le" in buckets.modifier.labels, "a quantile needs the bounds of the buckets"
    else:
        raise AssertionError(f"this test does not know {node.func.name}")


def grouped_by(expression: Any) -> set[str]:
    """Labels that the result has for sure."""
    while not isinstance(expression, promql.AggregateExpr | promql.VectorSelector):
        if isinstance(expression, promql.BinaryExpr):
            expression = expression.lhs
        elif isinstance(expression, promql.Call):
            expression = expression.args[-1]
        else:
            expression = expression.expr
    modifier = getattr(expression, "modifier", None)
    return set() if modifier is None else set(modifier.labels)


def test_every_panel_can_be_read() -> None:
    """A title, a description, a unit, and the data source that a person chose."""
    titles = [panel["title"] for panel in panels()]
    assert len(titles) == len(set(titles)) > 15
    for panel in panels():
        assert len(panel["description"]) > 30, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        for used in (panel, *panel["targets"]):
            assert used["datasource"]["uid"] == "${datasource}", panel["title"]


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        where = panel["gridPos"]
        cells = set(cells_of(where))
        assert where["x"] + where["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def cells_of(where: dict[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(where["x"], where["x"] + where["w"]):
        for y in range(where["y"], where["y"] + where["h"]):
            yield x, y


def test_no_metric_is_left_out(run: Run) -> None:
    """What is worth counting is worth showing."""
    text = DASHBOARD.read_text()
    silent = {"tokenspeed_engine_silent_seconds", "tokenspeed_observer_enabled"}
    silent |= {"tokenspeed_requests_received", "tokenspeed_waiting_prompt_tokens"}
    assert {name for name in run.late if name not in text} == silent
