"""The agent's metrics say what happened, can be scraped whatever fails, and do not grow with what callers send."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.lab.node.ports import port_with
from userspace_cni.agent.agent_metrics import AgentMetrics, outcome_of
from userspace_cni.attachment.listing import LimitedDirection, SwitchPort
from userspace_cni.attachment.port_now import NOTHING, PortNow
from userspace_cni.attachment.specs import SpecStatus
from userspace_cni.attachment.steps import PortRef
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.metrics import CONTENT_TYPE
from userspace_cni.base.stages import STAGES
from userspace_cni.pod.program_build import recorded_build

CONNECTED = {"mode": "client", "status": "connected", "features": "0x0000000950008000", "num_of_vrings": "2"}
DISCONNECTED = {"mode": "client", "status": "disconnected"}


@dataclass(frozen=True)
class Port:
    """A port as the switch knows it."""

    name: str
    interface_type: str = "dpdkvhostuserclient"
    link_state: str = "down"
    status: Mapping[str, str] = field(default_factory=lambda: DISCONNECTED)
    error: str = ""
    installed: str = ""
    now: PortNow = NOTHING
    bridge: str = "br0"


PORTS = [
    Port("br0", interface_type="internal", status={}),
    Port("a", link_state="up", status=CONNECTED),
    Port("b"),
    Port("c", interface_type="dpdkvhostuser", bridge="br1", link_state="", status={}),
    Port("d", error="could not open"),
    Port("e", interface_type="", link_state="up", status={"driver_name": "veth"}),
]


def metrics(ports: Iterable[SwitchPort] = (), gauges: Mapping[str, Callable[[], float | None]] | None = None) -> AgentMetrics:
    return AgentMetrics(lambda: ports, gauges or {})


def text_of(told: AgentMetrics) -> bytes:
    return told.render()


def read(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by name and sorted labels, as Prometheus reads them."""
    families = text_string_to_metric_families(text.decode())
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for family in families for sample in family.samples}


def value(text: bytes, name: str, **labels: str) -> float | None:
    """One sample; None when there is none."""
    return read(text).get((name, tuple(sorted(labels.items()))))


def test_calls_are_timed_by_stage_and_outcome() -> None:
    """A call's seconds are in its verb's histogram, in total and for each stage that it went through."""
    told = metrics()
    told.observe_call("ADD", 0, 0.004, {"ovs": 0.003, "record": 0.001})
    told.observe_call("ADD", 11, 30.0, {"ovs": 30.0})
    text = text_of(told)
    name = "userspace_cni_verb_seconds"
    assert value(text, f"{name}_sum", verb="ADD", stage="total", outcome="ok") == 0.004
    assert value(text, f"{name}_bucket", verb="ADD", stage="ovs", outcome="ok", le="0.005") == 1
    assert value(text, f"{name}_bucket", verb="ADD", stage="ovs", outcome="ok", le="0.0025") == 0
    assert value(text, f"{name}_count", verb="ADD", stage="total", outcome="unavailable") == 1
    assert value(text, f"{name}_count", verb="ADD", stage="ipam", outcome="ok") is None


def test_events_are_counted() -> None:
    """Reconcile's actions, new connections to OVSDB and the sizes of groups."""
    told = metrics()
    told.count_action("undo")
    told.count_action("undo")
    told.count_reconnect()
    told.observe_group(40)
    text = text_of(told)
    assert value(text, "userspace_cni_reconcile_actions_total", action="undo") == 2
    assert value(text, "userspace_cni_ovsdb_reconnects_total") == 1
    assert value(text, "userspace_cni_ovsdb_group_size_sum") == 40


def test_ports_are_counted_by_bridge_kind_and_state() -> None:
    """Ports are counted as the switch has them, with errors as a state, and a kernel device under OVS's name for it."""
    text = text_of(metrics(PORTS))
    counted = {
        (labels["bridge"], labels["kind"], labels["link_state"]): number
        for (name, pairs), number in read(text).items()
        if name == "userspace_cni_ports" and (labels := dict(pairs))
    }
    assert counted == {
        ("br0", "internal", "down"): 1,
        ("br0", "dpdkvhostuserclient", "up"): 1,
        ("br0", "dpdkvhostuserclient", "down"): 1,
        ("br0", "dpdkvhostuserclient", "error"): 1,
        ("br1", "dpdkvhostuser", "unknown"): 1,
        ("br0", "system", "up"): 1,
    }


