"""Dashboards and alerts on a real Prometheus that scrapes a real agent and controller; and promtool's view of the alerts."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
import yaml

from tests.agent.alert_cases import CALM, FIRING, AlertCase
from tests.agent.living import LiveNode, container, port_of
from tests.agent.test_controller_process import Process, free_port
from tests.cni.spec import row_of, succeeded
from tests.lab.dashboards import RULES, alert_queries, alerts, exposed, shown_queries, unknown_in
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.cluster_objects import node, ours, spec, state
from tests.lab.kube.definitions import defined_server
from tests.lab.node import agent
from tests.lab.node.prometheus_server import scraping
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath.vhost.front_end import FrontEndListener

T = TypeVar("T")
DOWN = "UserspaceCniAgentDown"
FRAME = bytes.fromhex("ffffffffffff02000000000188b5") + bytes(86)
SILENT = {
    "userspace_cni_gateway_concern": {"gateway", "what"},
    "userspace_cni_spec_ready": {"kind", "name", "source"},
    "userspace_cni_spec_failures_total": {"kind"},
    "userspace_cni_socket_dead": {"bridge", "port", "namespace", "pod", "vm", "network", "interface"},
    "userspace_cni_reconcile_actions_total": {"action"},
    "userspace_cni_device_registrations_total": {"outcome"},
    "userspace_cni_device_allocations_total": {"outcome"},
    "userspace_cni_slice_writes_total": {"outcome"},
    "userspace_cni_controller_writes_total": {"resource", "outcome"},
}
"""Labels of metrics that are there without series on a node that is well."""
OPTIONAL = r"userspace_cni_(controller_ovn|route|device_bridges|dra_registered|slice_devices)\w*"
"""Metrics of what is not everywhere: OVN, Routes, devices and claims of them."""
EMPTY = {
    "Alerts that fire",
    "Calls that wait",
    "Dead sockets",
    "Devices",
    "Nodes where ADDs fail",
    "Nodes with most repairs",
    "Pods with Routes",
    "Ports that drop most",
    "Ports that their limit holds back",
    "Repairs by action",
    "Sessions with OVSDB that were lost",
    "Specs",
    "Specs not held",
    "What gateways lack",
    "Drops towards the application",
    "Drops from the application",
    "Over the limit",
    "Logical ports",
    "Services and policies",
    "Changes that ovn-northd has not taken over",
    "Seconds of the last comparison of all",
}
"""Panels without data on such a node: nothing is wrong, no frame is sent, and there is neither OVN nor a Route."""


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with defined_server() as started:
        yield started


@pytest.fixture
def controller(api: ApiServer, tmp_path: Path) -> Iterator[Process]:
    """A controller that knows a node, and has written a status."""
    for each in (ours("ProviderNetwork", "net1", defaultInterface="eth1"), node("n1"), state("n1", [spec()])):
        api.add(each)
    started = Process(api.kubeconfig(tmp_path))
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()


class TwoPods(NamedTuple):
    """A node with an agent, whose first pod may send a gigabit per second to the second."""

    node: LiveNode
    metrics: str
    """HOST:PORT of the agent's metrics."""
    send: Callable[[], bool]
    """Sends frames; whether some have arrived since."""


@pytest.fixture
def pods(live: LiveNode, sandbox: str) -> Iterator[TwoPods]:
    live.settings["USERSPACE_CNI_METRICS_LISTEN"] = metrics = f"127.0.0.1:{free_port()}"
    live.start()
    limited = live.network(runtimeConfig={"bandwidth": {"egressRate": 10**9, "egressBurst": 10**7}})
    with ExitStack() as stack:
        listeners = []
        for number, network in ((1, limited), (2, live.network())):
            succeeded(live.run("ADD", network, sandbox, container(number), f"net{number}"))
            path = row_of(live, port_of(container(number), f"net{number}"))["options"]["vhost-server-path"]
            listeners.append(stack.enter_context(FrontEndListener(path)))
        first, second = (stack.enter_context(listener.accept()) for listener in listeners)

        def send() -> bool:
            first.pairs[0].send_frames([FRAME] * 5)
            return len(second.pairs[0].receive_frames()) > 0

        yield TwoPods(live, metrics, send)


def settled(look: Callable[[], T], wanted: T) -> T:
    """What `look` finds once it is this, or at last: nothing is known of a node whose scrape takes longer than its second, as one
    may on a busy machine."""
    seen: list[T] = []

    def is_wanted() -> bool:
        seen.append(look())
        return seen[-1] == wanted

    with suppress(AssertionError):
        wait_until(is_wanted)
    return seen[-1]


