"""Helpers of the tests of runtimes: the networks that they use, and how an attachment looks from each side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cni.spec import records, switch_of
from tests.lab.node.node import Node
from tests.lab.runtimes.containerd_host import RuntimeHost
from tests.lab.runtimes.delegates.scripting import Scripted

VERSION = "1.0.0"
"""The highest version that the libcni in Debian 12's runtimes knows."""


def conflist(*plugins: Mapping[str, Any], name: str = "net") -> dict[str, Any]:
    """A network list of these plugins."""
    members = [{key: value for key, value in each.items() if key not in ("name", "cniVersion")} for each in plugins]
    return {"cniVersion": VERSION, "name": name, "plugins": members}


def addressed(node: Node, **keys: Any) -> dict[str, Any]:
    """Our plugin with host-local: containerd refuses a sandbox whose eth0 has no address."""
    return node.network(ipam=node.host_local(), **keys)


def refusing(node: Node) -> dict[str, Any]:
    """Our plugin with a configuration that it refuses."""
    network = addressed(node)
    network["host"]["bandwidth"] = {"ingressRate": 1000}
    return network


def debian_bridge(node: Node) -> dict[str, Any]:
    """Debian's bridge plugin, with leases below the node's directory."""
    return {"type": "bridge", "bridge": "cni0", "ipam": node.host_local("10.88.0.0/24")}


def witness(host: RuntimeHost, name: str = "witness") -> Scripted:
    """A plugin that records the runtime's calls. It has to be the first in a list, because it answers with an empty result."""
    made = Scripted(host.bin, name)
    made.tell("VERSION", answer={"cniVersion": VERSION, "supportedVersions": ["0.4.0", VERSION]})
    return made.tell("ADD", answer={"cniVersion": VERSION})


def listed(plugin: Scripted) -> dict[str, Any]:
    return {"type": plugin.name}


def port_of(container: str, ifname: str = "eth0") -> str:
    """Name of the port of an attachment."""
    return f"{container[:12]}-{ifname}"


def ports(node: Node) -> set[str]:
    """Names of all ports on the tests' bridge; none when there is no bridge."""
    switch = switch_of(node)
    return set(switch.ports("br-test")) if "br-test" in switch.bridges() else set()


def attached(node: Node, container: str, ifname: str = "eth0", network: str = "net") -> dict[str, Any]:
    """The row of an attachment's interface; its marks, namespace and record have to agree."""
    name = port_of(container, ifname)
    assert name in ports(node)
    row = switch_of(node).interface(name)
    marks: dict[str, str] = row["external_ids"]
    told = {key: marks.get(key) for key in ("owner", "container-id", "network", "ifname")}
    assert told == {"owner": "userspace-cni", "container-id": container, "network": network, "ifname": ifname}
    assert (row["type"], row["error"], row["ofport"] > 0) == ("dpdkvhostuserclient", [], True)
    [record] = [each for each in records(node) if (each["container_id"], each["ifname"]) == (container, ifname)]
    assert (record["state"], record["network"]) == ("ready", network)
    assert str(Path(marks["netns"]).stat().st_ino) == marks["netns-inode"]
    return row


def namespace_of(row: Mapping[str, Any]) -> str:
    """The network namespace of the sandbox that a port belongs to, as its runtime named it."""
    return str(row["external_ids"]["netns"])


def mac_of(row: Mapping[str, Any]) -> str:
    """The address of the interface in the container."""
    return str(row["external_ids"]["attached-mac"])


def server_path(row: Mapping[str, Any]) -> Path:
    """The path to which OVS connects."""
    return Path(row["options"]["vhost-server-path"])
