"""The chart's alerts and dashboard: every expression is PromQL over metrics that the controller has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from controller.operator.metrics import DECLARED

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "deploy" / "chart" / "files"
RULES = yaml.safe_load((FILES / "rules.yaml").read_text(encoding="utf-8"))
DASHBOARD = json.loads((FILES / "dashboard.json").read_text(encoding="utf-8"))
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
# Labels that Prometheus adds to what it scrapes.
OF_TARGETS = {"job", "pod"}


def alerts() -> Iterator[dict[str, Any]]:
    for group in RULES["groups"]:
        yield from group["rules"]


def samples() -> dict[str, set[str]]:
    """Return the labels of each sample that the controller exports."""
    found: dict[str, set[str]] = {name: set() for name in PROCESS}
    for declared in DECLARED:
        labels = set(declared.labels)
        match declared.kind:
            case "histogram":
                found[f"{declared.name}_bucket"] = labels | {"le"}
                found[f"{declared.name}_count"] = found[f"{declared.name}_sum"] = labels
            case "counter":
                found[f"{declared.name}_total"] = labels
            case _:
                found[declared.name] = labels
    return found


def expressions() -> Iterator[tuple[str, str]]:
    for alert in alerts():
        yield alert["alert"], alert["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def parsed(expression: str) -> promql_parser.Expr:
    """Return the expression with Grafana's variables filled in. Raises ValueError."""
    return promql_parser.parse(
        expression.replace("$__rate_interval", "5m").replace("$namespace", "a")
    )


def selectors(node: object) -> Iterator[promql_parser.VectorSelector]:
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    below = [
        getattr(node, name, None) for name in ("lhs", "rhs", "expr", "param", "vector_selector")
    ]
    for each in [*below, *getattr(node, "args", ())]:
        if each is not None:
            yield from selectors(each)


def groupings(expression: str) -> set[str]:
    found = re.findall(r"\bby \(([^)]*)\)", expression)
    return {label.strip() for labels in found for label in labels.split(",")}


@pytest.mark.parametrize(("place", "expression"), [*expressions()])
def test_an_expression_uses_metrics_and_labels_that_exist(place: str, expression: str) -> None:
    exported, found = samples(), list(selectors(parsed(expression)))
    assert found, place
    labels: set[str] = set()
    for selector in found:
        assert selector.name in exported, place
        matched = {matcher.name for matcher in selector.matchers.matchers}
        assert matched <= exported[selector.name] | OF_TARGETS, place
        labels |= exported[selector.name]
    assert groupings(expression) <= labels, place


def test_a_legend_names_labels_that_the_expression_keeps() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert shown <= groupings(target["expr"]) | OF_TARGETS, panel["title"]


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            cells = {(x, y) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & taken, panel["title"]
            assert x < 24, panel["title"]
            taken |= cells


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    sections = re.findall(r"^### (\w+)$", RUNBOOKS, flags=re.MULTILINE)
    assert sections == [alert["alert"] for alert in alerts()]


def test_an_alert_says_how_bad_it_is_and_what_it_means() -> None:
    for alert in alerts():
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert alert["annotations"].keys() == {"summary", "description"}


def test_every_metric_of_the_controller_is_on_the_dashboard_or_in_an_alert() -> None:
    used = "\n".join(expression for _, expression in expressions())
    unused = [declared.name for declared in DECLARED if declared.name not in used]
    assert unused == ["tuner_controller_build_info"]
