"""What a pod asks for its own port changes no link of the node on its bridge: no MTU, no MAC and no owner of an address."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.cni.spec import refused, succeeded, switch_of
from tests.lab.frames.taps import SECONDS, TapProcess
from tests.lab.network.gateways import GATEWAY, Site, kept
from tests.lab.node.links import inside
from tests.lab.node.node import CONTAINER, Node
from tests.lab.runtimes.runtime import Call
from tests.lab.switch.kernel_links import Veths
from tests.lab.switch.switch import Switch, wait_until
from tests.ovs.conftest import attach, kernel_port, soon
from userspace_cni.attachment.drift import Absent
from userspace_cni.attachment.steps import Internal, OvsPort
from userspace_cni.switch.ports import PortDriver

BRIDGE = "br-test"
STATED = replace(GATEWAY, port="gw-1300", addresses=("10.57.0.1/24",), mtu=1300, masquerade=False)
USUAL = replace(GATEWAY, port="gw-usual", masquerade=False)
LOWEST = "00:00:00:00:00:01"
"""A MAC: OVS gives a bridge the smallest MAC of its ports that is not local to the bridge itself."""


@dataclass(frozen=True)
class Pod:
    """A kind of port, the MTU that its network asks for (0: none), and the mirror whose output it is."""

    kind: str
    mtu: int = 0
    mirror: str = ""

    def __str__(self) -> str:
        return f"{self.kind}-{self.mtu or 'none'}{self.mirror and '-output'}"

    @property
    def is_vhost(self) -> bool:
        """Whether an application is connected to it."""
        return self.kind in ("client", "server")

    def network(self, node: Node, **host: Any) -> dict[str, Any]:
        asked = {"mtu": self.mtu} if self.mtu else {}
        kind = {"vhost": {"mode": self.kind}} if self.is_vhost else {"port": self.kind}
        iftype = "vhostuser" if self.is_vhost else "veth"
        block = {"engine": "ovs-dpdk", "iftype": iftype, "bridge": {"bridgeName": BRIDGE}, "mac": LOWEST, **kind, **asked, **host}
        return node.network(host=block, **({"mirrorOutput": self.mirror} if self.mirror else {}))


PODS = [
    *(Pod(kind, mtu) for kind in ("client", "server", "system") for mtu in (0, 1400, 3000)),
    *(Pod(kind, mtu) for kind in ("af_packet", "af_xdp", "afxdp") for mtu in (0, 1400)),
    *(Pod(kind, 1400, "ids") for kind in ("client", "system")),
]


def shown(link: str, place: str) -> tuple[int, str]:
    """MTU and MAC of a link."""
    [found] = json.loads(inside(place, "ip", "-json", "link", "show", link))
    return found["mtu"], found["address"]


def all_shown(place: str, *links: str) -> dict[str, tuple[int, str]]:
    return {link: shown(link, place) for link in links}


@pytest.fixture
def site(node: Node) -> Iterator[Site]:
    """The node's own network, in an installation that also opens ports as afxdp."""
    with kept(node, switch_of(node).netns) as made:
        yield made


@pytest.mark.parametrize("pod", PODS, ids=str)
def test_gateways_and_bridge_stay_as_they_are(node: Node, site: Site, sandbox: str, pod: Pod) -> None:
    """A gateway with its own MTU keeps it; another one and the bridge have the node's, whatever a connected pod's port has."""
    switch, links = switch_of(node), (USUAL.port, STATED.port, BRIDGE)
    assert site.keep(USUAL, STATED) == {USUAL.port: "", STATED.port: ""}
    before = all_shown(site.place, *links)
    assert [mtu for mtu, _ in before.values()] == [1500, 1300, 1500]
    result = succeeded(node.run("ADD", pod.network(node), sandbox))
    with ExitStack() as stack:
        interface = next(each for each in result["interfaces"] if pod.is_vhost or not each.get("sandbox"))
        port = interface["socketPath"].rpartition("/")[2] if pod.is_vhost else interface["name"]
        if pod.is_vhost:
            role = "server" if pod.kind == "client" else "client"
            tap = stack.enter_context(TapProcess(sandbox, interface["socketPath"], "--mode", role, "--name", "t0"))
            tap.until("ready")
            port = f"{CONTAINER[:12]}-net1"
        wait_until(lambda: switch.interface(port)["mtu"] == (pod.mtu or 1500), SECONDS, "the port's MTU")
        switch.vsctl("set", "Open_vSwitch", ".", "external_ids:looked=again")  # ends when all of that is done
        assert all_shown(site.place, *links) == before
        assert site.keep(USUAL, STATED) == {USUAL.port: "", STATED.port: ""}
        succeeded(node.run("DEL", pod.network(node), sandbox))
    assert all_shown(site.place, *links) == before


