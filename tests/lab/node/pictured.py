"""Facts of nodes as `map` draws them: of any size, with every state and every kind of port."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any, Final

from userspace_cni.base.switch_bridges import SwitchMirror
from userspace_cni.base.vlans import Vlan
from userspace_cni.diagnosis.node_map import (
    MapBridge,
    MapHead,
    MapMember,
    MapPort,
    NodeMap,
    PortRates,
    PortState,
)
from userspace_cni.ovn.logical_networks import LogicalNetworks, LogicalRouter, LogicalSwitch

HOSTILE: Final = "</script><svg onload=alert(1)>&\"'\u202e\u2066\x1b[31m\x00\u0301\ud800\ufffe]]>"
"""A text that ends a script or an element, writes from right to left, colours a terminal, and that XML cannot hold."""
_STATES: Final[tuple[PortState, ...]] = (
    *("connected",) * 9,
    *("waiting", "up", "connected", "dead", "connected", "error", "up", "down", "differs", "changing", "unknown"),
)
_NAMES: Final = ("web-7d9f8c6b5d-x", "database-primary-", "upf-control-plane-with-a-very-long-name-indeed-", "cache-")
_NETWORKS: Final = ((None, "plain"), (100, "blue"), (200, "green"), (300, "red"))


def pictured_node(ports: int, bridges: int = 1, *, ovn: bool = False) -> NodeMap:
    """A node with so many ports of pods and VMs on so many bridges; `ovn`: and with OVN's integration bridge."""
    head = MapHead("worker-1", "2026-11-27 12:00:00 UTC", "0.1.0", "Open vSwitch 3.1.0", "agent 0.1.0", 1.0)
    pods = _pods()
    made = []
    for number in range(bridges):
        own = [next(pods) for _ in range(ports // bridges + (number < ports % bridges))]
        mirrors = _mirrors(own) if number == 0 else ()
        made.append(MapBridge(f"br{number}", "netdev", "pods", (*_outside(number), *own), mirrors))
    if not ovn:
        return NodeMap(head, tuple(made))
    logical = LogicalNetworks(
        (LogicalSwitch("worker-1", ("10.16.1.0/24",), "cluster"), LogicalSwitch("tenant", (), "")),
        (LogicalRouter("cluster", ("100.64.0.2",)),),
    )
    return NodeMap(head, (*made, _integration()), logical)


def renamed(node: NodeMap, text: str) -> NodeMap:
    """The node with this text wherever a text is from outside."""
    bridges = [
        MapBridge(
            text,
            text,
            text,
            tuple(_renamed_port(port, text) for port in bridge.ports),
            tuple(replace(each, name=text, output=text) for each in bridge.mirrors),
        )
        for bridge in node.bridges
    ]
    return replace(node, head=MapHead(text, text, text, text, text), bridges=tuple(bridges), unasked=(text,))


def _renamed_port(port: MapPort, text: str) -> MapPort:
    keys = ("name", "owner", "ifname", "network", "container", "vm", "mac", "logical_switch", "peer", "remote", "spec")
    texts: dict[str, Any] = {key: text for key in keys if getattr(port, key)}
    return replace(port, **texts, problems=(text,), addresses=(text,))


def _pods() -> Iterator[MapPort]:
    for number, state in enumerate(cycle(_STATES)):
        tag, network = _NETWORKS[number % 4]
        vm = f"vm-{number}" if number % 7 == 3 else ""
        problem = {"error": "could not open network device (No such device)", "differs": "the switch has VLAN 7"}.get(state, "")
        yield MapPort(
            f"{number:012x}-net1",
            "vm" if vm else "pod",
            state,
            f"team-{number % 3}/{_NAMES[number % 4]}{number}",
            ifname="net1",
            network=network,
            type="af_packet" if state in ("up", "down") else "dpdkvhostuserclient",
            vlan=Vlan(tag),
            problems=(problem,) if problem else (),
            container=f"{number:064x}",
            vm=vm,
            mac=f"02:00:00:00:{number // 256 % 256:02x}:{number % 256:02x}",
            addresses=(f"10.{number % 4}.{number // 250}.{number % 250}/16",),
            mtu=1500,
            limits=(100_000_000, None) if number % 5 == 0 else (None, None),
            rates=PortRates(1.7e9 / (number + 1), 3.3e7 / (number + 1), 1e5, 1e4) if state in ("connected", "up") else None,
        )


def _outside(number: int) -> tuple[MapPort, ...]:
    nic = MapMember(f"0000:3b:00.{number}", "up", "dpdk", "10Gbps")
    other = MapMember(f"0000:3b:01.{number}", "down", "dpdk")
    rates = PortRates(3.2e9, 1.1e9)
    bond = MapPort(f"bond{number}", "uplink", "down", f"{nic.name}, {other.name}", type="dpdk", members=(nic, other), rates=rates)
    single = MapPort(f"eth{number}", "uplink", "up", nic.name, type="dpdk", members=(nic,), rates=rates)
    gateway = MapPort(f"gw{number}", "node", "up", f"gw{number}", type="internal", addresses=(f"10.{number}.0.1/24",))
    patch = MapPort("patch-br0", "patch", "up", "patch-br0", type="patch", peer="patch-int")
    return (bond if number % 2 else single, gateway, *([patch] if number == 0 else []))


def _mirrors(ports: list[MapPort]) -> tuple[SwitchMirror, ...]:
    names = [each.name for each in ports]
    return (SwitchMirror("watch", names[0], tuple(names[1:3]), False, True),) if len(names) > 2 else ()


def _integration() -> MapBridge:
    tunnels = [
        MapPort(f"ovn-{each}", "tunnel", "up", f"ovn-{each}", type="geneve", remote=f"192.0.2.{each}") for each in range(3)
    ]
    ports = [
        MapPort(f"eth-{each}", "pod", "up", f"default/shop-{each}", "eth0", "ovn", "system", logical=f"default_shop-{each}")
        for each in range(6)
    ]
    placed = [replace(port, logical_switch="tenant" if number > 3 else "worker-1") for number, port in enumerate(ports)]
    patch = MapPort("patch-int", "patch", "up", "patch-int", type="patch", peer="patch-br0")
    return MapBridge("br-int", "netdev", "another", (patch, *tunnels, *placed))
