"""What the controller knows of the cluster: what it keeps of each object, as the watches give it. Pure.

Objects are written by people and by nodes. A field that is missing or of another type than its schema's counts as absent, so that
one such object cannot stop the work on the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SummedObject:
    """An object that the controller sums up into. `version` is the one that its status was read from."""

    uid: str
    version: str
    created: str
    spec: Mapping[str, Any]
    status: Mapping[str, Any]
    generation: int = 0


@dataclass(frozen=True)
class ReportedState:
    """What a node reports: its NodeState. `specs`, `subnets` and `routes` are as in its status.

    `routes`: None where the node has no part in Routes.
    """

    uid: str
    specs: Sequence[Mapping[str, Any]]
    subnets: Sequence[Mapping[str, Any]]
    routes: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class ClusterNode:
    """A node of the API. `address`: its first InternalIP, "" while it has none."""

    uid: str
    address: str


@dataclass(frozen=True)
class Address:
    """An IP object: which addresses of which Subnet a pod on which node has; "" for none."""

    uid: str
    subnet: str
    node: str
    v4: str
    v6: str


@dataclass(frozen=True)
class OfferedSlice:
    """A ResourceSlice of the driver of devices: the node whose devices are in it."""

    uid: str
    node: str


@dataclass(frozen=True)
class ClusterState:
    """All of it, by name: complete lists, each of one moment.

    `nodes_watched`: whether the nodes are followed now; if not, a node that is missing in them may have come back.
    """

    provider_networks: Mapping[str, SummedObject] = field(default_factory=dict)
    vlans: Mapping[str, SummedObject] = field(default_factory=dict)
    subnets: Mapping[str, SummedObject] = field(default_factory=dict)
    routes: Mapping[str, SummedObject] = field(default_factory=dict)
    states: Mapping[str, ReportedState] = field(default_factory=dict)
    nodes: Mapping[str, ClusterNode] = field(default_factory=dict)
    addresses: Mapping[str, Address] = field(default_factory=dict)
    slices: Mapping[str, OfferedSlice] = field(default_factory=dict)
    nodes_watched: bool = True


def read_object(thing: Mapping[str, Any]) -> SummedObject:
    """What is kept of a ProviderNetwork, Vlan, Subnet or Route. Raises KeyError for what is no object."""
    metadata = thing["metadata"]
    version, created = text(metadata, "resourceVersion"), text(metadata, "creationTimestamp")
    generation = number(metadata, "generation")
    return SummedObject(metadata["uid"], version, created, table(thing, "spec"), table(thing, "status"), generation)


def read_node_state(thing: Mapping[str, Any]) -> ReportedState:
    """What is kept of a NodeState. Raises KeyError for what is no object."""
    status = table(thing, "status")
    routes = tables(status, "routes") if "routes" in status else None
    return ReportedState(thing["metadata"]["uid"], tables(status, "specs"), tables(status, "subnets"), routes)


def node(thing: Mapping[str, Any]) -> ClusterNode:
    """What is kept of a Node. Raises KeyError for what is no object."""
    found = tables(table(thing, "status"), "addresses")
    internal = [text(each, "address") for each in found if each.get("type") == "InternalIP"]
    return ClusterNode(thing["metadata"]["uid"], internal[0] if internal else "")


def address(thing: Mapping[str, Any]) -> Address:
    """What is kept of an IP. Raises KeyError for what is no object."""
    spec = table(thing, "spec")
    names = ("subnet", "nodeName", "v4IpAddress", "v6IpAddress")
    return Address(thing["metadata"]["uid"], *(text(spec, name) for name in names))


def offered_slice(thing: Mapping[str, Any]) -> OfferedSlice:
    """What is kept of a ResourceSlice. Raises KeyError for what is no object."""
    return OfferedSlice(thing["metadata"]["uid"], text(table(thing, "spec"), "nodeName"))


def text(of: Mapping[str, Any], name: str) -> str:
    """A text of an object; "" when there is none."""
    found = of.get(name)
    return found if isinstance(found, str) else ""


def number(of: Mapping[str, Any], name: str) -> int:
    """A whole number of an object; 0 when there is none."""
    found = of.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def table(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of an object; empty when there is none."""
    found = of.get(name)
    return found if isinstance(found, dict) else {}


def tables(of: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    """A list of parts of an object; empty when there is none."""
    found = of.get(name)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
