"""What the Grafana dashboards show: rows of panels with their queries, for make_dashboards.py.

Rates use Grafana's $__rate_interval, so that a scrape interval of any length gives data; a counter that an agent's restart sets
to 0 is no negative rate. What may have a series for each node is cut by topk. A metric that nobody has, as those of OVN where
there is none, leaves its panel empty: no query makes a 0 of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal["number", "lines", "stack", "table"]
AGENTS: Final = 'job=~"(.+/)?userspace-cni"'
"""The job of the agents, by scrape.yml and by the PodMonitor."""
ADD: Final = 'verb="ADD"'
TOTAL: Final = 'stage="total"'
STAGES: Final = 'stage!="total"'
OK: Final = 'outcome="ok"'
FAILED: Final = 'outcome!="ok"'


@dataclass(frozen=True)
class ShownPanel:
    """A panel. `queries`: each with the name of its lines; a table has one query and shows its labels.

    `red_at`: a number from which it is red; `zero`: what a red 0 says, and what 1 says.
    """

    title: str
    kind: Kind
    queries: dict[str, str]
    text: str
    unit: str = "short"
    width: int = 8
    red_at: float | None = None
    zero: tuple[str, str] | None = None


@dataclass(frozen=True)
class ShownRow:
    """A row of panels. `folded`: they are shown, and their queries made, when it is opened."""

    title: str
    panels: tuple[ShownPanel, ...]
    folded: bool = False


@dataclass(frozen=True)
class ShownDashboard:
    """A dashboard, in the file `<uid>.json`. `variables`: name and query of each, beside the data source."""

    uid: str
    title: str
    text: str
    rows: tuple[ShownRow, ...]
    variables: dict[str, str] = field(default_factory=dict)


def number(title: str, query: str, text: str, *, red_at: float | None = None, zero: tuple[str, str] | None = None) -> ShownPanel:
    return ShownPanel(title, "number", {"": query}, text, width=3, red_at=red_at, zero=zero)


def rate(metric: str, more: str = "") -> str:
    return f"rate(userspace_cni_{metric}{{{more}}}[$__rate_interval])"


def quantile(of: float, by: str, more: str) -> str:
    return f"histogram_quantile({of}, sum by ({by}) ({rate('verb_seconds_bucket', more)}))"


def calls(node: str) -> tuple[ShownPanel, ...]:
    """The calls of runtimes; `node`: the selector of nodes, "" for all."""
    add = joined(node, ADD)
    total = joined(node, ADD, TOTAL, OK)
    counted = rate("verb_seconds_count", joined(node, ADD, TOTAL))
    return (
        ShownPanel(
            "Calls by verb and outcome",
            "lines",
            {"{{verb}} {{outcome}}": f"sum by (verb, outcome) ({rate('verb_seconds_count', joined(node, TOTAL))})"},
            "Calls of runtimes. Outcomes other than ok are classes of CNI's error codes; input is the fault of the call.",
            "ops",
        ),
        ShownPanel(
            "ADD: seconds of those that succeeded",
            "lines",
            {f"{of:.0%}".replace("%", " %"): quantile(of, "le", total) for of in (0.5, 0.9, 0.99)},
            "Half, nine tenths and 99 of 100 ADDs took no longer than this.",
            "s",
        ),
        ShownPanel(
            "ADD: where the time goes",
            "stack",
            {
                "{{stage}}": f"sum by (stage) ({rate('verb_seconds_sum', joined(add, STAGES))})"
                f" / on () group_left () sum ({counted})"
            },
            "Mean seconds of an ADD by stage: address is the wait for addresses in annotations, ovs the switch.",
            "s",
        ),
    )


def joined(*parts: str) -> str:
    return ",".join(part for part in parts if part)


def drops(node: str) -> dict[str, str]:
    """Frames that did not arrive, by why."""

    def summed(metric: str, more: str = "") -> str:
        return f"sum ({rate(metric, joined(node, more))})"

    return {
        "not taken by the application (tx_dropped)": summed("port_tx_dropped_total"),
        "not taken by the switch (rx_dropped)": summed("port_rx_dropped_total"),
        "over the limit to the pod": summed("port_limit_drops_total", 'direction="to_pod"'),
        "over the limit from the pod": summed("port_limit_drops_total", 'direction="from_pod"'),
        "errors to the application": summed("port_tx_errors_total"),
        "errors from the application": summed("port_rx_errors_total"),
    }


DROPS_TEXT: Final = (
    "Frames per second that did not arrive, by why. "
    "What the limit of a vhost-user port drops is also among its tx_dropped or rx_dropped."
)


def routes(node: str) -> ShownPanel:
    return ShownPanel(
        "Pods with Routes",
        "lines",
        {what: f"sum (userspace_cni_route_pods_{what}{{{node}}})" for what in ("applied", "skipped", "failed")}
        | {"destinations asked for twice": f"sum (userspace_cni_route_conflicts{{{node}}})"},
        "With the setting routes: pods that have theirs, that lack what routes need, in which one cannot be made.",
    )
