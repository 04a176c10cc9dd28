"""What the northbound database says of the cluster and its nodes: read before a node is written beside the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_interface, ip_network
from typing import Any

from userspace_cni.attachment.steps import OWNER
from userspace_cni.base.errors import NameTaken, RowsRefused
from userspace_cni.ovn.desired_rows import SCOPE, RowKey
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.northbound_tables import CONNECTION, LOAD_BALANCER_GROUP, ROUTER, ROUTER_PORT, SWITCH, SWITCH_PORT
from userspace_cni.ovn.topology import CLUSTER_ROUTER, NODE_KEY, SUBNETS_KEY, Subnet, balancer_keys, node_scope
from userspace_cni.ovsdb.column_values import read_references, table_of, value_of


@dataclass(frozen=True)
class KnownNode:
    """A node that has a switch of ours. `subnets`: those of its router port; `given_name` as it was given."""

    name: str
    given_name: str
    subnets: tuple[Subnet, ...]


@dataclass(frozen=True)
class FoundCluster:
    """The cluster's router. `subnets`: as `init-cluster` was told, () of a router that it did not make.

    `joins`: the networks of the router's other ports, by their names. `groups`: the server knows groups of load balancers.
    `others_targets`: where the database listens because of rows that are not ours.
    """

    router: str = ""
    subnets: tuple[Subnet, ...] = ()
    joins: Mapping[str, tuple[Subnet, ...]] = field(default_factory=dict)
    nodes: Mapping[str, KnownNode] = field(default_factory=dict)
    groups: bool = True
    balancers: tuple[RowKey, ...] = ()
    others_targets: frozenset[str] = frozenset()


def find_cluster(session: NorthboundSession, router: str = "") -> FoundCluster:
    """The cluster with the router of that name, "" for the one that is marked as a cluster's. Only within `look`.

    Raises NameTaken where several are marked, and none is named; RowsRefused where a row's addresses are none.
    """
    marked = [row for row in session.rows(ROUTER) if CLUSTER_ROUTER.items() <= value_of(row, "external_ids").items()]
    found = [row for row in (session.rows(ROUTER) if router else marked) if not router or value_of(row, "name") == router]
    if len(found) > 1:
        names = ", ".join(sorted(f"{value_of(row, 'name')} ({row.uuid})" for row in found))
        raise NameTaken(f"there are several routers of a cluster: {names}", "--router names one; delete one that is not in use")
    groups = session.replica.has(LOAD_BALANCER_GROUP, "name")
    others = frozenset(
        value_of(each, "target") for each in session.rows(CONNECTION) if value_of(each, "external_ids").get("owner") != OWNER
    )
    if not found:
        return FoundCluster(groups=groups, others_targets=others)
    (row,) = found
    said = value_of(row, "external_ids").get(SUBNETS_KEY, "")
    ports = {value_of(each, "name"): each for each in _ports(session, row)}
    nodes = {each.name: each for each in (_node(switch, ports) for switch in session.rows(SWITCH)) if each is not None}
    own = {f"rtos-{name}" for name in nodes}
    return FoundCluster(
        router=value_of(row, "name"),
        subnets=_read(row, "external_ids", ip_network, [each for each in said.split(",") if each]),
        joins={name: _networks(port) for name, port in ports.items() if name not in own and not name.startswith("rtos-")},
        nodes=nodes,
        groups=groups,
        balancers=_balancers(session, value_of(row, "name")),
        others_targets=others,
    )


def _ports(session: NorthboundSession, router: Any) -> list[Any]:
    ports = session.tables[ROUTER_PORT].rows
    return [ports[each] for each in read_references(router, "ports") if each in ports]


def _networks(port: Any) -> tuple[Subnet, ...]:
    return _read(port, "networks", lambda text: ip_interface(text).network, value_of(port, "networks"))


def _read(row: Any, column: str, read: Callable[[str], Subnet], texts: Sequence[str]) -> tuple[Subnet, ...]:
    """What the texts say, which the row has in this column. Raises RowsRefused for one that says nothing."""
    try:
        return tuple(map(read, texts))
    except ValueError as error:
        name, table = value_of(row, "name"), table_of(row)
        raise RowsRefused(
            f"reading the cluster's subnets from OVN's northbound database: {column} of {table} {name}: {error}",
            f"ovn-nbctl list {table} {name} shows it: correct or delete it",
        ) from None


def _node(switch: Any, ports: Mapping[str, Any]) -> KnownNode | None:
    """The node of this switch, if it is one of ours."""
    name, ids = value_of(switch, "name"), value_of(switch, "external_ids")
    if ids.get("owner") != OWNER or ids.get(SCOPE) != node_scope(name):
        return None
    port = ports.get(f"rtos-{name}")
    return KnownNode(name, ids.get(NODE_KEY, name), _networks(port) if port is not None else ())


def _balancers(session: NorthboundSession, router: str) -> tuple[RowKey, ...]:
    """What every node's switch has of load balancers: the cluster's groups, or its two. One that is older may lack a group."""
    for pair in (False, True):
        keys = [key for key in balancer_keys(router, pair=pair) if session.replica.has(key.table, "name")]
        if found := tuple(key for key in keys if session.row(key.table, key.name) is not None):
            return found
    return ()


def list_router_macs(session: NorthboundSession) -> dict[str, str]:
    """The MAC by which each switch's ports reach a router. Only within `look`."""
    found = {}
    for switch in session.rows(SWITCH):
        for each in read_references(switch, "ports"):
            port = session.tables[SWITCH_PORT].rows.get(each)
            name = value_of(port, "options").get("router-port", "") if port is not None else ""
            routed = session.row(ROUTER_PORT, name) if name else None
            if routed is not None:
                found[value_of(switch, "name")] = value_of(routed, "mac")
    return found
