"""Gateways of two nodes on OVN in userspace: pods reach a network outside, and are reached from there."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.lab.ovn.gateway_world import OWN, GatewayWorld, gateway_world
from tests.lab.ovn.outside import BRIDGE, NIC, ROUTER4, ROUTER6, connect
from tests.lab.ovn.shared_gateway import SERVED, asks, serving
from tests.lab.ovn.two_chassis import NODES
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import give, inside

KINDS = (("n1", True), ("n1", False), ("n2", True), ("n2", False))
"""Of each node a pod with a vhost-user port and one with a veth."""


@pytest.fixture(scope="module")
def world() -> Iterator[GatewayWorld]:
    """With two pods on each node."""
    with gateway_world(KINDS) as made:
        yield made


@pytest.fixture(autouse=True)
def ended(world: GatewayWorld) -> Iterator[None]:
    """Gateways end with their test."""
    yield
    world.end()


def test_all_pods_leave_by_the_only_gateway(world: GatewayWorld) -> None:
    """Of both kinds and both nodes, by both versions of IP, with the gateway's address."""
    world.make("n1")
    for pod in world.pods:
        assert world.seen_as(pod, ROUTER4) == OWN["n1"][0]
        assert world.seen_as(pod, ROUTER6) == OWN["n1"][1]


def test_pods_leave_by_their_nodes_gateway(world: GatewayWorld) -> None:
    """And by another one where their subnet was given to it; what one pod sends to another leaves by none."""
    for node in NODES:
        world.make(node)
    for pod in world.pods:
        for router in (ROUTER4, ROUTER6):  # by the first gateway until OVN has the second one
            wait_until(lambda pod=pod, router=router: world.leaves_by(pod, router, pod.node), what=f"{pod} leaves by its node's")  # type: ignore[misc]
    one, other = world.of_node("n1"), world.of_node("n2")
    for address, own in zip(other.addresses, one.addresses, strict=True):
        assert connect(one.netns, other.netns, address) == own
    world.make("n2", "--source-subnets", f"{one.addresses[0]}/30".replace(".10/", ".8/"))
    wait_until(lambda: world.leaves_by(one, ROUTER4, "n2"), what="the subnet leaves by n2")
    assert world.seen_as(one, ROUTER6) == OWN["n1"][1]


def test_without_translation(world: GatewayWorld) -> None:
    """The machine outside sees the pod itself, and reaches it; a packet that is too large for tunnels is answered."""
    world.make("n1", "--no-snat")
    inside(world.outside, "ip", "route", "add", "10.244.0.0/16", "via", OWN["n1"][0])
    inside(world.outside, "ip", "route", "add", "fd00:10:244::/56", "via", OWN["n1"][1])
    far = world.of_node("n2")
    for address, router in zip(far.addresses, (ROUTER4, ROUTER6), strict=True):
        assert world.seen_as(far, router) == address
        connect(world.outside, far.netns, address)
    large = ("ping", "-c", "1", "-W", "5", "-M", "do", "-s", "1472", far.addresses[0])
    told = inside(world.outside, "sh", "-c", " ".join([*large, "||", "true"]))
    assert "mtu = 1442" in told or "mtu=1442" in told
    inside(world.outside, "ip", "route", "flush", "cache")
    inside(world.outside, "ip", "route", "del", "10.244.0.0/16")
    inside(world.outside, "ip", "route", "del", "fd00:10:244::/56")


def test_a_port_of_the_gateway_leads_to_pods(world: GatewayWorld) -> None:
    """From outside, to pods of both nodes, also where they leave by another gateway; a load balancer in the gateways' group.

    Pods see the gateway, to which they answer.
    """
    for node in NODES:
        world.make(node)
    for number, pod in enumerate(world.pods):
        with serving(pod.netns, SERVED) as clients:
            for own, address in zip(OWN["n1"], pod.addresses, strict=True):
                port = 30000 + 2 * number + (":" in own)
                world.balance(own, port, address)
                wait_until(lambda own=own, port=port: asks(world.outside, own, port), what=f"{own} {port} -> {pod}")  # type: ignore[misc]
                assert all(asks(world.outside, own, port) for _ in range(5))
                assert clients[-1] in world.ovn.nbctl("get", "Logical_Router_Port", "rtoj-GR_n1", "networks")


