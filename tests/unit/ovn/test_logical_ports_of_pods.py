"""The logical ports that pods are to have, their rows and their pods' annotations, as one state that converges."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from userspace_cni.ovn.cluster_pods import LABELS_MAX, ClusterPod, LogicalNetwork, keep_network, keep_node, keep_pod
from userspace_cni.ovn.logical_switches import FoundSwitch, read_subnets
from userspace_cni.ovn.pod_ports import LogicalFacts, PodPorts, Settled
from userspace_cni.ovn.port_rows import FoundLogicalPort
from userspace_cni.ovn.port_rules import PortRules
from userspace_cni.ovsdb.columns import Columns

DEFAULT = LogicalNetwork("net")
RULES = PortRules("ovn-kubernetes", DEFAULT)
FREE = replace(RULES, may_send=lambda *_: True)
"""Ports may be without port security."""
CLOSED = "02:00:00:00:00:00 192.0.0.8"
NODES = {name: keep_node({"metadata": {"name": name}}) for name in ("n1", "n2")}
SWITCHES = {
    name: read_subnets(FoundSwitch(name, {"subnet": f"192.168.{number}.0/24"}, {})) for number, name in enumerate(("n1", "n2"), 1)
}


def a_pod(name: str = "app", node: str = "n1", uid: str = "", **more: Any) -> dict[str, Any]:
    """A Pod as the server sends it. `more`: its annotations."""
    return {
        "metadata": {
            "namespace": "default",
            "name": name,
            "uid": uid or f"uid-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {key.replace("__", "/"): value for key, value in more.items()},
        },
        "spec": {"nodeName": node},
        "status": {"phase": "Running"},
    }


class World:
    """Pods of an API server and rows of a database, between which `PodPorts` stands; what it says is done at once."""

    def __init__(self, rules: PortRules = RULES, facts: LogicalFacts | None = None) -> None:
        self.facts = facts or LogicalFacts(NODES, {}, SWITCHES)
        self.rules = rules
        self.raw: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, FoundLogicalPort] = {}
        self.now = 0.0
        self.restart()

    def restart(self) -> None:
        """A controller that knows nothing but what is in server and database."""
        self.ports = PodPorts(self.rules)
        self.changed: set[str] = set()
        self.known: set[str] = set()

    def add(self, *pods: dict[str, Any]) -> None:
        self.raw |= {f"{each['metadata']['namespace']}/{each['metadata']['name']}": each for each in pods}

    def pods(self) -> dict[str, ClusterPod]:
        return {key: keep_pod(each) for key, each in self.raw.items()}

    def settle(self) -> Settled:
        """Do what is to be done once, for all pods and rows; what it was."""
        self.ports.take_facts(self.facts)
        pods = self.pods()
        self.ports.take_pods(pods, {*pods, *self.known}, self.rows)
        self.known = set(pods)
        return self.do({*self.ports.names, *self.rows, *self.changed})

    def do(self, names: set[str]) -> Settled:
        """Do what is to be done for these ports."""
        settled = self.ports.settle(names, self.rows, self.now)
        self.changed = {change.name for change in settled.changes}
        for change in settled.changes:
            if change.kind == "delete":
                del self.rows[change.name]
            else:
                self.rows[change.name] = written(self.rows.get(change.name), change.name, change.columns)
        for note in settled.notes:
            self.raw[f"{note.namespace}/{note.name}"]["metadata"]["annotations"] |= note.annotations
        return settled

    def settled(self) -> Settled:
        """As `settle`; and the next time there is nothing more to do."""
        first = self.settle()
        again = self.settle()
        assert (again.changes, again.notes) == ([], [])
        return first

    def note(self, name: str = "app") -> dict[str, Any]:
        """The annotation of OVN's tools in the pod."""
        said: dict[str, Any] = json.loads(self.raw[f"default/{name}"]["metadata"]["annotations"]["ovn"])
        return said


def written(former: FoundLogicalPort | None, name: str, columns: Columns) -> FoundLogicalPort:
    """The row after a change."""
    row = former or FoundLogicalPort(name)
    changed: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in columns.items()}
    return replace(row, **{key: value for key, value in changed.items() if key != "name"})


def a_network(**ovn: Any) -> Mapping[str, Any]:
    """A definition of a network with logical ports."""
    top: dict[str, Any] = {key: ovn.pop(key) for key in ("addresses", "ADDRESSES", "ipam") if key in ovn}
    config = {"cniVersion": "1.0.0", "name": "red", "type": "userspace", "ovn": ovn, **top}
    return {"metadata": {"name": "red-nad", "namespace": "default"}, "spec": {"config": json.dumps(config)}}


def test_a_pod_gets_its_row_then_its_annotation() -> None:
    """With the first address, a MAC that follows from it, and who may bind and send."""
    world = World()
    world.add(a_pod())
    world.settled()
    row = world.rows["default_app"]
    assert row.addresses == row.port_security == ("0a:58:c0:a8:01:03 192.168.1.3",)
    assert row.options == {"iface-id-ver": "uid-app", "requested-chassis": "n1"}
    assert row.external_ids["namespace"] == "default"
    assert row.external_ids["pod"] == "true"
    assert (row.switch, row.is_ours) == ("n1", True)
    assert world.note() == {"ip_address": "192.168.1.3/24", "mac_address": "0a:58:c0:a8:01:03", "gateway_ip": "192.168.1.1"}


def test_both_families() -> None:
    """The annotation has lists; the port may send from its own address of the link, too."""
    subnets = read_subnets(FoundSwitch("n1", {"subnet": "192.168.1.0/24", "ipv6_prefix": "fd00:1::/64"}, {}))
    world = World(facts=LogicalFacts(NODES, {}, {"n1": subnets}))
    world.add(a_pod())
    world.settled()
    assert world.note()["ip_address"] == ["192.168.1.3/24", "fd00:1::3/64"]
    assert world.note()["gateway_ip"] == ["192.168.1.1", "fd00:1::1"]
    assert world.rows["default_app"].port_security == ("0a:58:c0:a8:01:03 192.168.1.3 fd00:1::3 fe80::/64",)


@pytest.mark.parametrize(
    "change", [{"spec": {}}, {"spec": {"nodeName": "n1", "hostNetwork": True}}, {"status": {"phase": "Failed"}}]
)
def test_pods_without_a_network_of_their_own_get_nothing(change: dict[str, Any]) -> None:
    """Those that are not on a node yet, those in the node's network, and those that have ended."""
    world = World()
    world.add({**a_pod(), **change})
    assert world.settled() == Settled()