@pytest.mark.parametrize("node", ["", "agent"], indirect=True)
@pytest.mark.parametrize("pod", [Pod("client", 1400), Pod("system", 1400), Pod("system", 3000)], ids=str)
def test_an_administrators_bridge_in_use(node: Node, sandbox: str, pod: Pod) -> None:
    """The bridge's own link is up and has no mtu_request: a pod that would change its MTU is refused, naming the link."""
    switch = switch_of(node)
    switch.vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, "datapath_type=netdev")
    inside(switch.netns, "ip", "link", "set", BRIDGE, "up")
    wait_until(lambda: switch.interface(BRIDGE)["admin_state"] == "up", what="OVS to say that it is up")
    before = shown(BRIDGE, switch.netns)
    refused(node.run("ADD", pod.network(node), sandbox), 7, f"mtu_request={before[0]}", BRIDGE)
    assert switch.ports(BRIDGE) == []
    succeeded(node.run("ADD", replace(pod, mtu=1500).network(node), sandbox))
    succeeded(node.run("DEL", replace(pod, mtu=1500).network(node), sandbox))
    switch.vsctl("set", "Interface", BRIDGE, "mtu_request=1500")
    # an agent hears of another program's change a moment after that program does, and refuses until then
    wait_until(lambda: node.run("ADD", pod.network(node), sandbox).status == 0, what="ADD beside the MTU that is asked for")
    assert shown(BRIDGE, switch.netns) == before
    succeeded(node.run("DEL", pod.network(node), sandbox))
    switch.vsctl("clear", "Interface", BRIDGE, "mtu_request")
    inside(switch.netns, "ip", "link", "set", BRIDGE, "down")
    wait_until(lambda: switch.interface(BRIDGE)["admin_state"] == "down", what="OVS to say that it is down")
    succeeded(node.run("ADD", pod.network(node), sandbox))
    succeeded(node.run("DEL", pod.network(node), sandbox))


INTERNAL = ("--", "set", "Interface", "adm0", "type=internal")


def test_an_administrators_bridge_with_a_nic(node: Node, veths: Veths, sandbox: str) -> None:
    """NIC and bridge have jumbo frames: a pod with MTU 1500 would lower the bridge's and is refused.

    One above the NIC's is not.
    """
    switch = switch_of(node)
    veths.add("nic", mtu=2000)
    switch.vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, "datapath_type=netdev")
    switch.vsctl("add-port", BRIDGE, "adm0", *INTERNAL)
    switch.vsctl("add-port", BRIDGE, "nic")
    inside(switch.netns, "ip", "link", "set", "adm0", "up")
    wait_until(lambda: switch.interface("adm0")["admin_state"] == "up", what="OVS to say that it is up")
    wait_until(lambda: shown("adm0", switch.netns)[0] == 2000, what="the NIC's MTU")
    refused(node.run("ADD", Pod("client").network(node), sandbox), 7, "adm0", "mtu_request=2000")
    for mtu in (2000, 3000):
        succeeded(node.run("ADD", Pod("system", mtu).network(node), sandbox))
        assert shown("adm0", switch.netns)[0] == 2000
        succeeded(node.run("DEL", Pod("system", mtu).network(node), sandbox))


