"""A gateway of two chassis, with a third one that sees both: the second takes over when the first dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.lab.ovn.gateway_world import OWN, GatewayWorld, gateway_world
from tests.lab.ovn.outside import ROUTER4, ROUTER6
from tests.lab.ovn.shared_gateway import SERVED, asks, serving
from tests.lab.ovn.two_chassis import LONGEST_GAP, NODES, Pinging
from tests.lab.switch.switch import wait_until

Record = Callable[[str, object], None]
THIRD = "n3"


@pytest.fixture(scope="module")
def world() -> Iterator[GatewayWorld]:
    """With a gateway of n1 and n2, and a pod of the third node, which leaves by it."""
    with gateway_world([(THIRD, False)]) as made:
        for node in NODES:
            made.make(node, "--distributed", "--chassis", ",".join(NODES))
        until_it_is_at(made, "n1")
        yield made
        made.end()


def active(world: GatewayWorld) -> str:
    """The chassis that has the gateway's port, "" for none."""
    port = "logical_port=cr-rtoe-GR_distributed"
    row = world.ovn.sbctl("--bare", "--columns=chassis", "find", "Port_Binding", port)
    return world.ovn.sbctl("--bare", "--columns=name", "list", "Chassis", row) if row else ""


def until_it_is_at(world: GatewayWorld, node: str) -> None:
    """Wait for the gateway's port: on a busy machine the other chassis has it for a moment, when BFD comes late."""
    wait_until(lambda: active(world) == node, what=f"{node} has the gateway's port")


def until_it_is_seen(world: GatewayWorld) -> None:
    """Wait until the machine outside sees the pod as the gateway: a connection that is begun while its way moves is lost."""
    (pod,) = world.pods
    for router in (ROUTER4, ROUTER6):
        wait_until(lambda router=router: world.leaves_by(pod, router, "distributed"), what=f"the gateway to {router}")  # type: ignore[misc]


@contextmanager
def pinged(world: GatewayWorld, what: str, record: Record) -> Iterator[None]:
    """The machine outside answers before and after the block, and the longest time that it did not is told."""
    (pod,) = world.pods
    with Pinging(pod.netns, ROUTER4) as pinging:
        yield
    record(f"{what}: {LONGEST_GAP}", round(pinging.gap_s * 1000))
    until_it_is_seen(world)


def test_a_port_of_the_gateway(world: GatewayWorld) -> None:
    """A load balancer in the gateways' group leads from outside to a pod, which sees the client; by both versions of IP."""
    (pod,) = world.pods
    with serving(pod.netns, SERVED) as clients:
        for own, address, router in zip(OWN["distributed"], pod.addresses, (ROUTER4, ROUTER6), strict=True):
            world.balance(own, 30080, address)
            wait_until(lambda own=own: asks(world.outside, own, 30080), what=f"{own} -> {pod}")  # type: ignore[misc]
            assert all(asks(world.outside, own, 30080) for _ in range(5))
            assert clients[-1] == router


def test_the_next_chassis_takes_over(world: GatewayWorld, record_property: Record) -> None:
    """Where ovs-vswitchd of the first one dies, with the gateway's addresses; it goes back when that lives again."""
    until_it_is_seen(world)
    until_it_is_at(world, "n1")
    with pinged(world, "ovs-vswitchd of the gateway's chassis killed", record_property):
        world.ovn.switches["n1"].kill_vswitchd()
        until_it_is_at(world, "n2")
    with pinged(world, "it goes back to the first chassis", record_property):
        world.ovn.switches["n1"].restart_vswitchd()
        until_it_is_at(world, "n1")


def test_a_whole_chassis_dies(world: GatewayWorld, record_property: Record) -> None:
    """Where its ovn-controller dies first, so that its chassis keeps the gateway's port."""
    until_it_is_at(world, "n1")
    with pinged(world, "the gateway's chassis dead", record_property):
        world.ovn.kill("n1")
        world.ovn.switches["n1"].kill_vswitchd()
        until_it_is_at(world, "n2")
    world.ovn.switches["n1"].restart_vswitchd()
    world.ovn.start("n1")
    until_it_is_at(world, "n1")


def test_a_controller_dies(world: GatewayWorld, record_property: Record) -> None:
    """ovn-controller of the gateway's chassis, killed: its switch forwards meanwhile."""
    until_it_is_at(world, "n1")
    with pinged(world, "ovn-controller of the gateway's chassis killed", record_property):
        world.ovn.kill("n1")
        world.ovn.start("n1")
    until_it_is_at(world, "n1")
