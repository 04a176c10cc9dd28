"""What deploy/dashboards asks of Prometheus: the queries of its dashboards and rules, and the metrics and labels in them."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

DIRECTORY: Final = Path(__file__).parents[2] / "deploy" / "dashboards"
RULES: Final = DIRECTORY / "rules.yml"
DASHBOARDS: Final = tuple(sorted(DIRECTORY.glob("*.json")))
OF_SCRAPES: Final = {"node", "instance", "job", "le"}
"""Labels that a scrape or a histogram gives, beside a metric's own."""
_TEXT: Final = r'"(?:[^"\\]|\\.)*"'
_METRIC: Final = re.compile(rf"\b(userspace_cni_\w+)(?:\{{((?:[^{{}}\"]|{_TEXT})*)\}})?")
_MATCHER: Final = re.compile(rf"(\w+)\s*(?:=~|!~|!=|=)\s*{_TEXT}")
_GROUPING: Final = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([\w\s,]*)\)")
_SERIES: Final = re.compile(rf"^(\w+)(?:\{{((?:[^\"}}]|{_TEXT})*)\}})? \S+$", re.MULTILINE)
_LABEL: Final = re.compile(rf"(\w+)={_TEXT}")


@dataclass(frozen=True)
class ShownQuery:
    """A query of a panel, or of an alert, whose name is its `title`; `legend` names its lines."""

    where: str
    title: str
    expr: str
    legend: str = ""

    def filled(self, node: str) -> str:
        """The query as Grafana would send it for this node."""
        return self.expr.replace("$__rate_interval", "1m").replace("$node", node)

    def metrics(self) -> dict[str, set[str]]:
        """Its metrics of ours, each with the labels by which it chooses series."""
        found: dict[str, set[str]] = defaultdict(set)
        for name, matchers in _METRIC.findall(self.expr):
            found[name] |= set(_MATCHER.sub(r"\1 ", matchers).replace(",", " ").split())
        return found

    def kept_labels(self) -> set[str]:
        """The labels by which it groups, and those in the names of its lines."""
        grouped = {label for labels in _GROUPING.findall(self.expr) for label in re.findall(r"\w+", labels)}
        return grouped | set(re.findall(r"{{(\w+)}}", self.legend))


def panels(dashboard: Path) -> Iterator[dict[str, Any]]:
    """Its panels, also those of folded rows, but not the rows."""
    waiting = list(json.loads(dashboard.read_text())["panels"])
    while waiting:
        panel = waiting.pop(0)
        waiting += panel.get("panels", [])
        if panel["type"] != "row":
            yield panel


def shown_queries() -> Iterator[ShownQuery]:
    for dashboard in DASHBOARDS:
        for panel in panels(dashboard):
            for target in panel["targets"]:
                yield ShownQuery(dashboard.stem, panel["title"], target["expr"], target.get("legendFormat", ""))


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alert_queries() -> Iterator[ShownQuery]:
    for alert in alerts():
        text = " ".join(alert["annotations"].values())
        legend = "".join(f"{{{{{label}}}}}" for label in re.findall(r"\$labels\.(\w+)", text))
        yield ShownQuery("rules", alert["alert"], alert["expr"], legend)


def exposed(text: str) -> dict[str, set[str]]:
    """The metrics of a scrape, also those without series, each with the labels of its series.

    A histogram's and a counter's names are those that queries use.
    """
    found: dict[str, set[str]] = {}
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE):
        for each in [f"{name}_{part}" for part in ("bucket", "count", "sum")] if kind == "histogram" else [name]:
            found[each] = set()
    for name, labels in _SERIES.findall(text):
        found.setdefault(name, set()).update(_LABEL.findall(labels))
    return found


def unknown_in(queries: Iterator[ShownQuery], known: Mapping[str, set[str]], silent: Mapping[str, set[str]]) -> list[str]:
    """What queries name and no scrape has: metrics, and labels of metrics. `silent`: labels of those that have no series now."""
    wrong = []
    for query in queries:
        kept: set[str] = set()
        for metric, chosen in query.metrics().items():
            if metric not in known:
                wrong.append(f"{query.where}, {query.title}: there is no metric {metric}")
                continue
            labels = known[metric] or silent.get(metric, set())
            kept |= labels
            wrong += [
                f"{query.where}, {query.title}: {metric} has no label {each}" for each in sorted(chosen - labels - OF_SCRAPES)
            ]
        if query.metrics():
            lacking = query.kept_labels() - kept - OF_SCRAPES
            wrong += [f"{query.where}, {query.title}: no metric in it has the label {each}" for each in sorted(lacking)]
    return wrong
