"""Several nodes on one wire: each switch's namespace is a node with a NIC of its own, and all NICs are joined."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.lab.network.outside import NIC
from tests.lab.node.node import Node
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.veths import inside, veth

OUTSIDE: Final = "192.0.2.1"
"""The address of another machine on the wire."""


@contextmanager
def common_wire(*nodes: str) -> Iterator[None]:
    """A NIC in each of the namespaces, all on one wire, on which there is another machine."""
    with netns() as wire:
        inside(wire, "ip", "link", "add", "wire", "type", "bridge")
        inside(wire, "ip", "address", "add", f"{OUTSIDE}/24", "dev", "wire")
        for number, node in enumerate(nodes):
            veth(node, NIC, wire, f"plug{number}")
            inside(wire, "ip", "link", "set", f"plug{number}", "master", "wire")
        inside(wire, "ip", "link", "set", "wire", "up")
        try:
            yield
        finally:
            for node in nodes:
                inside(node, "ip", "link", "delete", NIC)


def pod_network(node: Node, bridge: str, address: str, vlan: int | None) -> dict[str, Any]:
    """A network of ordinary pods on the bridge, with one address."""
    subnet = f"{address.rpartition('.')[0]}.0/24"
    ipam = {
        "type": "host-local",
        "dataDir": str(node.ipam_dir / address),
        "ranges": [[{"subnet": subnet, "rangeStart": address, "rangeEnd": address}]],
    }
    return {
        "cniVersion": "1.0.0",
        "name": "podnet",
        "type": "userspace",
        "host": {"iftype": "veth", "bridge": {"bridgeName": bridge} | ({"vlanId": vlan} if vlan else {})},
        "ipam": ipam,
    }