def test_an_ended_pods_row_goes_and_its_address_is_held() -> None:
    """Another pod gets the next address, and a minute later the first."""
    world = World()
    world.add(a_pod())
    world.settled()
    world.raw["default/app"]["status"]["phase"] = "Succeeded"
    world.settle()
    assert world.rows == {}
    world.add(a_pod("other"))
    world.settled()
    assert world.note("other")["ip_address"] == "192.168.1.4/24"
    world.now = 61.0
    world.add(a_pod("third"))
    world.settled()
    assert world.note("third")["ip_address"] == "192.168.1.3/24"


def test_a_pod_of_the_same_name_is_another_one() -> None:
    """Its row has the new UID and a new address, at no moment the old pod's."""
    world = World()
    world.add(a_pod())
    world.settled()
    world.add(a_pod(uid="second"))
    world.settled()
    assert world.rows["default_app"].options["iface-id-ver"] == "second"
    assert world.note()["ip_address"] == "192.168.1.4/24"


def test_a_lost_database_is_rebuilt_with_the_same_addresses() -> None:
    """From the annotations alone, by a controller that has just started, whatever the order of names."""
    world = World()
    world.add(*(a_pod(f"p{number}") for number in (3, 1, 2)))
    world.settled()
    world.add(a_pod("a0"))
    world.settled()
    before, notes = dict(world.rows), {name: world.note(name) for name in ("p1", "p2", "p3", "a0")}
    world.rows = {}
    world.restart()
    world.settled()
    assert world.rows == before
    assert {name: world.note(name) for name in notes} == notes


def test_a_death_between_row_and_annotation_is_finished() -> None:
    """The annotation says what the row has, though another address is the first free one by now."""
    world = World()
    world.add(a_pod("first"), a_pod("second"))
    world.settled()
    del world.raw["default/first"], world.rows["default_first"], world.raw["default/second"]["metadata"]["annotations"]["ovn"]
    world.restart()
    settled = world.settled()
    assert settled.changes == []
    assert world.note("second")["ip_address"] == "192.168.1.4/24"


def test_a_full_comparison_writes_nothing() -> None:
    """A controller that starts over rows and annotations that are as they should be."""
    world = World()
    world.add(*(a_pod(f"p{number}", f"n{number % 2 + 1}") for number in range(50)))
    world.settled()
    world.restart()
    assert world.settled() == Settled()


@pytest.mark.parametrize(
    "said",
    [
        '{"ip_address": "192.168.1.1/24"}',
        '{"ip_address": "192.168.1.2/24"}',
        '{"ip_address": "192.168.2.9/24"}',
        '{"ip_address": "192.168.1.3/24"}',
        '{"ip_address": "10.0.0.3"}',
        "nonsense",
        '{"ip_address": {}}',
        '{"ip_address": ["192.168.1.8/24", "192.168.1.9/24"]}',
        "x" * 40_000,
    ],
)
def test_an_annotation_takes_no_address_from_others(said: str) -> None:
    """The router's, the node's, another node's, another pod's, none at all: its author gets a free one, the owner keeps his."""
    world = World()
    world.add(a_pod("owner"))
    world.settled()
    world.add(a_pod("app", ovn=said))
    world.restart()
    world.settled()
    assert world.note("owner")["ip_address"] == "192.168.1.3/24"
    assert world.note("app")["ip_address"] == "192.168.1.4/24"