@pytest.mark.parametrize("resident", [True, False])
def test_a_bridge_of_an_earlier_release(switch: Switch, connect: Callable[..., PortDriver], veths: Veths, resident: bool) -> None:
    """Its own link has no mtu_request: check reports that, and the next port, or the same one again, makes it keep 1500."""
    driver = connect(switch, links=veths, resident=resident)
    veths.add("k1", 1400)
    step = kernel_port(mtu=1400)
    attach(driver, step, soon())
    switch.vsctl("clear", "Interface", BRIDGE, "mtu_request")
    wait_until(lambda: veths()[BRIDGE].mtu == 1400, what="what OVS does by itself")
    [drift] = driver.check(step, soon())
    assert (drift.subject, drift.field, drift.expected, drift.found) == (f"bridge {BRIDGE}", "mtu_request", 1500, Absent())
    gateway = OvsPort(BRIDGE, "gw0", Internal("02:00:00:00:0b:01", 1300), marks={**step.marks, "ifname": "gw0"})
    for each in (step, gateway):
        switch.vsctl("clear", "Interface", BRIDGE, "mtu_request")
        attach(driver, each, soon())
        wait_until(lambda: veths()[BRIDGE].mtu == 1500, what="the bridge's own MTU")
        assert driver.check(step, soon()) == []
    switch.vsctl("set", "Interface", BRIDGE, "mtu_request=1450")
    wait_until(lambda: veths()[BRIDGE].mtu == 1450, what="another MTU")
    attach(driver, step, soon())
    assert (driver.check(step, soon()), veths()[BRIDGE].mtu) == ([], 1450), "what an administrator has set stays"


def require_refused(node: Node, sandbox: str, kind: str, link: str) -> None:
    """A port that carries a VLAN of the link and asks for its MAC, or for its address 10.56.0.1, is refused and leaves nothing.

    That holds while the link is down, too, but not in another VLAN than that of a link with a tag.
    """
    switch, pod = switch_of(node), Pod(kind)
    mac, ports = shown(link, switch.netns)[1], switch.ports(BRIDGE)
    only = {"subnet": "10.56.0.0/24", "rangeStart": "10.56.0.1", "rangeEnd": "10.56.0.1", "gateway": "10.56.0.2"}
    leased = {"cniVersion": "1.0.0", "ipam": {**node.host_local(), "ranges": [[only]]}}
    for vlan in CARRIES_7:
        where = {"bridgeName": BRIDGE, **vlan}
        refused(node.run("ADD", pod.network(node, mac=mac.upper(), bridge=where), sandbox), 7, mac, link)
        refused(node.run("ADD", {**pod.network(node, bridge=where), **leased}, sandbox), 7, "10.56.0.1", link)
    inside(switch.netns, "ip", "link", "set", link, "down")
    wait_until(lambda: switch.interface(link)["admin_state"] == "down", what="OVS to say that it is down")
    tagged = {"bridgeName": BRIDGE, "vlanId": 7}
    refused(node.run("ADD", pod.network(node, mac=mac, bridge=tagged), sandbox), 7, mac, link)
    refused(node.run("ADD", {**pod.network(node, bridge=tagged), **leased}, sandbox), 7, "10.56.0.1", link)
    assert node.leftovers().keys().isdisjoint({"records", "leases", "shared"})
    assert switch.ports(BRIDGE) == ports
    for vlan in ({"vlanId": 8}, {"trunks": [0, 8]}, {"vlanId": 8, "vlanMode": "dot1q-tunnel"}):
        elsewhere = pod.network(node, mac=mac, bridge={"bridgeName": BRIDGE, **vlan})
        if switch.rows("Port", f"name={link}")[0]["tag"] == 7:
            succeeded(node.run("ADD", elsewhere, sandbox))
            succeeded(node.run("DEL", elsewhere, sandbox))
        else:
            refused(node.run("ADD", elsewhere, sandbox), 7, mac, link)


CARRIES_7: list[dict[str, Any]] = [
    {},
    {"vlanId": 7},
    {"trunks": ["5-9"]},
    {"vlanId": 5, "trunks": [7], "vlanMode": "native-untagged"},
    {"vlanId": 7, "trunks": [5], "vlanMode": "native-tagged"},
    {"vlanId": 7, "vlanMode": "dot1q-tunnel"},
]


