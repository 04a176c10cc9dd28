"""Writes the Grafana dashboards, and the PrometheusRule with the alerts of rules.yml, beside itself.

    .venv/bin/python -m deploy.dashboards.make_dashboards

cluster_dashboard.py and node_dashboard.py say what the dashboards show. The form comes from Grafana's own library, so that every
field is one that Grafana has. Change these sources, and never the files that are written: a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from grafana_foundation_sdk.builders import common as options
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.dashboards.cluster_dashboard import CLUSTER
from deploy.dashboards.dashboard_panels import ShownDashboard, ShownPanel
from deploy.dashboards.node_dashboard import NODE

HERE: Final = Path(__file__).resolve().parent

_SOURCE: Final = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHTS: Final = {"number": 4, "lines": 8, "stack": 8, "table": 6}
_GREEN, _RED = "green", "red"


def written() -> Iterator[tuple[str, str]]:
    """Name and text of each file."""
    for shown in (CLUSTER, NODE):
        yield f"{shown.uid}.json", json.dumps(_dashboard(shown), cls=JSONEncoder, indent=2) + "\n"
    yield "prometheus-rule.yaml", _rule_object((HERE / "rules.yml").read_text())


def _rule_object(rules: str) -> str:
    made = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "userspace-cni",
            "namespace": "userspace-cni",
            "labels": {"app.kubernetes.io/name": "userspace-cni"},
        },
        "spec": yaml.safe_load(rules),
    }
    head = "# The alerts of rules.yml for the Prometheus operator. make_dashboards.py writes this file.\n"
    return head + yaml.safe_dump(made, sort_keys=False, width=130)


def _dashboard(shown: ShownDashboard) -> Any:
    made = build.Dashboard(shown.title).uid(shown.uid).description(shown.text).tags(["userspace-cni"]).readonly()
    made.time("now-3h", "now").refresh("1m").timezone("browser").tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
    made.with_variable(build.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    for name, query in shown.variables.items():
        variable = build.QueryVariable(name).label(name).query(query).datasource(_SOURCE)
        variable.refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        made.with_variable(variable)
    made.link(_link_to(NODE if shown is CLUSTER else CLUSTER))
    number = 0
    for row in shown.rows:
        line = build.Row(row.title).collapsed(row.folded).id(number := number + 1)
        panels = [_panel(each, number := number + 1) for each in row.panels]
        for panel in panels if row.folded else ():
            line.with_panel(panel)
        made.with_row(line)
        for panel in () if row.folded else panels:
            made.with_panel(panel)
    return made.build()


def _link_to(other: ShownDashboard) -> build.DashboardLink:
    link = build.DashboardLink(other.title).type(dashboard.DashboardLinkType.LINK).url(f"/d/{other.uid}")
    return link.icon("dashboard").keep_time(True).include_vars(True)


def _panel(shown: ShownPanel, number: int) -> Any:
    made: Any
    if shown.kind == "number":
        reduced = options.ReduceDataOptions().calcs(["lastNotNull"])
        made = stat.Panel().reduce_options(reduced).graph_mode(common.BigValueGraphMode.NONE).no_value("no data")
        made.color_mode(common.BigValueColorMode.VALUE)
    elif shown.kind == "table":
        made = table.Panel().show_header(True).cell_height(common.TableCellHeight.SM)
    else:
        legend = options.VizLegendOptions().display_mode(common.LegendDisplayMode.LIST).placement(common.LegendPlacement.BOTTOM)
        tooltip = options.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
        made = timeseries.Panel().legend(legend.show_legend(True)).tooltip(tooltip).fill_opacity(10).min(0)
        if shown.kind == "stack":
            made.stacking(options.StackingConfig().mode(common.StackingMode.NORMAL)).fill_opacity(40)
    made.id(number).title(shown.title).description(shown.text).datasource(_SOURCE).unit(shown.unit)
    made.span(shown.width).height(_HEIGHTS[shown.kind]).thresholds(_thresholds(shown))
    if shown.zero:
        made.mappings(_mappings(shown.zero))
    if "{{node}}" in "".join(shown.queries):
        made.data_links(
            [build.DashboardLink("this node").url(f"/d/{NODE.uid}?var-node=${{__field.labels.node}}&${{__url_time_range}}")]
        )
    for letter, (name, expr) in zip("ABCDEFGHIJ", shown.queries.items(), strict=False):
        query = prometheus.Dataquery().expr(expr).ref_id(letter).datasource(_SOURCE)
        if shown.kind == "table":
            query.instant().format(PromQueryFormat.TABLE)
        else:
            query.range().legend_format(name or "__auto")
        made.with_target(query)
    return made


def _thresholds(shown: ShownPanel) -> build.ThresholdsConfig:
    """Green, and red from a number. A panel without data has no colour."""
    steps = [dashboard.Threshold(value=None, color=_GREEN)]
    if shown.red_at is not None:
        steps.append(dashboard.Threshold(value=shown.red_at, color=_RED))
    return build.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)


def _mappings(zero: tuple[str, str]) -> list[dashboard.ValueMapping]:
    words = zip(("0", "1"), zero, (_RED, _GREEN), strict=True)
    return [
        dashboard.ValueMap(options={value: dashboard.ValueMappingResult(text=text, color=color) for value, text, color in words})
    ]


if __name__ == "__main__":
    for file, text in written():
        (HERE / file).write_text(text)