def test_an_older_pods_annotation_takes_no_living_pods_address() -> None:
    """Not while no controller acts, either: the next one believes those first whose rows say the same."""
    world = World()
    world.add(a_pod("evil"))
    world.settled()
    younger = a_pod("owner")
    younger["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    world.add(younger)
    world.settled()
    rows = dict(world.rows)
    world.raw["default/evil"]["metadata"]["annotations"]["ovn"] = younger["metadata"]["annotations"]["ovn"]
    world.restart()
    world.settled()
    assert world.rows == rows
    assert (world.note("evil")["ip_address"], world.note("owner")["ip_address"]) == ("192.168.1.3/24", "192.168.1.4/24")


def test_an_ended_pods_annotation_takes_no_living_pods_address() -> None:
    """The next controller that acts holds what ended pods had, and of that nothing that a living one has."""
    world = World()
    world.add(a_pod("owner"))
    world.settled()
    rows = dict(world.rows)
    world.restart()
    world.ports.take_facts(world.facts)
    world.ports.hold(keep_pod(a_pod("evil", ovn='{"ip_address": "192.168.1.3/24"}')), 0.0)
    world.ports.hold(keep_pod(a_pod("former", ovn='{"ip_address": "192.168.1.4/24"}')), 0.0)
    world.settled()
    assert world.rows == rows
    world.add(a_pod("next"))
    world.settled()
    assert world.note("next")["ip_address"] == "192.168.1.5/24"


def test_an_annotation_may_choose_a_free_address() -> None:
    """With its MAC, as users of the old tools wrote it by hand."""
    world = World()
    world.add(a_pod(ovn='{"ip_address": "192.168.1.77/24", "mac_address": "02:00:00:00:00:77", "gateway_ip": "192.168.1.1"}'))
    world.settled()
    assert world.rows["default_app"].addresses == ("02:00:00:00:00:77 192.168.1.77",)


def test_the_annotation_of_the_old_tools_is_read() -> None:
    """Which wrote it as Python shows a dict."""
    world = World()
    old = "{'ip_address': '192.168.1.9/24', 'mac_address': '0a:00:00:00:00:09', 'gateway_ip': '192.168.1.1'}"
    world.add(a_pod(ovn=old))
    assert world.settled().notes == []
    assert world.rows["default_app"].addresses == ("0a:00:00:00:00:09 192.168.1.9",)


def test_what_others_have_in_the_database_is_taken() -> None:
    """Addresses of ports by hand, in whatever column OVN has them, and of routers."""
    world = World(facts=LogicalFacts(NODES, {}, SWITCHES, {"rtos": subnets_first("192.168.1.4")}))
    world.rows = {
        "hand": FoundLogicalPort("hand", ("0a:00:00:00:00:01 192.168.1.3",)),
        "dyn": FoundLogicalPort("dyn", ("dynamic",), dynamic="0a:1 192.168.1.5"),
    }
    world.add(a_pod())
    world.settled()
    assert world.note()["ip_address"] == "192.168.1.6/24"
    assert set(world.rows) == {"hand", "dyn", "default_app"}


def subnets_first(*texts: str) -> tuple[Any, ...]:
    from ipaddress import ip_address

    return tuple(map(ip_address, texts))


def test_a_port_of_our_name_that_is_not_ours_stays() -> None:
    """It is told, until the administrator has it adopted."""
    world = World()
    world.rows = {"default_app": FoundLogicalPort("default_app", ("dynamic",), external_ids={"pod": "true"})}
    world.add(a_pod())
    settled = world.settled()
    assert "not ours" in settled.lacking["default_app"]
    assert not world.rows["default_app"].is_ours
    world.rules = replace(RULES, adopts=True)
    world.restart()
    world.settled()
    assert world.rows["default_app"].is_ours


def test_without_its_switch_a_pod_waits() -> None:
    """And says so; it gets its port when the switch is there."""
    world = World(facts=LogicalFacts(NODES, {}, {}))
    world.add(a_pod())
    assert world.settled().lacking == {"default_app": "there is no logical switch 'n1'"}
    world.facts = LogicalFacts(NODES, {}, SWITCHES)
    world.settled()
    assert world.note()["ip_address"] == "192.168.1.3/24"


def test_keys_that_others_wrote_into_our_row_stay() -> None:
    """What is ours there is put back."""
    world = World()
    world.add(a_pod())
    world.settled()
    row = world.rows["default_app"]
    theirs = {**row.options, "qos": "1", "requested-chassis": "elsewhere"}
    world.rows["default_app"] = replace(row, options=theirs, external_ids={**row.external_ids, "theirs": "x"})
    world.settled()
    assert world.rows["default_app"].options == {**row.options, "qos": "1"}
    assert world.rows["default_app"].external_ids["theirs"] == "x"


def test_the_ports_of_several_networks() -> None:
    """The first is called after the pod, the next after its interface, too; each has its annotation."""
    networks = {"default/red-nad": keep_network(a_network())}
    world = World(facts=LogicalFacts(NODES, networks, SWITCHES))
    world.add(a_pod())
    world.raw["default/app"]["metadata"]["annotations"] = {"k8s.v1.cni.cncf.io/networks": "plain, red-nad@eth7"}
    world.settled()
    assert set(world.rows) == {"default_app", "default_app_eth7"}
    said = json.loads(world.raw["default/app"]["metadata"]["annotations"]["k8s.ovn.org/pod-networks"])
    assert said["default/red/eth7"]["ip_address"] == "192.168.1.4/24"
    world.rules = replace(RULES, default=None)
    world.raw["default/app"]["metadata"]["annotations"] = {"k8s.v1.cni.cncf.io/networks": "plain, red-nad@eth7"}
    world.rows = {}
    world.restart()
    world.settled()
    assert set(world.rows) == {"default_app"}


@pytest.mark.parametrize(
    "said", [{"name": "x" * 60_000}, {"name": "\ud800"}, {"name": ["red"]}, {"ovn": {"switch": "x" * 60_000}}]
)
def test_a_network_of_a_name_that_cannot_be_has_no_ports(said: dict[str, Any]) -> None:
    """The name of network or switch is in rows, annotations and messages of each of its ports, however many there are."""
    config = {"name": "red", "type": "userspace", "ovn": {}, **said}
    thing = {"metadata": {"name": "red-nad", "namespace": "default"}, "spec": {"config": json.dumps(config)}}
    assert keep_network(thing) is None


def test_a_network_of_the_first_tools_has_ports() -> None:
    """Of the node's own switch, with addresses in the annotation: its ipam is not asked."""
    config = {"name": "net", "type": "ovn_cni", "bridge": "br-int", "ipam": {"type": "host-local"}}
    thing = {"metadata": {"name": "then", "namespace": "default"}, "spec": {"config": json.dumps(config)}}
    assert keep_network(thing) == LogicalNetwork("net")


def test_a_pods_version_is_bounded() -> None:
    """Its author writes the annotation of a static pod."""
    pod = a_pod()
    pod["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x" * 200_000}
    assert len(keep_pod(pod).owner_uid) < 1000


def test_kube_ovns_names() -> None:
    """The first port is that of eth0, a further one is called after its network."""
    networks = {"default/red-nad": keep_network(a_network())}
    world = World(replace(RULES, naming="kube-ovn"), LogicalFacts(NODES, networks, SWITCHES))
    world.add(a_pod())
    world.raw["default/app"]["metadata"]["annotations"] = {"k8s.v1.cni.cncf.io/networks": "red-nad"}
    world.settled()
    assert set(world.rows) == {"app.default", "app.default.red.default.ovn"}


@pytest.mark.parametrize(
    ("ovn", "addresses", "security"),
    [
        ({"addresses": "unknown"}, ("unknown",), ()),
        ({"ADDRESSES": "unknown"}, ("unknown",), ()),
        ({"ipam": {"type": "host-local"}}, ("02:00:00:00:00:05 10.9.0.5",), ("02:00:00:00:00:05 10.9.0.5",)),
        ({"portSecurity": False}, ("0a:58:c0:a8:01:03 192.168.1.3",), ()),
        ({"PORTSECURITY": False}, ("0a:58:c0:a8:01:03 192.168.1.3",), ()),
    ],
)
def test_where_addresses_are_from(ovn: dict[str, Any], addresses: tuple[str, ...], security: tuple[str, ...]) -> None:
    """From the annotations, from what the IPAM plugin leased as Multus notes it, or from nowhere."""
    world = World(replace(FREE, default=None), LogicalFacts(NODES, {"default/red-nad": keep_network(a_network(**ovn))}, SWITCHES))
    status = [{"name": "default/red-nad", "interface": "net1", "ips": ["10.9.0.5"], "mac": "02:00:00:00:00:05"}]
    world.add(a_pod())
    world.raw["default/app"]["metadata"]["annotations"] = {
        "k8s.v1.cni.cncf.io/networks": '[{"name": "red-nad"}]',
        "k8s.v1.cni.cncf.io/network-status": json.dumps(status),
    }
    world.settled()
    row = world.rows["default_app"]
    assert (row.addresses, row.port_security) == (addresses, security)


@pytest.mark.parametrize("ovn", [{"addresses": "unknown"}, {"portSecurity": False}, {"PortSecurity": False}])
def test_only_a_rule_gives_a_port_without_port_security(ovn: dict[str, Any]) -> None:
    """A definition's author gets no such port, and a pod's port stays as it is when its network asks for it later."""
    before, after = ({"default/red-nad": keep_network(a_network(**each))} for each in ({}, ovn))
    world = World(replace(RULES, default=None), LogicalFacts(NODES, before, SWITCHES))
    world.add(a_pod(**{"k8s.v1.cni.cncf.io__networks": "red-nad"}))
    world.settled()
    secured = world.rows["default_app"]
    assert secured.port_security
    world.facts = LogicalFacts(NODES, after, SWITCHES)
    assert "send from any address" in world.settled().lacking["default_app"]
    assert world.rows["default_app"] == secured
    world.rows.clear()
    world.restart()
    world.settled()
    assert world.rows == {}


def test_a_pod_has_a_bounded_number_of_labels() -> None:
    """One with more gets no port: policies could not be judged by what is kept of it."""
    world, pod = World(), a_pod()
    pod["metadata"]["labels"] = dict.fromkeys(map(str, range(9999)), "")
    assert len(keep_pod(pod).labels) == LABELS_MAX + 1
    world.add(pod)
    assert world.settled().lacking == {"default_app": "pod default/app has more than 512 labels"}
    pod["metadata"]["labels"] = dict.fromkeys(map(str, range(LABELS_MAX)), "")
    assert world.settled().lacking == {}


def test_a_pod_has_a_bounded_number_of_ports() -> None:
    """It empties no small subnet; what is beyond is told to the pod, and a port that it has stays when the bound falls."""
    networks = ",".join(["red-nad"] * 40)
    world = World(replace(RULES, most=3), LogicalFacts(NODES, {"default/red-nad": keep_network(a_network())}, SWITCHES))
    world.add(a_pod(**{"k8s.v1.cni.cncf.io__networks": networks}))
    settled = world.settled()
    assert set(world.rows) == {"default_app", "default_app_net1", "default_app_net2"}
    assert (len(settled.lacking), world.ports.list_recipients("default_app_net3")[0].interface) == (38, "net3")
    assert "pod default/app has more than 3 logical ports (setting ovn_pod_ports)" in settled.lacking["default_app_net3"]
    rows = dict(world.rows)
    world.rules = replace(RULES, most=1)
    world.restart()
    world.settled()
    assert world.rows == rows


def test_a_lease_that_is_not_known_opens_no_port() -> None:
    """A pod's author can remove what Multus notes: then the port sends nothing, unless a rule lets it send from anywhere."""
    world = World(facts=LogicalFacts(NODES, LEASES, SWITCHES))
    pod = leased("app", "10.9.0.5")
    del pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"]
    world.add(pod)
    world.settled()
    assert (world.rows["default_app"].addresses, world.rows["default_app"].port_security) == ((), (CLOSED,))
    world.rules = FREE
    world.restart()
    world.settled()
    assert (world.rows["default_app"].addresses, world.rows["default_app"].port_security) == (("unknown",), ())


@pytest.mark.parametrize(
    "keys",
    [
        {"ovn": {"portSecurty": False}},
        {"ovn": {"switch": "a"}, "OVN": {}},
        {"ovn": {}, "host": {"bridge": {"vlanId": 5}}},
        {"ovn": {}, "addresses": "unknown", "ipam": {"type": "host-local"}},
        {"ovn": {}, "ipam": {"type": 7}},
        {"ovn": []},
        {"type": "bridge", "ovn": {}},
    ],
)
def test_what_the_plugin_refuses_has_no_port(keys: dict[str, Any]) -> None:
    """The controller reads a definition as ADD does: no address goes to a pod that cannot be attached."""
    config = {"name": "red", "type": "userspace", **keys}
    assert keep_network({"metadata": {"name": "red-nad"}, "spec": {"config": json.dumps(config)}}) is None


def test_keys_match_in_any_case() -> None:
    """As for the plugin."""
    config = {"name": "red", "type": "userspace", "OVN": {"Switch": "dmz", "requestedchassis": False}, "Addresses": "annotations"}
    found = keep_network({"metadata": {"name": "red-nad"}, "spec": {"config": json.dumps(config)}})
    assert found == LogicalNetwork("red", "dmz", requested_chassis=False)


@pytest.mark.parametrize("spec", [None, {}, {"config": ""}, {"config": None}, {"config": 7}, {"config": "[]"}, {"config": "{"}])
def test_a_definition_without_a_config(spec: object) -> None:
    """Multus takes its config from a file on the node, which the controller does not see: its pods get no logical port."""
    assert keep_network({"metadata": {"name": "red-nad"}, "spec": spec}) is None


LEASES = {"default/red-nad": keep_network(a_network(ipam={"type": "host-local"}))}


def leased(name: str, *ips: str, mac: str = "02:00:00:00:00:05") -> dict[str, Any]:
    """A pod whose network-status says this lease: Multus has written it, or the pod's author."""
    pod = a_pod(name)
    pod["metadata"]["annotations"] = {
        "k8s.v1.cni.cncf.io/networks": "red-nad",
        "v1.multus-cni.io/default-network": "red-nad",
        "k8s.v1.cni.cncf.io/network-status": json.dumps([{"interface": "eth0", "ips": ips, "mac": mac}]),
    }
    return pod


@pytest.mark.parametrize(
    ("ip", "mac"),
    [
        ("192.168.1.1", "02:00:00:00:00:05"),
        ("192.168.1.3", "02:00:00:00:00:05"),
        ("192.168.1.9", "0a:58:c0:a8:01:03"),
        ("192.168.1.9", "0a:58:c0:a8:01:01"),
    ],
)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_lease_takes_nothing_from_others(ip: str, mac: str, restarted: bool) -> None:
    """A pod's author can write what Multus notes: the router's address or MAC, another pod's; also for the next controller."""
    router = {"rtos-n1": subnets_first("192.168.1.1")}
    world = World(facts=LogicalFacts(NODES, LEASES, SWITCHES, router, macs={"rtos-n1": "0a:58:c0:a8:01:01"}))
    evil = leased("evil", "10.9.0.5")
    owner = a_pod("owner")
    owner["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    world.add(evil, owner)
    world.settled()
    rows = dict(world.rows)
    assert rows["default_evil"].addresses == ("02:00:00:00:00:05 10.9.0.5",)
    world.add(leased("evil", ip, mac=mac))
    if restarted:
        world.restart()
    world.settled()
    assert world.rows == rows


@pytest.mark.parametrize(
    "text", ['{"x": NaN}', '{"x": 1e999}', '{"x": "\\ud800"}', f'{{"x": {"[" * 200}{"]" * 200}}}', "[]", "{"]
)
def test_an_annotation_that_cannot_be_read_is_written_anew(text: str) -> None:
    """What its author has in it of other networks would keep the plugin from reading ours, and the note from ever being there."""
    world = World(facts=LogicalFacts(NODES, {"default/red-nad": keep_network(a_network())}, SWITCHES))
    world.add(a_pod(**{"k8s.v1.cni.cncf.io__networks": "red-nad", "k8s.ovn.org__pod-networks": text}))
    world.settled()
    said = json.loads(world.raw["default/app"]["metadata"]["annotations"]["k8s.ovn.org/pod-networks"])
    assert list(said) == ["default/red/net1"]


@pytest.mark.parametrize("ips", [["192.168.2.9"], ["10.9.0.5", "192.168.2.9"], ["192.168.1.8", "192.168.1.9"]])
def test_a_lease_takes_no_addresses_of_other_nodes(ips: list[str]) -> None:
    """Nor several of its own: what Multus notes is bounded by its size alone, and its author could empty a node's subnet."""
    world = World(facts=LogicalFacts(NODES, LEASES, SWITCHES))
    world.add(leased("evil", *ips))
    assert "another switch's" in world.settled().lacking["default_evil"]
    assert "default_evil" not in world.rows
    world.add(leased("evil", ips[0]), leased("both", "192.168.1.7", "10.9.0.6", "10.9.0.7", mac="02:00:00:00:00:07"))
    world.settled()
    assert world.rows["default_both"].addresses == ("02:00:00:00:00:07 192.168.1.7 10.9.0.6 10.9.0.7",)


@pytest.mark.parametrize("ip", ["169.254.169.5", "fd69::5", "fd69:0::0:5", "255.255.255.255", "0.0.0.0", "ff02::1", "fe80::1%x"])
def test_a_lease_takes_no_address_that_is_no_pods(ip: str) -> None:
    """From the first two a pod gets what it has sent to itself by a Service: no policy drops what comes from there."""
    world = World(facts=LogicalFacts(NODES, LEASES, SWITCHES))
    world.add(leased("evil", "10.9.0.5", ip))
    world.settled()
    port = world.rows.get("default_evil", FoundLogicalPort("none"))
    assert all(word not in f"{port.addresses} {port.port_security}" for word in (ip, "fd69::5"))


def test_a_lease_stays_where_a_vm_migrates_to() -> None:
    """Though it is of the switch of the node where the VM was, also for the next controller."""
    world = World(facts=LogicalFacts(NODES, LEASES, SWITCHES))

    def launch(name: str, node: str) -> None:
        launcher = leased(name, "192.168.1.7")
        launcher["metadata"]["annotations"]["kubevirt.io/domain"] = "vm"
        launcher["metadata"]["labels"] = {"kubevirt.io/created-by": "uid-vm"}
        launcher["spec"]["nodeName"] = node
        world.add(launcher)

    launch("virt-launcher-vm-aaaaa", "n1")
    world.settled()
    launch("virt-launcher-vm-bbbbb", "n2")
    world.settled()
    del world.raw["default/virt-launcher-vm-aaaaa"]
    for _ in range(2):
        world.settled()
        assert world.rows["default_vm"].addresses == ("02:00:00:00:00:05 192.168.1.7",)
        world.restart()


def test_what_a_refused_port_has_is_no_other_pods() -> None:
    """Its row stays as it is, and so its address is taken, also for a controller that has just started."""
    world = World(facts=LogicalFacts(NODES, LEASES, SWITCHES))
    world.add(leased("app", "192.168.1.3"))
    world.settled()
    world.add(leased("app", "192.168.1.1"))
    world.restart()
    world.settle()
    world.add(a_pod("other"))
    world.settled()
    assert world.rows["default_app"].addresses == ("02:00:00:00:00:05 192.168.1.3",)
    assert world.note("other")["ip_address"] == "192.168.1.4/24"


def test_a_lease_may_be_another_pods_at_once() -> None:
    """The plugin that leases addresses decides when one is given again."""
    world = World(facts=LogicalFacts(NODES, LEASES, SWITCHES))
    world.add(leased("app", "192.168.1.7"))
    world.settled()
    del world.raw["default/app"]
    world.settled()
    world.add(leased("next", "192.168.1.7"))
    world.settled()
    assert world.rows["default_next"].addresses == ("02:00:00:00:00:05 192.168.1.7",)


def test_a_lease_takes_no_address_that_is_held() -> None:
    """Of a pod that had it from the controller, and ended just now: what comes for that pod would reach another one, whose author
    can write any lease. After that it may have it."""
    world = World(facts=LogicalFacts(NODES, LEASES, SWITCHES))
    world.add(a_pod())
    world.settled()
    del world.raw["default/app"]
    world.settled()
    world.add(leased("evil", "192.168.1.3"))
    assert "default_evil" in world.settled().lacking
    world.now += 61
    world.settled()
    assert world.rows["default_evil"].addresses == ("02:00:00:00:00:05 192.168.1.3",)


def test_a_pod_that_is_called_as_a_further_port_of_another() -> None:
    """With kube-ovn's names: it has none, however old it is, and is told; the other pod has both of its ports."""
    rules = replace(RULES, naming="kube-ovn")
    world = World(rules, LogicalFacts(NODES, {"default/red-nad": keep_network(a_network())}, SWITCHES))
    early = a_pod("app.default.red.default")
    early["metadata"] |= {"namespace": "ovn", "creationTimestamp": "2025-01-01T00:00:00Z"}
    world.add(early, a_pod(**{"k8s.v1.cni.cncf.io__networks": "red-nad"}))
    lacking = world.settled().lacking["app.default.red.default.ovn"]
    assert set(world.rows) == {"app.default", "app.default.red.default.ovn"}, lacking
    assert world.rows["app.default.red.default.ovn"].version == "uid-app"


@pytest.mark.parametrize("mac", ["0a:58:c0:a8:01:01", "0a:58:c0:a8:01:03", "02:00:00:00:00:77"])
def test_a_pod_chooses_no_mac_that_another_port_has(mac: str) -> None:
    """Neither by its annotation of networks nor by that of its addresses: the router's, another pod's, one made by hand."""
    world = World(facts=LogicalFacts(NODES, {}, SWITCHES, macs={"rtos": "0a:58:c0:a8:01:01"}, routers={"rtos": ()}))
    world.rows["hand"] = FoundLogicalPort("hand", ("02:00:00:00:00:77 172.16.0.1",))
    world.add(a_pod("owner"))
    world.settled()
    world.add(a_pod("evil", ovn=json.dumps({"ip_address": "192.168.1.9/24", "mac_address": mac})))
    world.settled()
    assert world.rows["default_evil"].addresses == ("0a:58:c0:a8:01:09 192.168.1.9",)
    assert world.rows["default_owner"].addresses == ("0a:58:c0:a8:01:03 192.168.1.3",)


def test_another_switch_needs_a_rule() -> None:
    """The node's own needs none."""
    networks = {"default/red-nad": keep_network(a_network(switch="admins"))}
    switches = {**SWITCHES, "admins": read_subnets(FoundSwitch("admins", {"subnet": "10.1.0.0/16"}, {}))}
    world = World(replace(RULES, default=None), LogicalFacts(NODES, networks, switches))
    world.add(a_pod())
    world.raw["default/app"]["metadata"]["annotations"] = {"k8s.v1.cni.cncf.io/networks": "red-nad"}
    assert "cannot have ports" in world.settled().lacking["default_app"]
    world.rules = replace(world.rules, may_have=lambda *_: True)
    world.restart()
    world.settled()
    assert world.rows["default_app"].switch == "admins"


ADMINS = {**SWITCHES, "admins": read_subnets(FoundSwitch("admins", {"subnet": "10.1.0.0/16"}, {}))}
WANTS_ADMINS = '{"ip_address": "10.1.0.9/16"}'


def test_a_machines_annotation_opens_no_switch() -> None:
    """A VM keeps addresses of nodes' switches where it migrates. Another switch needs a rule, also for what seems to be a VM."""
    world = World(facts=LogicalFacts(NODES, {}, ADMINS))
    world.add(launcher(1, "n1"))
    world.raw["default/virt-launcher-vm-abcd1"]["metadata"]["annotations"]["ovn"] = WANTS_ADMINS
    world.settled()
    row = world.rows["default_vm"]
    assert (row.switch, row.addresses[0].split()[1:]) == ("n1", ["192.168.1.3"])


def test_a_node_that_is_none_opens_no_switch() -> None:
    """A pod's author chooses `nodeName`: of a switch that is called so the pod gets no port, nor does a VM's next pod."""
    world = World(facts=LogicalFacts(NODES, {}, ADMINS))
    world.add(a_pod(node="admins"), launcher(1, "admins"), launcher(2, "n1"))
    assert set(world.settled().lacking) == {"default_app", "default_vm"}
    assert world.rows == {}


def test_a_network_that_changes_opens_no_switch() -> None:
    """What a pod noted while its network named a forbidden switch counts for nothing when the network names the node's."""
    facts = [
        LogicalFacts(NODES, {"default/red-nad": keep_network(a_network(switch=switch))}, ADMINS) for switch in ("admins", "node")
    ]
    world = World(replace(RULES, default=None), facts[0])
    world.add(a_pod(ovn=WANTS_ADMINS))
    world.raw["default/app"]["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] = "red-nad"
    assert "cannot have ports" in world.settled().lacking["default_app"]
    world.facts = facts[1]
    world.settled()
    assert world.rows["default_app"].switch == "n1"


def launcher(number: int, node: str, phase: str = "Running") -> dict[str, Any]:
    """A launcher pod of VM `vm`; the second is that to which it migrates."""
    pod = a_pod(f"virt-launcher-vm-abcd{number}", node)
    pod["metadata"]["labels"] = {"kubevirt.io/created-by": "vmi"}
    pod["metadata"]["annotations"] = {"kubevirt.io/domain": "vm"}
    pod["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:0{number}Z"
    pod["status"]["phase"] = phase
    return pod


@pytest.mark.parametrize(("version", "strategy"), [((23, 3, 1), None), ((25, 9, 0), "garp,na"), ((), None)])
def test_a_migrating_machine_keeps_its_port(version: tuple[int, ...], strategy: str | None) -> None:
    """It is bound on both nodes, the source first, opened by the guest's announcement where OVN can; then on the target alone."""
    world = World(facts=LogicalFacts(NODES, {}, SWITCHES, version=version))
    world.add(launcher(1, "n1"))
    world.settled()
    row = world.rows["default_vm"]
    assert row.options == {"iface-id-ver": "vmi", "requested-chassis": "n1"}
    world.add(launcher(2, "n2"))
    world.settled()
    both = world.rows["default_vm"]
    assert both.options["requested-chassis"] == "n1,n2"
    assert both.options.get("activation-strategy") == strategy
    assert both.addresses == row.addresses
    world.add(launcher(1, "n1", "Succeeded"))
    world.settled()
    moved = world.rows["default_vm"]
    assert moved.options == {"iface-id-ver": "vmi", "requested-chassis": "n2"}
    assert (moved.addresses, moved.switch) == (row.addresses, "n1")
    world.rows = {}
    world.restart()
    world.settled()
    assert world.rows["default_vm"] == moved


def test_a_tenants_pod_is_no_machine_of_another_name() -> None:
    """Neither label nor annotation gives a pod another's port."""
    world = World()
    pod = a_pod("evil")
    pod["metadata"]["labels"] = {"kubevirt.io/created-by": "vmi"}
    pod["metadata"]["annotations"] = {"kubevirt.io/domain": "vm"}
    world.add(pod)
    world.settled()
    assert set(world.rows) == {"default_evil"}


def test_the_result_follows_from_the_objects_alone() -> None:
    """The same pods in another order have the same ports."""
    found = []
    for order in (1, -1):
        world = World()
        world.add(*[a_pod(f"p{number}") for number in range(20)][::order])
        world.settled()
        found.append(world.rows)
    assert found[0] == found[1]


NAD = "k8s.v1.cni.cncf.io/networks"


def changed_by(world: World, facts: LogicalFacts) -> set[str]:
    """The ports that have to be settled after these facts; then they are, and nothing else is left to do."""
    names = world.ports.take_facts(facts)
    world.facts = facts
    assert world.do(names).lacking == {}
    assert world.settled() == Settled()
    return names


def test_a_network_that_changes_is_judged_for_its_pods_alone() -> None:
    """Also one that is made later, or named as the pod's default network; the ports of other pods are not looked at."""
    rules = replace(RULES, may_send=lambda *_: True)
    world = World(rules, LogicalFacts(NODES, {"default/other": keep_network(a_network())}, SWITCHES))
    world.add(a_pod("plain"), a_pod("user"), a_pod("first"), a_pod("of-other"))
    world.raw["default/user"]["metadata"]["annotations"] = {NAD: "red-nad@eth7"}
    world.raw["default/first"]["metadata"]["annotations"] = {"v1.multus-cni.io/default-network": "red-nad"}
    world.raw["default/of-other"]["metadata"]["annotations"] = {NAD: "other@eth7"}
    world.settled()
    assert set(world.rows) == {"default_plain", "default_user", "default_of-other", "default_of-other_eth7"}
    networks = {**world.facts.networks, "default/red-nad": keep_network(a_network(addresses="unknown"))}
    names = {"default_user", "default_user_eth7", "default_first"}
    assert changed_by(world, replace(world.facts, networks=networks)) == names
    networks = {**networks, "default/red-nad": keep_network(a_network(addresses="unknown", requestedChassis=False))}
    assert changed_by(world, replace(world.facts, networks=networks)) == names
    assert "requested-chassis" not in world.rows["default_user_eth7"].options
    del world.raw["default/user"], world.raw["default/first"]
    world.settled()
    assert changed_by(world, replace(world.facts, networks={})) == {"default_of-other", "default_of-other_eth7"}


def test_a_node_or_switch_that_changes_is_judged_for_its_ports_alone() -> None:
    """Those of the node's pods, and of a VM that has moved away with an address of the switch; another version is about all."""
    world = World(facts=LogicalFacts(NODES, {}, SWITCHES))
    world.add(a_pod("one"), a_pod("two", "n2"), launcher(1, "n1"))
    world.settled()
    del world.raw["default/virt-launcher-vm-abcd1"]
    world.add(launcher(2, "n2"))
    world.settled()
    called = keep_node({"metadata": {"name": "n2", "annotations": {"userspace-cni.io/chassis": "c2"}}})
    facts = replace(world.facts, nodes={**NODES, "n2": called})
    assert changed_by(world, facts) == {"default_two", "default_vm"}
    assert world.rows["default_vm"].options["requested-chassis"] == "c2"
    subnets = read_subnets(FoundSwitch("n1", {"subnet": "192.168.1.0/24", "exclude_ips": "192.168.1.200"}, {}))
    facts = replace(facts, switches={**SWITCHES, "n1": subnets})
    assert changed_by(world, facts) == {"default_one", "default_vm"}
    assert changed_by(world, replace(facts, version=(25, 9, 0))) == set(world.rows)


def given(world: World) -> tuple[dict[str, FoundLogicalPort], dict[str, Any]]:
    """What rows and annotations say."""
    return dict(world.rows), {key: dict(each["metadata"]["annotations"]) for key, each in world.raw.items()}


OTHER_SUBNET = {**SWITCHES, "n1": read_subnets(FoundSwitch("n1", {"subnet": "192.168.9.0/24"}, {}))}
FURTHER_SUBNET = {
    **SWITCHES,
    "n1": read_subnets(FoundSwitch("n1", {"subnet": "192.168.1.0/24", "ipv6_prefix": "fd00:1::/64"}, {})),
}
IP, MAC = "192.168.1.3", "0a:58:c0:a8:01:03"


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    ("change", "kept", "why"),
    [
        ({"switches": OTHER_SUBNET}, IP, "which no pod of logical switch 'n1' can have now"),
        ({"switches": FURTHER_SUBNET}, "", ""),
        ({"routers": {"rtos": subnets_first(IP)}}, IP, "and router port rtos has it, too"),
        ({"routers": {"rtos": ()}, "macs": {"rtos": MAC}}, MAC, "and router port rtos has it, too"),
    ],
)
def test_a_living_pod_keeps_what_it_has(change: dict[str, Any], kept: str, why: str, restarted: bool) -> None:
    """Its switch gets other subnets, or a router what it has: that is told, and a pod that comes then gets neither."""
    world = World()
    world.add(a_pod())
    world.settled()
    before = given(world)
    world.facts = replace(world.facts, **change)
    if restarted:
        world.restart()
    world.settled()
    assert given(world) == before
    assert world.ports.doubtful == ({"default_app": f"logical port default_app has {kept}, {why}"} if kept else {})
    world.add(a_pod("next"))
    del world.raw["default/app"]
    world.settle()
    world.settled()
    assert world.ports.doubtful == {}
    world.now = 61.0
    world.settled()
    world.add(a_pod("last", uid="another"))
    world.settled()
    assert not kept or all(kept not in each.addresses[0].split() for each in world.rows.values())


@pytest.mark.parametrize("restarted", [False, True])
def test_an_address_that_another_port_gets_by_hand(restarted: bool) -> None:
    """It is the pod's and told, then the other's alone, and free again when that one is gone, too."""
    world = World()
    world.add(a_pod())
    world.settled()
    before = given(world)
    world.rows["hand"] = FoundLogicalPort("hand", ("0a:00:00:00:00:01 192.168.1.3 192.168.1.4",))
    if restarted:
        world.restart()
    world.settled()
    assert world.ports.doubtful == {"default_app": f"logical port default_app has {IP}, and hand has it, too"}
    assert given(world) == ({**before[0], "hand": world.rows["hand"]}, before[1])
    del world.raw["default/app"]
    world.settle()
    world.settled()
    world.now = 61.0
    world.add(a_pod("next"))
    world.settled()
    assert (world.note("next")["ip_address"], world.ports.doubtful) == ("192.168.1.5/24", {})
    del world.rows["hand"]
    world.changed.add("hand")
    world.settled()
    world.now = 122.0
    world.add(a_pod("last"))
    world.settled()
    assert world.note("last")["ip_address"] == "192.168.1.3/24"


def test_a_row_that_a_start_finds_without_its_pod_has_its_address_held() -> None:
    """All controllers were away when the pod ended: who still knows its address reaches no other pod by it."""
    world = World()
    world.add(a_pod())
    world.settled()
    del world.raw["default/app"]
    world.restart()
    world.settle()
    world.add(a_pod("next"))
    world.settled()
    assert world.note("next")["ip_address"] == "192.168.1.4/24"


def naming(name: str, port: str, key: str = "OvnPort", network: str = "red-nad") -> dict[str, Any]:
    """A pod that names its logical port, as ovs-cni's users do by Multus' `cni-args`."""
    pod = a_pod(name)
    asked = [{"name": network, "cni-args": {key: port}}]
    pod["metadata"]["annotations"] = {"k8s.v1.cni.cncf.io/networks": json.dumps(asked)}
    return pod


RED = LogicalFacts(NODES, {"default/red-nad": keep_network(a_network())}, SWITCHES)
SECONDARY = replace(RULES, default=None)


@pytest.mark.parametrize("key", ["OvnPort", "ovnport"])
def test_a_port_that_the_pod_names(key: str) -> None:
    """It is made under that name, and none under the usual one; the pod has its annotation all the same."""
    world = World(SECONDARY, RED)
    world.add(naming("app", "default_chosen", key))
    world.settled()
    assert set(world.rows) == {"default_chosen"}
    assert world.note()["ip_address"] == "192.168.1.3/24"


def test_a_port_that_the_network_names() -> None:
    """As `args.cni` of the definition says, unless the pod names another."""
    named = a_network()
    config = json.loads(named["spec"]["config"]) | {"args": {"cni": {"OvnPort": "default_all"}}}
    networks = {"default/red-nad": keep_network({**named, "spec": {"config": json.dumps(config)}})}
    world = World(SECONDARY, LogicalFacts(NODES, networks, SWITCHES))
    world.add(naming("app", ""), naming("other", "default_own"))
    world.settled()
    assert set(world.rows) == {"default_all", "default_own"}


@pytest.mark.parametrize("port", ["other_app", "k8s-n1", "stor-n1", "default_", "Default_app"])
def test_a_name_that_is_not_the_pods_to_choose(port: str) -> None:
    """Such a port is someone else's: the controller makes none, neither under that name nor under the usual one."""
    world = World(SECONDARY, RED)
    world.add(naming("app", port))
    assert (world.settled(), world.rows) == (Settled(), {})


def test_a_port_of_a_network_without_the_key() -> None:
    """Who names its port there has it made by someone else; the pod's next interface is a further one, as on the node."""
    plain = {"metadata": {"name": "plain"}, "spec": {"config": '{"name": "plain", "type": "userspace"}'}}
    world = World(SECONDARY, replace(RED, networks={**RED.networks, "default/plain": keep_network(plain)}))
    asked = [{"name": "plain", "cni-args": {"OvnPort": "theirs"}}, {"name": "red-nad"}]
    world.add(a_pod(**{"k8s.v1.cni.cncf.io__networks": json.dumps(asked)}))
    world.add(a_pod("usual", **{"k8s.v1.cni.cncf.io__networks": "plain, red-nad"}))
    world.settled()
    assert set(world.rows) == {"default_app_net2", "default_usual"}


def test_a_name_is_that_of_the_pod_which_is_called_so() -> None:
    """Whichever came first: no pod's request changes another one's port. The other one is told."""
    world = World(SECONDARY, RED)
    world.add(naming("older", "default_app"))
    world.settled()
    assert world.rows["default_app"].options["iface-id-ver"] == "uid-older"
    world.add(naming("app", ""))
    settled = world.settle()
    assert world.rows["default_app"].options["iface-id-ver"] == "uid-app"
    assert [each.name for each in world.ports.list_recipients("default_app")] == ["older"]
    assert "is that of pod default/app" in settled.lacking["default_app"]
    rows, notes = dict(world.rows), world.note("older")
    world.settled()
    assert (world.rows, world.note("older")) == (rows, notes)


def test_no_pod_is_called_as_a_node_or_a_router() -> None:
    """With kube-ovn's names a pod can be named so: it gets no port, and makes no row in which a node's would find no place."""
    nodes = {"n1.example.com": keep_node({"metadata": {"name": "n1.example.com"}})}
    switches = {"n1.example.com": SWITCHES["n1"]}
    facts = LogicalFacts(nodes, {}, switches, {"rtos-x.com": ()})
    world = World(replace(RULES, naming="kube-ovn"), facts)
    pods = [a_pod(name, node="n1.example.com") for name in ("k8s-n1.example", "stor-n1.example", "rtos-x", "k8s-other")]
    for pod in pods:
        pod["metadata"]["namespace"] = "com"
    world.add(*pods)
    settled = world.settled()
    assert set(world.rows) == {"k8s-other.com"}
    assert "is called as one of a node or a router" in settled.lacking["k8s-n1.example.com"]


def test_only_rows_of_pods_are_adopted() -> None:
    """A node's own row, and one without a word of pods, are told and left."""
    world = World(replace(RULES, adopts=True))
    rows = {
        "default_app": FoundLogicalPort("default_app", ("dynamic",)),
        "default_node": FoundLogicalPort(
            "default_node", (), external_ids={"owner": "userspace-cni", "scope": "node n1", "pod": ""}
        ),
    }
    world.rows = dict(rows)
    world.add(a_pod(), a_pod("node"))
    assert set(world.settled().lacking) == {"default_app", "default_node"}
    assert world.rows == rows


def test_an_adopted_row_keeps_its_binding() -> None:
    """Its pod runs with an interface that knows no version, and its chassis may have another name: neither is written until
    another pod has the row. So it is for the next controller, too."""
    world = World(replace(RULES, adopts=True))
    former = {"pod": "true", "namespace": "default"}
    world.rows["default_app"] = FoundLogicalPort("default_app", ("dynamic",), external_ids=former, options={"theirs": "x"})
    world.add(a_pod())
    world.settled()
    row = world.rows["default_app"]
    assert (row.is_ours, row.options, row.addresses) == (True, {"theirs": "x"}, ("0a:58:c0:a8:01:03 192.168.1.3",))
    world.rules = RULES
    world.restart()
    world.settled()
    assert world.rows["default_app"] == row
    world.add(a_pod(uid="next"))
    world.settled()
    assert world.rows["default_app"].options == {"theirs": "x", "iface-id-ver": "next", "requested-chassis": "n1"}
    assert "adopted-for" not in world.rows["default_app"].external_ids


def two_networks(text: str, **more: Any) -> dict[str, Any]:
    return a_pod(**{"k8s.v1.cni.cncf.io__networks": text, **more})


@pytest.mark.parametrize("source", [{}, {"addresses": "unknown"}])
@pytest.mark.parametrize("restarted", [False, True])
def test_an_interface_keeps_its_name_while_others_come_and_go(source: dict[str, Any], *, restarted: bool) -> None:
    """As on the node, where it is attached under that name; the one that comes next has the name that is free."""
    facts = replace(RED, networks={"default/red-nad": keep_network(a_network(**source))})
    world = World(replace(SECONDARY, may_send=lambda *_: True), facts)
    world.add(two_networks("red-nad@a, red-nad@b"))
    world.settled()
    assert set(world.rows) == {"default_app", "default_app_b"}
    kept = world.rows["default_app_b"]
    notes = world.raw["default/app"]["metadata"]["annotations"]
    for text, names in (("red-nad@b", set()), ("red-nad@c, red-nad@b", {"default_app"})):
        notes["k8s.v1.cni.cncf.io/networks"] = text
        if restarted:
            world.restart()
        world.settled()
        assert set(world.rows) == {"default_app_b", *names}
        assert world.rows["default_app_b"] == kept