def test_each_vhost_port_tells_of_its_application() -> None:
    """Only vhost-user ports have the series connected and negotiated."""
    text = text_of(metrics(PORTS))
    told = {
        dict(labels)["port"]: (number, value(text, "userspace_cni_vhost_negotiated", **dict(labels)))
        for (name, labels), number in read(text).items()
        if name == "userspace_cni_vhost_connected"
    }
    assert told == {"a": (1, 1), "b": (0, 0), "c": (0, 0), "d": (0, 0)}


@pytest.mark.parametrize("alive", [1, 0, None])
def test_what_a_dead_switch_said_is_not_repeated(alive: int | None) -> None:
    """While ovs-vswitchd is dead or silent no link counts as up or down, and no application as connected or not."""
    text = text_of(metrics(PORTS, gauges={"vswitchd_alive": lambda: alive}))
    states = {dict(labels)["link_state"] for (name, labels) in read(text) if name == "userspace_cni_ports"}
    assert (states == {"unknown"}) == (alive == 0)
    assert (b"userspace_cni_vhost_connected{" in text) == (b"userspace_cni_vhost_negotiated{" in text) == (alive != 0)
    assert sum(number for (name, _), number in read(text).items() if name == "userspace_cni_ports") == len(PORTS)


@dataclass(frozen=True)
class Traffic:
    """What the switch counted at a port."""

    name: str
    marks: Mapping[str, str]
    statistics: Mapping[str, int]


MARKS = {
    "owner": "userspace-cni",
    "container-id": "c0ffee",
    "network": "net",
    "ifname": "pod37a8eec1ce1",
    "pod-namespace": "ns",
    "pod-name": "virt-launcher-vm-1-abcde",
    "vm-name": "vm-1",
}
LABELS = {
    "bridge": "br0",
    "port": "a",
    "namespace": "ns",
    "pod": "virt-launcher-vm-1-abcde",
    "vm": "vm-1",
    "network": "net",
    "interface": "pod37a8eec1ce1",
}


def test_traffic_of_attachments() -> None:
    """What the switch counts is a counter by direction and kind, labelled with pod and VM; what it does not count is missing."""
    counted = [
        Traffic("a", MARKS, {"rx_packets": 7, "tx_bytes": 2**60, "rx_dropped": 0, "ovs_tx_retries": 3}),
        Traffic("b", {"container-id": "c", "network": "net", "ifname": "net1"}, {"rx_packets": 8}),
    ]
    text = text_of(AgentMetrics(lambda: PORTS, {}, lambda: counted))
    assert value(text, "userspace_cni_port_rx_packets_total", **LABELS) == 7
    assert value(text, "userspace_cni_port_tx_bytes_total", **LABELS) == 2**60
    assert value(text, "userspace_cni_port_rx_dropped_total", **LABELS) == 0
    unnamed = {**LABELS, "port": "b", "namespace": "", "pod": "", "vm": "", "interface": "net1"}
    assert value(text, "userspace_cni_port_rx_packets_total", **unnamed) == 8
    names = {name for name, _ in read(text) if name.startswith("userspace_cni_port_")}
    assert names == {f"userspace_cni_port_{each}_total" for each in ("rx_packets", "tx_bytes", "rx_dropped")}
    assert b"HELP userspace_cni_port_rx_packets_total Packets that the switch received from the application, by port" in text


def test_dead_sockets_are_named() -> None:
    """A port whose socket is dead has a series with pod and VM; a living one has none."""
    dead = [PortRef("a", "br0", marks=MARKS)]
    told = AgentMetrics(lambda: PORTS, {}, dead=lambda: dead)
    assert value(text_of(told), "userspace_cni_socket_dead", **LABELS) == 1
    dead.clear()
    assert not [name for name, _ in read(text_of(told)) if name == "userspace_cni_socket_dead"]


