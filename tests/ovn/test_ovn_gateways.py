"""Gateways of two nodes on OVN in userspace: pods reach a network outside, and are reached from there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.ovn.outside import BRIDGE, ROUTER4, ROUTER6, answers, connect, outside_of, run_on
from tests.lab.ovn.two_chassis import NODES, TwoChassis
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import inside
from tests.unit.cli.test_cli_streams import environ

KINDS = (("n1", True), ("n1", False), ("n2", True), ("n2", False))
"""Of each node a pod with a vhost-user port and one with a veth."""
OWN = {"n1": ("192.0.2.10", "2001:db8::10"), "n2": ("192.0.2.20", "2001:db8::20"), "distributed": ("192.0.2.30", "2001:db8::30")}
"""Addresses outside, by gateway."""


@dataclass(frozen=True)
class OutsidePod:
    """A pod: its network namespace and its addresses."""

    netns: str
    node: str
    addresses: tuple[str, str]


class GatewayWorld:
    """Two nodes of a cluster, made by the commands, with pods, and what is outside."""

    def __init__(self, ovn: TwoChassis, outside: str, directory: Path) -> None:
        self.ovn = ovn
        self.outside = outside
        self.pods: list[OutsidePod] = []
        self._directory = directory

    def run(self, node: str, *arguments: str, code: int = 0) -> str:
        """Run a command as on the node; its output."""
        settings = self._directory / f"{node}.toml"
        settings.touch()
        environment = {**environ(self._directory), "USERSPACE_CNI_CONFIG": str(settings)}
        return run_on(self.ovn, node, environment, *arguments, code=code).stdout

    def make(self, node: str, *options: str) -> None:
        """A gateway of the node."""
        own = OWN["distributed" if "--distributed" in options else node]
        named = () if "--distributed" in options else ("--node", node)
        outside = ("--bridge", BRIDGE, "--ip", f"{own[0]}/24,{own[1]}/64", "--next-hop", f"{ROUTER4},{ROUTER6}")
        self.run(node, "init-gateway", *named, *outside, *options)

    def seen_as(self, pod: OutsidePod, address: str) -> str:
        """As whom the machine outside sees the pod, when the way is there."""
        wait_until(lambda: answers(pod.netns, address), what=f"{pod} reaches {address}")
        return connect(pod.netns, self.outside, address)

    def of_node(self, node: str) -> OutsidePod:
        """Its pod with a vhost-user port."""
        return next(each for each in self.pods if each.node == node)


@pytest.fixture(scope="module")
def world() -> Iterator[GatewayWorld]:
    """With two pods on each node."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="ovn-")))
        ovn = stack.enter_context(TwoChassis(directory))
        made = GatewayWorld(ovn, stack.enter_context(outside_of(ovn)), directory)
        made.run("n1", "init-cluster", "--cluster-subnet", "10.244.0.0/16,fd00:10:244::/56")
        for number, name in enumerate(NODES, 1):
            subnet = f"10.244.{number}.0/24,fd00:10:244:{number}::/64"
            made.run(name, "init-node", "--no-chassis", "--node", name, "--subnet", subnet)
        for number, (name, vhost) in enumerate(KINDS):
            part, mac = 1 + NODES.index(name), f"0a:58:00:00:00:1{number}"
            own = (f"10.244.{part}.1{number}", f"fd00:10:244:{part}::1{number}")
            ovn.nbctl("lsp-add", name, f"ns_p{number}", "--", "lsp-set-addresses", f"ns_p{number}", f"{mac} {' '.join(own)}")
            pod = stack.enter_context(ovn.pod(name, f"ns_p{number}", "uid", f"{own[0]}/24", mac, vhost=vhost))
            inside(pod, "ip", "address", "add", f"{own[1]}/64", "dev", "eth0", "nodad")
            inside(pod, "ip", "route", "add", "default", "via", f"10.244.{part}.1")
            inside(pod, "ip", "-6", "route", "add", "default", "via", f"fd00:10:244:{part}::1")
            made.pods.append(OutsidePod(pod, name, own))
        yield made


@pytest.fixture(autouse=True)
def ended(world: GatewayWorld) -> Iterator[None]:
    """Gateways end with their test."""
    yield
    for node in NODES:
        world.run(node, "remove-gateway", "--node", node)
        world.run(node, "remove-gateway", "--distributed")
        mappings = world.ovn.switches[node].rows("Open_vSwitch")[0]["external_ids"]
        assert not [each for each in mappings if "mappings" in each]


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
        assert world.seen_as(pod, ROUTER4) == OWN[pod.node][0]
        assert world.seen_as(pod, ROUTER6) == OWN[pod.node][1]
    one, other = world.of_node("n1"), world.of_node("n2")
    for address, own in zip(other.addresses, one.addresses, strict=True):
        assert connect(one.netns, other.netns, address) == own
    world.make("n2", "--source-subnets", f"{one.addresses[0]}/30".replace(".10/", ".8/"))
    wait_until(lambda: world.seen_as(one, ROUTER4) == OWN["n2"][0], what="the subnet leaves by n2")
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
    """From outside, to pods of both nodes, also where they leave by another gateway; a load balancer in the gateways' group."""
    world.make("n1")
    world.make("n2")
    for number, pod in enumerate(world.pods):
        for version, (address, own) in enumerate(zip(pod.addresses, OWN["n1"], strict=True)):
            port = 30000 + 2 * number + version
            shown, target = (f"[{own}]", f"[{address}]") if ":" in own else (own, address)
            name = f"np-{port}"
            world.ovn.nbctl("lb-add", name, f"{shown}:{port}", f"{target}:8080")
            world.ovn.nbctl("set", "Load_Balancer", name, "options:neighbor_responder=none")  # each gateway has all of them
            row = world.ovn.nbctl("--bare", "--columns=_uuid", "find", "Load_Balancer", f"name={name}")
            world.ovn.nbctl("--wait=hv", "add", "Load_Balancer_Group", "gateway-load-balancers", "load_balancer", row)
            connect(world.outside, pod.netns, address, (own, port))
            world.ovn.nbctl("lb-del", name)


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
