"""What a picture of a node is made of: what records and switch say of each port, together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.unit.attachment.test_listing import PORT, RECORD, Seen
from userspace_cni.attachment.drift import Dead, Drift
from userspace_cni.attachment.listing import describe_all
from userspace_cni.attachment.port_now import PortNow
from userspace_cni.attachment.records import Record, node_container
from userspace_cni.attachment.steps import NodeBridge, NodeLink, UplinkInterface, UplinkPort
from userspace_cni.base.switch_bridges import FrameCounts, SwitchBridge, SwitchBridgePort, SwitchInterface
from userspace_cni.base.vlans import Vlan
from userspace_cni.diagnosis.node_map import (
    MapFacts,
    MapHead,
    MapPort,
    NodeMap,
    PortRates,
    find_rates,
    has_fault,
    make_map,
    vlan_words,
)

HEAD = MapHead("n1", "", "", "")
ROW = SwitchBridgePort(PORT.name, Vlan(100, (1, 2)), (SwitchInterface(PORT.name, "dpdkvhostuserclient", "up"),), "pod")
NODES = (
    Record(
        "ready",
        "settings",
        node_container("provider-network"),
        "net1",
        steps=(NodeBridge("br-net1"), UplinkPort("br-net1", "nic0", (UplinkInterface("nic0", "system"),))),
    ),
    Record("ready", "settings", node_container("gateway"), "gw", steps=(NodeLink("gw0", ("10.0.0.1/24",)),)),
)


def other(name: str, kind: str, link: str = "", *, owner: str = "", **more: str) -> SwitchBridgePort:
    """A port that is no attachment's, with one interface."""
    return SwitchBridgePort(name, Vlan(), (SwitchInterface(name, kind, link, **more),), owner)  # type: ignore[arg-type]


def mapped(
    ports: Sequence[SwitchBridgePort] | None,
    seen: Seen | None = None,
    *,
    record: Record = RECORD,
    vswitchd: str = "alive",
    dead: Drift | None = None,
    nodes: Sequence[Record] = (),
) -> NodeMap:
    """A node with one attachment, and these ports on br0; None where the switch cannot be asked."""
    known = None if ports is None else [seen] if seen else []
    drifts = {record.key: dead} if dead else {}
    described = describe_all([record], known, vswitchd=vswitchd, dead=drifts)
    bridges = None if ports is None else [SwitchBridge("br0", "netdev", "pods", tuple(ports))]
    return make_map(HEAD, MapFacts(described, bridges, vswitchd, nodes))


def ports_of(found: NodeMap) -> dict[str, MapPort]:
    return {port.name: port for bridge in found.bridges for port in bridge.ports}


@pytest.mark.parametrize(
    ("seen", "record", "vswitchd", "dead", "state"),
    [
        (Seen(), RECORD, "alive", None, "connected"),
        (Seen(link_state="down", status={"status": "disconnected"}), RECORD, "alive", None, "waiting"),
        (Seen(now=PortNow(Vlan(7, (1, 2)), 9000)), RECORD, "alive", None, "differs"),
        (Seen(error="no memory"), RECORD, "alive", None, "error"),
        (Seen(error="no memory", now=PortNow(Vlan(7), 9000)), RECORD, "alive", None, "error"),
        (Seen(), RECORD, "alive", Drift("socket s", "", "a socket that a process has", Dead("a dead one")), "dead"),
        (Seen(), replace(RECORD, state="deleting"), "alive", None, "changing"),
        (Seen(), RECORD, "dead", None, "unknown"),
        (Seen(), RECORD, "silent", None, "unknown"),
        (None, RECORD, "alive", None, "error"),
    ],
)
def test_states_of_attachments(seen: Seen | None, record: Record, vswitchd: str, dead: Drift | None, state: str) -> None:
    """A port without an application waits; what the switch could not open is an error; what a dead switch says is not known."""
    found = mapped([ROW] if seen else [], seen, record=record, vswitchd=vswitchd, dead=dead)
    port = ports_of(found)[PORT.name]
    assert (port.state, port.owner, port.ifname) == (state, "default/web", "net1")
    assert has_fault(found) == (state in ("differs", "error", "dead") or vswitchd == "dead")


