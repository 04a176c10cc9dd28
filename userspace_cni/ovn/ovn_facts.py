"""How a cluster's logical network and its chassis are, as both databases say it at one moment. Only within `look`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from userspace_cni.attachment.steps import OWNER
from userspace_cni.ovn.desired_rows import SCOPE, Changes, DesiredRow, compare
from userspace_cni.ovn.fragment_judging import judges_fragments
from userspace_cni.ovn.gateways.gateway_notes import AskedGateway
from userspace_cni.ovn.gateways.gateway_setup import plan_known
from userspace_cni.ovn.gateways.known_gateways import FoundGateways, find_gateways
from userspace_cni.ovn.known_cluster import FoundCluster, find_cluster
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.northbound_tables import ACL, CONNECTION, LOAD_BALANCER, PORT_GROUP, ROUTER, SWITCH, SWITCH_PORT
from userspace_cni.ovn.row_writing import SessionRows
from userspace_cni.ovn.southbound import CHASSIS, ENCAP, PORT_BINDING, SouthboundSession
from userspace_cni.ovn.topology import (
    CLUSTER_SCOPE,
    LogicalCluster,
    LogicalNode,
    cluster_rows,
    management_port,
    node_rows,
)
from userspace_cni.ovsdb.column_values import read_references, value_of

_TRANSPORT: Final = re.compile(r"\b(?:tcp|udp|sctp)\b")
"""In a match: what fragments do not show."""


@dataclass(frozen=True)
class PortFact:
    """A logical port of a pod, a VM or a node. `up`: a chassis has it; None where northd has not said so."""

    name: str
    switch: str
    addresses: tuple[str, ...]
    up: bool | None


@dataclass(frozen=True)
class ChassisFact:
    """A chassis. `ends`: type and address of its ends of tunnels; `ports`: how many logical ports it has."""

    name: str
    hostname: str
    ends: tuple[tuple[str, str], ...]
    ports: int


@dataclass(frozen=True)
class NorthFacts:
    """What the northbound database says. `configurations`: nb_cfg, sb_cfg and hv_cfg. `twice`: names that rows share, by table.

    `differences`: by mark, how the rows of the cluster, of each node and of its gateways differ from what was asked for.
    `fragmented`: the policies with rules on ports or protocols, where OVN does not know those of IP fragments.
    """

    configurations: Mapping[str, int]
    cluster: FoundCluster
    ports: tuple[PortFact, ...] = ()
    twice: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    differences: Mapping[str, Changes] = field(default_factory=dict)
    gateways: tuple[AskedGateway, ...] = ()
    fragmented: tuple[str, ...] = ()


def look_north(session: NorthboundSession) -> NorthFacts:
    """Raises NameTaken where several routers are marked as a cluster's."""
    cluster, root = find_cluster(session), session.root()
    rows = session.tables[SWITCH_PORT].rows
    ports = [
        PortFact(value_of(port, "name"), value_of(switch, "name"), _addresses(port), next(iter(value_of(port, "up")), None))
        for switch in session.rows(SWITCH)
        for port in (rows[each] for each in read_references(switch, "ports") if each in rows)
        if not value_of(port, "type")
    ]
    twice = {
        table: tuple(sorted(name for name, number in Counter(_names(session, table)).items() if number > 1))
        for table in (SWITCH, ROUTER, LOAD_BALANCER)
    }
    configurations = {name: value_of(root, name) for name in ("nb_cfg", "sb_cfg", "hv_cfg")}
    ordered = tuple(sorted(ports, key=lambda each: each.name))
    gateways = find_gateways(session, cluster)
    differences = _differences(session, cluster, gateways, {each.name for each in ports})
    asked = tuple(each.asked for each in gateways.gateways.values())
    return NorthFacts(configurations, cluster, ordered, twice, differences, asked, _list_fragmented(session))


def _list_fragmented(session: NorthboundSession) -> tuple[str, ...]:
    if judges_fragments(session):
        return ()
    acls, found = session.tables[ACL].rows, []
    for group in session.rows(PORT_GROUP):
        ids = value_of(group, "external_ids")
        matches = (value_of(acls[each], "match") for each in read_references(group, "acls") if each in acls)
        if ids.get("owner") == OWNER and "policy" in ids and any(_TRANSPORT.search(each) for each in matches):
            found.append(f"{ids.get('kind', '')} {ids.get('namespace', '')}/{ids['policy']}")
    return tuple(sorted(found))


def look_south(session: SouthboundSession) -> tuple[ChassisFact, ...]:
    """The chassis, by name."""
    ends = {row.uuid: (value_of(row, "type"), value_of(row, "ip")) for row in session.rows(ENCAP)}
    bound = Counter(each for row in session.rows(PORT_BINDING) for each in value_of(row, "chassis"))
    found = [
        ChassisFact(
            value_of(row, "name"),
            value_of(row, "hostname"),
            tuple(sorted(ends[each] for each in read_references(row, "encaps") if each in ends)),
            bound[row.uuid],
        )
        for row in session.rows(CHASSIS)
    ]
    return tuple(sorted(found, key=lambda each: each.name))


def _addresses(port: object) -> tuple[str, ...]:
    """Those that it was given, or that northd has chosen."""
    return tuple(value_of(port, "dynamic_addresses") or value_of(port, "addresses"))


def _names(session: NorthboundSession, table: str) -> list[str]:
    return [name for row in session.rows(table) if (name := value_of(row, "name"))]


def _differences(
    session: NorthboundSession, cluster: FoundCluster, gateways: FoundGateways, ports: set[str]
) -> dict[str, Changes]:
    rows, found = SessionRows(session), {}
    for scope, desired in _desired(session, cluster, gateways, ports).items():
        if changes := compare(desired, rows, scope):
            found[scope] = changes
    return found


def _desired(
    session: NorthboundSession, cluster: FoundCluster, gateways: FoundGateways, ports: set[str]
) -> dict[str, tuple[DesiredRow, ...]]:
    """The rows that cluster and nodes are to have, by what the rows that are there say was asked for."""
    joins = cluster.joins.get(f"rtoj-{cluster.router}", ())
    if not (cluster.router and cluster.subnets and joins):
        return {}
    asked = [row for row in session.rows(CONNECTION) if value_of(row, "external_ids").get(SCOPE) == CLUSTER_SCOPE]
    pair = any(key.table == LOAD_BALANCER for key in cluster.balancers) or not cluster.groups
    connections = tuple(value_of(row, "target") for row in asked)
    desired = {CLUSTER_SCOPE: cluster_rows(LogicalCluster(cluster.subnets, joins, cluster.router, pair, connections))}
    for node in cluster.nodes.values():
        management = management_port(node.name) in ports
        if node.subnets:
            logical = LogicalNode(node.name, node.given_name, node.subnets, cluster.router, management, cluster.balancers)
            desired[logical.scope] = node_rows(logical)
    return desired | plan_known(cluster, gateways)
