"""The statuses of ProviderNetworks, Vlans and Subnets, from what nodes report. Pure.

A status is the same for the same reports: times in it change with what they are the time of, so that nothing has to be written
when nothing has changed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, Final

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.gateways import gateway_port
from userspace_cni.base.subnets import Cidr, Subnet, read_subnet, without
from userspace_cni.controller.cluster import Address, ClusterState, SummedObject, number, tables, text
from userspace_cni.controller.ranges import Division, NodeRange, divide, find_remaining
from userspace_cni.network.spec_list import GATEWAY, OBJECTS, PROVIDER_NETWORK, VLAN

MESSAGE_MAX: Final = 256
"""Characters of a node's message that are repeated in a condition: a thousand of them are one object."""
COUNT_MAX: Final = (1 << 53) - 1
"""The largest number of addresses that is told: the largest that every reader of JSON takes."""
NODE_RANGES: Final = "nodeRanges"
_IPV4: Final = 4

Status = dict[str, Any]


class StatusSums:
    """The statuses of one moment. `held`: nodes that are not known to be gone; `now`: the time, as conditions have it."""

    def __init__(self, cluster: ClusterState, held: Collection[str], now: str) -> None:
        self._cluster = cluster
        self._held = held
        self._now = now

    def provider_network(self, name: str) -> Status:
        """Which nodes have the network as its object has it, and why the others do not."""
        before = self._cluster.provider_networks[name].status
        former = {text(each, "node"): each for each in tables(before, "conditions")}
        specs = sorted(self._specs[PROVIDER_NETWORK, name].items())
        ready = [node for node, spec in specs if spec.get("ready") is True]
        return {
            "ready": bool(ready) and len(ready) == len(specs),
            "readyNodes": ready,
            "notReadyNodes": [node for node, spec in specs if spec.get("ready") is not True],
            "vlans": sorted(self._vlans[name]),
            "conditions": [
                {"node": node, **self._condition(spec.get("ready") is True, spec, former.get(node))} for node, spec in specs
            ],
        }

    def vlan(self, name: str) -> Status:
        """Which Subnets name it, and whether an earlier Vlan has its id in the same provider network."""
        kept = self._cluster.vlans[name]
        said = self._on_nodes(self._refusing(VLAN, name))
        condition = self._condition(not said["message"], said, next(iter(tables(kept.status, "conditions")), None))
        conflict = self._first[_wire(kept.spec)] != name
        return {"subnets": sorted(self._subnets[name]), "conflict": conflict, "conditions": [condition]}

    def subnet(self, name: str) -> Status:
        """How many of its addresses are used, which node has which range of them, and what is wrong with it or on nodes."""
        kept = self._cluster.subnets[name]
        subnet, problem = _read(name, kept.spec)
        status: Status = {}
        for version in (4, 6):
            using = self._using[name, version]
            space = sum(_hosts(subnet, each) for each in subnet.cidrs if each.version == version) if subnet else 0
            status[f"v{version}usingIPs"] = min(using, COUNT_MAX)
            status[f"v{version}availableIPs"] = min(max(space - using, 0), COUNT_MAX)
        division = self._divided(kept, subnet)
        said = self._on_nodes(self._refusing(GATEWAY, gateway_port(name)))
        if problem:
            said = {"reason": "Invalid", "message": problem}
        elif division.without:
            said = {"reason": "Full", "message": f"no range is left for nodes {', '.join(division.without)}"}
        former = next(iter(tables(kept.status, "conditions")), None)
        return {
            **status,
            NODE_RANGES: [_not_empty(asdict(each)) for each in division.ranges],
            "conditions": [self._condition(not said["message"], said, former)],
        }

    def _divided(self, kept: SummedObject, subnet: Subnet | None) -> Division:
        """The ranges of nodes; while the Subnet cannot be read, those that were given: a mistake in it takes nothing away."""
        now = tuple(
            NodeRange(text(each, "node"), text(each, "range"), text(each, "address")) for each in tables(kept.status, NODE_RANGES)
        )
        if subnet is None:
            return Division(now)
        if not subnet.per_node_prefix:  # nodes have pods in what was given, and a mistake may have removed the field
            return find_remaining(subnet, now, self._held)
        nodes = {node: self._cluster.nodes[node].address for node in self._cluster.states if node in self._cluster.nodes}
        return divide(subnet, now, nodes, self._held, self._used[subnet.name])

    def _refusing(self, kind: str, name: str) -> list[tuple[str, str]]:
        """The nodes that refuse an object, or are not the gateway that it asks for, each with its message."""
        specs = sorted(self._specs[kind, name].items())
        return [(node, text(spec, "message")) for node, spec in specs if _is_of_object(spec) and spec.get("ready") is not True]

    @staticmethod
    def _on_nodes(refusing: Sequence[tuple[str, str]]) -> Mapping[str, str]:
        """Reason and message of the condition of an object that these nodes refuse."""
        if not refusing:
            return {"reason": "Ready", "message": ""}
        node, message = refusing[0]
        return {"reason": "NotOnNodes", "message": f"not on {len(refusing)} nodes, as on {node}: {message}"}

    def _condition(self, ready: bool, said: Mapping[str, Any], former: Mapping[str, Any] | None) -> Status:
        status = "True" if ready else "False"
        same = former is not None and text(former, "status") == status
        since = text(former, "lastTransitionTime") if former and same else ""
        words = {"reason": text(said, "reason"), "message": text(said, "message")[:MESSAGE_MAX]}
        return {"type": "Ready", "status": status, **_not_empty(words), "lastTransitionTime": since or self._now}

    @cached_property
    def _vlans(self) -> Mapping[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for name, each in self._cluster.vlans.items():
            found[text(each.spec, "provider")].append(name)
        return found

    @cached_property
    def _first(self) -> Mapping[tuple[str, int], str]:
        """The Vlan that was there first, by where its frames are."""
        found: dict[tuple[str, int], str] = {}
        for name, each in sorted(self._cluster.vlans.items(), key=lambda each: (each[1].created, each[0])):
            found.setdefault(_wire(each.spec), name)
        return found

    @cached_property
    def _subnets(self) -> Mapping[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for name, each in self._cluster.subnets.items():
            found[text(each.spec, "vlan")].append(name)
        return found

    @cached_property
    def _specs(self) -> Mapping[tuple[str, str], Mapping[str, Mapping[str, Any]]]:
        """What nodes say of each spec, by its kind and name and by theirs; an object's before another source's."""
        found: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = defaultdict(dict)
        for node, state in self._cluster.states.items():
            if node not in self._cluster.nodes:
                continue
            for spec in sorted(state.specs, key=_is_of_object):
                found[text(spec, "kind"), text(spec, "name")][node] = spec
        return found

    @cached_property
    def _using(self) -> Counter[tuple[str, int]]:
        """How many addresses of each Subnet are used, by its name and IP version."""
        using: Counter[tuple[str, int]] = Counter()
        for each in self._cluster.addresses.values():
            using.update((each.subnet, version) for version, address in _versions(each) if address)
        return using

    @cached_property
    def _used(self) -> Mapping[str, Mapping[str, str]]:
        """The ranges that nodes report to use: by Subnet and node."""
        used: dict[str, dict[str, str]] = defaultdict(dict)
        for node, state in self._cluster.states.items():
            for each in state.subnets:
                used[text(each, "name")][node] = text(each, "range")
        return used


def _is_of_object(spec: Mapping[str, Any]) -> bool:
    return text(spec, "source") == OBJECTS


def _versions(address: Address) -> tuple[tuple[int, str], ...]:
    return (4, address.v4), (6, address.v6)


def _wire(vlan: Mapping[str, Any]) -> tuple[str, int]:
    """Where the frames of a Vlan are: two with the same are one."""
    return text(vlan, "provider"), number(vlan, "id")


def _not_empty(texts: Mapping[str, str]) -> dict[str, str]:
    """The texts without the empty ones: Kubernetes 1.20 makes null of those in server-side apply, and refuses that."""
    return {name: value for name, value in texts.items() if value}


def _read(name: str, spec: Mapping[str, Any]) -> tuple[Subnet | None, str]:
    """The Subnet as nodes read it, or why it cannot be."""
    try:
        return read_subnet(name, spec), ""
    except InvalidConfig as error:
        return None, str(error)


def _hosts(subnet: Subnet, cidr: Cidr) -> int:
    """How many addresses of its network pods may have."""
    own = [cidr.network_address, *([cidr.broadcast_address] if cidr.version == _IPV4 else ()), *subnet.gateways]
    return sum(int(last) - int(first) + 1 for first, last in without(cidr, [*subnet.excluded, *((each, each) for each in own)]))


def is_written(wanted: Status, status: Mapping[str, Any]) -> bool:
    """Whether a status has all that is wanted in it. Lists of parts have no order: the server puts them in one of its own."""
    return all(_unordered(status.get(key)) == _unordered(value) for key, value in wanted.items())


def _unordered(value: object) -> object:
    """A value as it is compared."""
    is_parts = isinstance(value, list) and all(isinstance(each, dict) for each in value)
    return sorted((sorted(each.items()) for each in value), key=repr) if is_parts and isinstance(value, list) else value