def test_limits_by_direction() -> None:
    """A limited direction has its rate and its drops, in the pod's terms; an unknown one is missing."""
    port = port_with(name="a", bridge="br0", interface_type="dpdkvhostuserclient", server_path="/s", marks=MARKS)
    limits = [LimitedDirection("k", port, "to_pod", 10_000_000, 7), LimitedDirection("k", port, "from_pod", 5_000, None)]
    text = text_of(AgentMetrics(lambda: PORTS, {}, limits=lambda: limits))
    assert value(text, "userspace_cni_port_limit_bits_per_second", **LABELS, direction="to_pod") == 10_000_000
    assert value(text, "userspace_cni_port_limit_bits_per_second", **LABELS, direction="from_pod") == 5_000
    assert value(text, "userspace_cni_port_limit_drops_total", **LABELS, direction="to_pod") == 7
    assert value(text, "userspace_cni_port_limit_drops_total", **LABELS, direction="from_pod") is None


def test_what_the_node_is_to_have() -> None:
    """A spec has a series that is 1 while it is met; each lack of a gateway has one while it lasts."""
    held = SpecStatus("gateway", "br0-gw", "settings", "", "", ())
    specs = [held, SpecStatus("translation", "all", "settings", "", "no nft", ())]
    lacks = [("br0-gw", "net.ipv4.ip_forward")]
    told = metrics()
    told.show_specs(lambda: specs, lambda: lacks)
    text = text_of(told)
    ready = {labels: each for (name, labels), each in read(text).items() if name == "userspace_cni_spec_ready"}
    assert ready == {
        (("kind", "gateway"), ("name", "br0-gw"), ("source", "settings")): 1,
        (("kind", "translation"), ("name", "all"), ("source", "settings")): 0,
    }
    assert value(text, "userspace_cni_gateway_concern", gateway="br0-gw", what="net.ipv4.ip_forward") == 1
    lacks.clear()
    assert b"userspace_cni_gateway_concern{" not in text_of(told)


def test_a_port_that_is_given_to_another() -> None:
    """The labels of a port's series are its present marks and bridge, whatever they were at the last scrape."""
    counted, ports = [Traffic("a", MARKS, {"rx_packets": 7})], PORTS
    told = AgentMetrics(lambda: ports, {}, lambda: counted)
    assert value(text_of(told), "userspace_cni_port_rx_packets_total", **LABELS) == 7
    assert value(text_of(told), "userspace_cni_port_rx_packets_total", **LABELS) == 7
    counted[:] = [Traffic("a", {**MARKS, "pod-name": "another"}, {"rx_packets": 1})]
    assert value(text_of(told), "userspace_cni_port_rx_packets_total", **LABELS | {"pod": "another"}) == 1
    ports = [Port("a", bridge="br1")]
    assert value(text_of(told), "userspace_cni_port_rx_packets_total", **LABELS | {"pod": "another", "bridge": "br1"}) == 1


def test_traffic_of_others_is_left_out() -> None:
    """Ports of a test and ports that the switch does not know any more make no series."""
    counted = [Traffic("b", {"run": "1-2"}, {"rx_packets": 1}), Traffic("gone", MARKS, {"rx_packets": 1})]
    assert b"\nuserspace_cni_port_" not in text_of(AgentMetrics(lambda: PORTS, {}, lambda: counted))


def test_traffic_is_not_asked_of_a_switch_that_is_away() -> None:
    """Without ports the database is not asked; a failing database only leaves out the counters."""
    asked = []

    def away() -> list[Traffic]:
        asked.append(1)
        raise Unavailable("OVSDB is away")

    assert b"userspace_cni_build_info" in text_of(AgentMetrics(list, {}, away))
    assert asked == []
    text = text_of(AgentMetrics(lambda: PORTS, {}, away))
    assert asked == [1]
    assert b"userspace_cni_vhost_connected" in text
    assert b"userspace_cni_port_rx" not in text


OF_THE_SWITCH = ("ports", "vhost_connected", "vhost_negotiated", "port_rx_packets_total", "port_tx_errors_total")
OF_THE_NODE = ("socket_dead", "port_limit_bits_per_second", "port_limit_drops_total", "spec_ready", "gateway_concern")