def test_what_the_node_lacks(world: GatewayWorld) -> None:
    """A bridge, or one that OVN's can be linked with; an address that the node itself has is refused, or has to be shared."""
    switch, own = world.ovn.switches["n1"], ("--ip", "192.0.2.10/24")

    def said(*options: str, code: int = 1) -> str:
        return world.run("n1", "init-gateway", "--node", "n1", *options, code=code)

    assert "there is no bridge nope" in said("--bridge", "nope", *own, "--next-hop", ROUTER4)
    assert "nope is on no bridge" in said("--interface", "nope", *own, "--next-hop", ROUTER4)
    assert "is on br-ex, and not on br-phy" in said("--bridge", "br-phy", "--interface", NIC, *own, "--next-hop", ROUTER4)
    assert "has no default route" in said("--interface", NIC, *own, code=2)
    switch.vsctl("--no-wait", "add-br", "br-k", "--", "set", "Bridge", "br-k", "datapath_type=system")
    assert "bridge br-k has the datapath system" in said("--bridge", "br-k", *own, "--next-hop", ROUTER4)
    switch.vsctl("--no-wait", "del-br", "br-k")
    give(switch.netns, BRIDGE, "192.0.2.10/24")
    inside(switch.netns, "ip", "route", "add", "default", "via", ROUTER4)
    assert "which the node itself has on br-ex" in said("--interface", NIC, *own, code=2)
    assert "which bridge br-ex does not have" in said("--interface", NIC, "--ip", "192.0.2.12/24", "--shared", code=2)
    found = json.loads(said("--interface", NIC, "--ip", "192.0.2.12/24", "--json", code=0))
    assert found["external_ids"]["ovn-bridge-mappings"] == f"{BRIDGE}:{BRIDGE}"
    (told,) = json.loads(world.run("n1", "status", "--json"))["gateways"]
    assert (told["name"], told["addresses"], told["next_hops"]) == ("n1", ["192.0.2.12/24"], [ROUTER4])
    assert "192.0.2.12/24" in world.run("n1", "status")
    inside(switch.netns, "ip", "address", "flush", "dev", BRIDGE)


def test_the_line_of_former_scripts(world: GatewayWorld) -> None:
    """`gateway-init` with a bridge makes a shared gateway, and one with a NIC a gateway behind the NIC's bridge."""
    place = world.ovn.switches["n1"].netns
    give(place, BRIDGE, "192.0.2.11/24")
    line = ("gateway-init", "--cluster-ip-subnet=10.244.0.0/16", "--node-name=n1", f"--default-gw={ROUTER4}")
    shared = (f"--bridge-interface={BRIDGE}", "--physical-ip=192.0.2.11/24", "--rampout-ip-subnets=10.244.2.8/30")
    world.run_former("n1", *line, *shared)
    (told,) = json.loads(world.run("n1", "status", "--json"))["gateways"]
    assert (told["shared"], told["addresses"], told["source_subnets"]) == (True, ["192.0.2.11/24"], ["10.244.2.8/30"])
    inside(place, "ip", "address", "flush", "dev", BRIDGE)
    world.run_former("n1", *line, f"--physical-interface={NIC}", f"--physical-ip={OWN['n1'][0]}/24")
    (told,) = json.loads(world.run("n1", "status", "--json"))["gateways"]
    assert (told["shared"], told["network"]) == (False, BRIDGE)
    wait_until(lambda: world.leaves_by(world.pods[0], ROUTER4, "n1"), what="the pod leaves by the other interface")


def test_a_command_that_died_before_the_mapping_is_completed(world: GatewayWorld) -> None:
    """The rows are there, and the bridge's mapping is not: the next run writes it, and nothing else; others' mappings stay."""
    switch = world.ovn.switches["n1"]
    world.make("n1")
    switch.vsctl(
        "--no-wait", "remove", "Open_vSwitch", ".", "external_ids", "ovn-bridge-mappings", "userspace-cni-bridge-mappings"
    )
    switch.vsctl("--no-wait", "set", "Open_vSwitch", ".", "external_ids:ovn-bridge-mappings=theirs:br-theirs")
    found = json.loads(world.run("n1", "check", "--json", code=1))["findings"]
    assert "ovn-mapping-missing" in {each["name"] for each in found}
    world.make("n1")
    assert switch.rows("Open_vSwitch")[0]["external_ids"]["ovn-bridge-mappings"] == f"theirs:br-theirs,{BRIDGE}:{BRIDGE}"
    assert world.seen_as(world.pods[0], ROUTER4) == OWN["n1"][0]
    assert "ovn-mapping-missing" not in world.run("n1", "check", "--json")
    world.run("n1", "remove-gateway", "--node", "n1")
    assert switch.rows("Open_vSwitch")[0]["external_ids"]["ovn-bridge-mappings"] == "theirs:br-theirs"
    switch.vsctl("--no-wait", "remove", "Open_vSwitch", ".", "external_ids", "ovn-bridge-mappings")