@pytest.mark.parametrize("vlan", [None, 7])
@pytest.mark.parametrize("kind", ["client", "system"])
def test_what_a_gateway_has_is_refused(node: Node, site: Site, sandbox: str, kind: str, vlan: int | None) -> None:
    """A pod cannot have the MAC or address of a gateway on its bridge, in the gateway's VLAN or, without one, in any."""
    assert site.keep(replace(USUAL, vlan=vlan)) == {USUAL.port: ""}
    require_refused(node, sandbox, kind, USUAL.port)


@pytest.mark.parametrize("node", ["", "agent"], indirect=True)
def test_what_an_administrators_link_has_is_refused(node: Node, sandbox: str) -> None:
    """A pod cannot have those of an administrator's internal port, with an agent or without."""
    switch = switch_of(node)
    switch.vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, "datapath_type=netdev")
    switch.vsctl("add-port", BRIDGE, "adm0", "tag=7", *INTERNAL)
    inside(switch.netns, "ip", "address", "add", "10.56.0.1/24", "dev", "adm0")
    inside(switch.netns, "ip", "link", "set", "adm0", "up")
    require_refused(node, sandbox, "client", "adm0")


@pytest.mark.parametrize("node", ["", "agent"], indirect=True)
def test_an_administrators_link_that_is_down(node: Node, sandbox: str) -> None:
    """It would come up with the pod's MTU: refused as while it is up.

    A link that was moved to another namespace cannot be checked.
    """
    switch, pod = switch_of(node), Pod("client", 1400)
    switch.vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, "datapath_type=netdev")
    switch.vsctl("add-port", BRIDGE, "adm0", *INTERNAL)
    wait_until(lambda: switch.interface("adm0")["admin_state"] == "down", what="OVS to say that it is down")
    refused(node.run("ADD", pod.network(node), sandbox), 7, "adm0", "mtu_request=1500")
    inside(switch.netns, "ip", "link", "set", "adm0", "netns", sandbox)
    succeeded(node.run("ADD", pod.network(node), sandbox))
    assert shown("adm0", sandbox)[0] == 1500
    succeeded(node.run("DEL", pod.network(node), sandbox))


@pytest.mark.parametrize("node", ["", "agent"], indirect=True)
@pytest.mark.parametrize("kind", ["client", "system"])
def test_what_a_pod_of_another_namespace_has_is_refused(node: Node, sandbox: str, kind: str) -> None:
    """A pod cannot have the MAC of another namespace's pod in a VLAN that both carry.

    Within a namespace, or without one, it can.
    """
    pod, other = Pod(kind), "f" * 64

    def of(namespace: str) -> dict[str, str]:
        return {"CNI_ARGS": f"K8S_POD_NAMESPACE={namespace};K8S_POD_NAME=pod"} if namespace else {}

    def add(namespace: str, **bridge: Any) -> Call:
        network = pod.network(node, mac=MAC.upper(), bridge={"bridgeName": BRIDGE, **bridge})
        return node.run("ADD", network, sandbox, other, "net2", **of(namespace))

    def require_free(namespace: str, **bridge: Any) -> None:
        succeeded(add(namespace, **bridge))
        succeeded(node.run("DEL", pod.network(node), sandbox, other, "net2"))

    theirs = pod.network(node, mac=MAC, bridge={"bridgeName": BRIDGE, "vlanId": 7})
    succeeded(node.run("ADD", theirs, sandbox, **of("one")))
    ports = switch_of(node).ports(BRIDGE)
    for vlan in CARRIES_7:
        error = refused(add("another", **vlan), 7, f"MAC {MAC} is that of a pod of another namespace on bridge {BRIDGE}")
        assert " one" not in error["msg"], "whose it is, is none of the asker's business"
    assert switch_of(node).ports(BRIDGE) == ports
    found = switch_of(node).vsctl("--columns=name", "find", "Interface", f'external_ids:attached-mac="{MAC}"')
    assert ports[0] in found, "what the message says to look at shows it"
    for namespace in ("one", ""):
        require_free(namespace, vlanId=7)
    require_free("another", vlanId=8)
    require_free("another", bridgeName="br-else")
    succeeded(node.run("DEL", theirs, sandbox))
    require_free("another", vlanId=7)
    succeeded(node.run("ADD", theirs, sandbox))
    require_free("another", vlanId=7)
    succeeded(node.run("DEL", theirs, sandbox))


MAC = "02:bb:00:00:00:01"