def test_nothing_to_tell_is_not_unknown() -> None:
    """A metric with nothing to report is there without series; one that cannot be read is not there."""

    def away() -> list[Any]:
        raise Unavailable("the switch is away")

    for look, is_there in ((list, True), (away, False)):
        metrics = AgentMetrics(look, {}, look, look, look)
        metrics.show_specs(look, look)
        text = text_of(metrics).decode()
        for name in (*OF_THE_SWITCH, *OF_THE_NODE):
            assert (f"# TYPE userspace_cni_{name} " in text) == is_there, name
            assert f"\nuserspace_cni_{name}" not in text


def test_a_names_characters_do_not_break_the_text() -> None:
    """A port whose name has quotes and newlines is one sample."""
    name = 'a"b\\c\nd{}'
    assert value(text_of(metrics([Port(name)])), "userspace_cni_vhost_connected", bridge="br0", port=name) == 0


def test_numbers_of_the_moment() -> None:
    """The spool and the threads are read at each scrape, and not before the first one."""
    spool: list[str] = []
    told = metrics(gauges={"spool_entries": lambda: len(spool)})
    assert value(text_of(told), "userspace_cni_spool_entries") == 0
    spool.append("entry")
    assert value(text_of(told), "userspace_cni_spool_entries") == 1


def test_the_process_and_the_build_are_described() -> None:
    """Memory, descriptors and version are there for alerts."""
    text = text_of(metrics())
    assert (value(text, "process_resident_memory_bytes") or 0) > 0
    assert (value(text, "process_open_fds") or 0) > 0
    [labelled] = [dict(of) for (name, of), number in read(text).items() if name == "userspace_cni_build_info" and number == 1]
    build = recorded_build()
    assert (labelled["version"], labelled["commit"]) == (build.version, "unknown")
    assert labelled.keys() == {"version", "commit", "python", "architecture"}


def test_a_scrape_survives_what_it_asks(capfd: pytest.CaptureFixture[str]) -> None:
    """While the switch is away the other numbers are there; that is logged once, and again after it has worked."""
    away = True

    def ports() -> list[SwitchPort]:
        if away:
            raise Unavailable("OVSDB is away")
        return [Port("a")]

    told = AgentMetrics(ports, {"spool_entries": lambda: 1 // 0, "workers_busy": lambda: 0})
    for _ in range(3):
        text = text_of(told)
        assert value(text, "userspace_cni_spool_entries") is None
        assert value(text, "userspace_cni_workers_busy") == 0
        assert b"userspace_cni_ports" not in text
    assert capfd.readouterr().err.count("OVSDB is away") == 1
    away = False
    assert b"userspace_cni_ports{" in text_of(told)
    away = True
    text_of(told)
    assert "OVSDB is away" in capfd.readouterr().err


def test_callers_add_no_series_without_end() -> None:
    """Labels of verbs and codes are from fixed lists, whatever callers send."""
    told = metrics()
    for number in range(300):
        told.observe_call(f"VERB{number}", number, 0.1, {"ovs": 0.1})
    counts = [dict(labels) for name, labels in read(text_of(told)) if name == "userspace_cni_verb_seconds_count"]
    assert {labels["verb"] for labels in counts} == {"other"}
    assert {labels["stage"] for labels in counts} == {"total", "ovs"} <= {"total", *STAGES}
    assert len({labels["outcome"] for labels in counts}) == 8


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (0, "ok"),
        (1, "input"),
        (3, "gone"),
        (8, "input"),
        (11, "unavailable"),
        (50, "not_serving"),
        (100, "step"),
        (110, "step"),
        (111, "protocol"),
        (999, "bug"),
        (4711, "delegate"),
        (9, "delegate"),
    ],
)
def test_outcomes_are_classes_of_codes(code: int, outcome: str) -> None:
    """Each CNI code is in one class."""
    assert outcome_of(code) == outcome


def test_the_content_type_is_that_of_the_text() -> None:
    """Prometheus is told the format that it gets."""
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")