def test_records_alone() -> None:
    """Without the switch, records say which bridges and ports there are, and nothing of them is known to be wrong."""
    found = mapped(None, nodes=NODES)
    ports = ports_of(found)
    assert [each.name for each in found.bridges] == ["br-net1", "br0"]
    assert {name: port.state for name, port in ports.items()} == {"nic0": "unknown", PORT.name: "unknown"}
    assert (found.asked, has_fault(found)) == (False, False)


def test_an_uplink_that_the_switch_lacks() -> None:
    """It is an error, which the switch's silence would not be."""
    port = ports_of(mapped([ROW], Seen(), nodes=NODES))["nic0"]
    assert (port.state, port.problems) == ("error", ("the switch has no port nic0",))


@pytest.mark.parametrize(
    ("port", "behind", "state"),
    [
        (other("e", "dpdk", "up"), "uplink", "up"),
        (other("e", "system", "down"), "uplink", "down"),
        (other("v", "system", "up", driver="veth"), "other", "up"),
        (other("v", "system", "down", driver="tun"), "other", "off"),
        (other("i", "internal", "down"), "node", "off"),
        (other("gw0", "internal", "down", owner="node"), "node", "down"),
        (other("gw0", "internal", "up", owner="node"), "node", "up"),
        (other("p", "patch"), "patch", "up"),
        (other("t", "geneve"), "tunnel", "up"),
        (other("t", "geneve", error="no route"), "tunnel", "error"),
        (other("u", "dpdkvhostuserclient", "down"), "other", "waiting"),
        (other("r", "dpdkvhostuser", "up", owner="run"), "test", "connected"),
        (SwitchBridgePort("n", Vlan(), ()), "other", "unknown"),
    ],
)
def test_other_ports(port: SwitchBridgePort, behind: str, state: str) -> None:
    """What is behind a port of no attachment follows from its kind, and a link that nothing uses is no fault."""
    found = ports_of(mapped([ROW, port], Seen(), nodes=NODES[1:]))[port.name]
    assert (found.behind, found.state) == (behind, state)


def test_a_bond_names_the_nic_that_is_down() -> None:
    """It has the gravest state of its NICs, and says whose that is."""
    nics = (SwitchInterface("e1", "system", "up"), SwitchInterface("e2", "system", "down"))
    bond = ports_of(mapped([SwitchBridgePort("bond0", Vlan(), nics, bond="active-backup")]))["bond0"]
    assert (bond.state, bond.problems, bond.owner) == ("down", ("the link of e2 is down",), "e1, e2")


def test_own_ports_of_bridges() -> None:
    """A bridge's own port is shown where the node's addresses are on it, and is no port of it otherwise."""
    local = other("br0", "internal", "up")
    assert "br0" not in ports_of(mapped([local]))
    link = Record("ready", "settings", node_container("gateway"), "gw", steps=(NodeLink("br0", ("10.0.0.1/24",)),))
    assert ports_of(mapped([local], nodes=[link]))["br0"].addresses == ("10.0.0.1/24",)


def test_rates() -> None:
    """They are of the time between the looks at this interface; of one that was made anew, or has no counters, there is none."""
    counted = {"tx_bytes": 1000, "rx_bytes": 0, "tx_packets": 10, "rx_packets": 0, "rx_dropped": 0, "tx_dropped": 0}
    later = counted | {"tx_bytes": 3000, "tx_packets": 20, "tx_dropped": 4}
    unused = {"rx_dropped": 0}
    before = {"a": FrameCounts(1.0, counted), "anew": FrameCounts(1.0, later), "gone": FrameCounts(1.0, counted)}
    after = {"a": FrameCounts(3.0, later), "anew": FrameCounts(3.0, counted), "new": FrameCounts(3.0, counted)}
    before["unused"], after["unused"] = FrameCounts(1.0, unused), FrameCounts(3.0, unused)
    assert find_rates(before, after) == {"a": PortRates(8000.0, 0.0, 5.0, 0.0, 2.0)}


@pytest.mark.parametrize(
    ("vlan", "words"),
    [
        (Vlan(), "no VLAN set"),
        (Vlan(5), "VLAN 5"),
        (Vlan(5, mode="access"), "VLAN 5"),
        (Vlan(None, (1, 2, 3, 7)), "VLANs 1-3, 7"),
        (Vlan(5, (7,), "native-tagged"), "VLAN 5, VLANs 7, native-tagged"),
    ],
)
def test_vlans_in_words(vlan: Vlan, words: str) -> None:
    """Ranges are written as such, and a mode that tag and trunks do not say."""
    assert vlan_words(vlan) == words