def test_every_query_on_a_node_that_is_well(pods: TwoPods, sandbox: str, controller: Process, tmp_path: Path) -> None:
    """Prometheus takes each query of panels and alerts; panels have data but those of what is not there, and no alert is on."""
    live = pods.node
    targets = {"userspace-cni": (pods.metrics, "n1"), "userspace-cni-controller": (f"127.0.0.1:{controller.metrics}", "n1")}
    with scraping(tmp_path / "prometheus", targets) as prometheus:

        def has_data(query: str) -> bool:
            pods.send()
            return prometheus.query(query) != []

        wait_until(lambda: has_data('userspace_cni_verb_seconds_count{verb="ADD",stage="ovs"}'), what="a scrape")
        apart = live.network()
        apart["host"]["bridge"]["vlanId"] = 7  # no frame of the others is sent to it, which has no application
        succeeded(live.run("ADD", apart, sandbox, container(3), "net3"))
        for grown in (
            'increase(userspace_cni_verb_seconds_count{verb="ADD",stage="total"}[1m]) > 0',
            "rate(userspace_cni_port_tx_bytes_total[1m]) > 0",
            "rate(userspace_cni_controller_writes_total[1m])",
        ):
            wait_until(lambda grown=grown: has_data(grown), what=f"two scrapes with {grown}")  # type: ignore[misc]

        def without_data() -> set[str]:
            answered = [(query.title, prometheus.query(query.filled("n1"))) for query in shown_queries()]
            return {title for title, _ in answered} - {title for title, series in answered if series}

        assert settled(without_data, EMPTY) == EMPTY
        of_another = [query for query in shown_queries() if "$node" in query.expr and prometheus.query(query.filled("n2"))]
        assert of_another == []
        calm: dict[str, list[dict[str, Any]]] = {each["alert"]: [] for each in alerts()}
        assert settled(lambda: {query.title: prometheus.query(query.expr) for query in alert_queries()}, calm) == calm
        [limit] = wait_until(lambda: prometheus.query("userspace_cni_port_limit_bits_per_second"), what="the limit")
        assert (limit["metric"]["node"], limit["metric"]["interface"]) == ("n1", "net1")
        live.kill()
        wait_until(lambda: prometheus.query(f'ALERTS{{alertname="{DOWN}",alertstate="pending"}}'))
        rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"] if rule["alerts"]]
        told = [alert["annotations"]["summary"] for rule in rules for alert in rule["alerts"] if rule["name"] == DOWN]
        assert told == ["The agent on n1 does not answer"]


def test_metrics_and_labels_exist(pods: TwoPods, controller: Process) -> None:
    """Each metric and label that a panel or an alert names is in a scrape of the agent or of the controller."""
    wait_until(pods.send, what="a frame at the second pod")
    wait_until(lambda: controller.metric("controller_leader") == 1)
    known = exposed(agent.get(pods.node.socket, "/metrics")[1].decode())
    known |= exposed(controller.page(controller.metrics, "/metrics")[1])
    wrong = [*unknown_in(shown_queries(), known, SILENT), *unknown_in(alert_queries(), known, SILENT)]
    assert [each for each in wrong if not _optional(each)] == []
    assert [each for each in SILENT if each not in known] == []


def _optional(wrong: str) -> bool:
    return bool(re.search(rf"there is no metric {OPTIONAL}$", wrong))


def test_promtool_takes_the_rules() -> None:
    """The rules are valid for the Prometheus of Debian."""
    done = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case() -> None:
    """No alert is without series on which it has to fire."""
    assert {case.alert for case in FIRING} == {each["alert"] for each in alerts()}


def test_alerts_fire_for_what_they_are_for(tmp_path: Path) -> None:
    """On the series of a fault its alert fires and no other; on those of a calm node, of a restart or a rollout, none."""
    done = _tested(tmp_path, [_expected(case) for case in (*FIRING, *CALM)])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "wrong", [lambda case: {**case, "exp_samples": []}, lambda case: {**case, "eval_time": "0m"}], ids=["", "0"]
)
def test_a_wrong_case_is_noticed(tmp_path: Path, wrong: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """promtool refuses a case in which no alert is expected, or one too early."""
    expected = _expected(FIRING[0])
    expected["promql_expr_test"] = [wrong(each) for each in expected["promql_expr_test"]]
    assert _tested(tmp_path, [expected]).returncode != 0


def _expected(case: AlertCase) -> dict[str, Any]:
    labels = {"alertname": case.alert, "alertstate": "firing", "severity": case.severity, **case.labels}
    samples = [{"labels": "ALERTS{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}", "value": 1}]
    asked = {
        "expr": 'ALERTS{alertstate="firing"}',
        "eval_time": f"{case.minutes}m",
        "exp_samples": samples if case.alert else [],
    }
    return {
        "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
        "promql_expr_test": [asked],
    }


def _tested(directory: Path, tests: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    written = directory / "cases.yml"
    cases = [{"interval": "1m", **each} for each in tests]
    written.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}))
    return subprocess.run(["promtool", "test", "rules", str(written)], capture_output=True, text=True, check=False)
