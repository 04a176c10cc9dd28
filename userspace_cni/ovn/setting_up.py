"""`init-cluster`, `init-node` and what removes them: what a person asked for becomes desired rows, judged by what the database
has.

Each is one transaction. A second run writes nothing; a changed argument changes what is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, NameTaken, UserspaceError
from userspace_cni.ovn.desired_rows import Changes, DesiredRow, RowKey
from userspace_cni.ovn.free_subnets import AskedFree, choose_subnets
from userspace_cni.ovn.gateways.known_gateways import find_gateways
from userspace_cni.ovn.known_cluster import FoundCluster, find_cluster
from userspace_cni.ovn.northbound import NorthboundClient, NorthboundSession
from userspace_cni.ovn.northbound_tables import ROUTER, SWITCH
from userspace_cni.ovn.plan_writing import WriteMode, write_plan
from userspace_cni.ovn.row_writing import RowPlan
from userspace_cni.ovn.topology import (
    CLUSTER_SCOPE,
    LogicalCluster,
    LogicalNode,
    Subnet,
    balancer_keys,
    cluster_rows,
    node_rows,
    node_scope,
)
from userspace_cni.ovn.topology_values import node_name_of, require_apart, require_room, require_within


@dataclass(frozen=True)
class AskedNode:
    """What was asked for a node. `router`: "" for the cluster's own. `free`: for a node that lacks a subnet and is given none.
    `chassis`: its switch's name, "" where that is not known."""

    name: str
    subnets: tuple[Subnet, ...]
    router: str = ""
    management: bool = True
    free: AskedFree | None = None
    chassis: str = ""


def init_cluster(client: NorthboundClient, cluster: LogicalCluster, mode: WriteMode) -> Changes:
    """Make the cluster's rows; returns what was written, or would be.

    Raises InvalidConfig, NameTaken, Unavailable, RowsRefused.
    """

    def plan(session: NorthboundSession) -> Sequence[DesiredRow]:
        return plan_cluster(cluster, find_cluster(session, cluster.router), adopt=mode.adopt)

    return write_plan(client, RowPlan(plan, CLUSTER_SCOPE, mode.adopt, RowKey(ROUTER, cluster.router)), mode)


def init_both(
    client: NorthboundClient, cluster: LogicalCluster, asked: AskedNode, mode: WriteMode
) -> tuple[LogicalNode, Changes]:
    """Make the cluster's rows and those of its first node, in one transaction, as ovn-kubernetes' first tools did.

    Raises InvalidConfig, NameTaken, Unavailable, RowsRefused.
    """
    judged: list[LogicalNode] = []

    def plan(session: NorthboundSession) -> Sequence[DesiredRow]:
        known = find_cluster(session, cluster.router)
        rows = plan_cluster(cluster, known, adopt=mode.adopt)
        known = replace(known, router=cluster.router, subnets=cluster.subnets, balancers=cluster.balancers)
        judged[:] = [node] = [judge_node(asked, known)]
        return [*rows, *(replace(each, scope=node.scope) for each in node_rows(node))]

    changes = write_plan(client, RowPlan(plan, CLUSTER_SCOPE, mode.adopt, RowKey(ROUTER, cluster.router)), mode)
    return judged[0], changes


def init_node(client: NorthboundClient, asked: AskedNode, mode: WriteMode) -> tuple[LogicalNode, Changes]:
    """Make the node's rows; returns what it has, and what was written or would be.

    It is judged beside the other nodes in the transaction: of two nodes at once that would overlap the second is refused. Raises
    InvalidConfig, NameTaken, Unavailable, RowsRefused.
    """
    judged: list[LogicalNode] = []

    def plan(session: NorthboundSession) -> Sequence[DesiredRow]:
        judged[:] = [judge_node(asked, find_cluster(session, router))]
        return node_rows(judged[0])

    router = asked.router or _read_router(client, mode.deadline)
    scope = node_scope(node_name_of(asked.name))
    changes = write_plan(client, RowPlan(plan, scope, mode.adopt, RowKey(ROUTER, router)), mode)
    return judged[0], changes


def remove_node(client: NorthboundClient, name: str, mode: WriteMode) -> Changes:
    """Remove the node's rows, unless pods' ports or a gateway need them. Raises NameTaken, Unavailable, RowsRefused."""

    def plan(session: NorthboundSession) -> Sequence[DesiredRow]:
        if name in find_gateways(session, FoundCluster()).gateways:
            raise NameTaken(f"node {name} has a gateway", "userspace-cni ovn remove-gateway, first")
        return ()

    return write_plan(client, RowPlan(plan, node_scope(name), alone=RowKey(SWITCH, name)), mode)


def remove_cluster(client: NorthboundClient, mode: WriteMode) -> Changes:
    """Remove what the cluster has once, unless nodes, gateways or load balancers need it. Raises as `remove_node`."""
    router = _read_router(client, mode.deadline)
    groups = balancer_keys(router, pair=False)
    return write_plan(client, RowPlan((), CLUSTER_SCOPE, alone=RowKey(ROUTER, router), further=groups), mode)


def plan_cluster(cluster: LogicalCluster, known: FoundCluster, *, adopt: bool = False) -> tuple[DesiredRow, ...]:
    """The cluster's rows, beside what is there. Raises InvalidConfig. Pure.

    Where others have the database listen already it does, so that no row of ours is needed, unless theirs is to become ours.
    """
    require_apart(cluster.joins, "--join-subnet", {"the cluster": cluster.subnets})
    for node in known.nodes.values():
        for subnet in node.subnets:
            if not any(subnet.version == each.version and subnet.subnet_of(each) for each in cluster.subnets):  # type: ignore[arg-type]
                raise InvalidConfig(
                    f"--cluster-subnet is {' and '.join(map(str, cluster.subnets))}, and node {node.name} has {subnet}",
                    "it must have the subnets of all nodes",
                )
    targets = tuple(each for each in cluster.connections if adopt or each not in known.others_targets)
    return cluster_rows(replace(cluster, pair=cluster.pair or not known.groups, connections=targets))


def judge_node(asked: AskedNode, known: FoundCluster) -> LogicalNode:
    """The node that was asked for, beside the others. Raises InvalidConfig, and NameTaken for a node of the same name. Pure."""
    if not known.router:
        raise NameTaken(
            f"there is no router {asked.router}" if asked.router else "there is no router of a cluster",
            "userspace-cni ovn init-cluster makes it",
        )
    name = node_name_of(asked.name)
    same = known.nodes.get(name)
    if same is not None and same.given_name != asked.name:
        raise NameTaken(
            f"node {asked.name!r} has the rows of {name!r}, which are node {same.given_name!r}'s",
            "names that differ only in capitals are one in OVN: rename one of the nodes",
        )
    others = {f"node {each.name}": each.subnets for each in known.nodes.values() if each.name != name}
    taken = {**others, **{f"router port {port}": each for port, each in known.joins.items()}}
    subnets = asked.subnets or (same.subnets if same is not None else ())
    if asked.free and len(subnets) < max(1, len(known.subnets)):  # it has none, or the cluster has got a second family
        free = replace(asked.free, former=(*asked.free.former, *subnets))
        subnets = choose_subnets(free, known.subnets, [subnet for each in taken.values() for subnet in each])
    if not subnets:
        raise InvalidConfig("--subnet is missing", "a node needs a subnet of the cluster's for its pods")
    require_room(asked.subnets, "--subnet")
    if known.subnets:
        require_within(subnets, known.subnets)
    require_apart(subnets, "--subnet", taken)
    return LogicalNode(name, asked.name, subnets, known.router, asked.management, known.balancers, known.subnets, asked.chassis)


def _read_router(client: NorthboundClient, deadline: Deadline) -> str:
    """The name of the cluster's router, "" for none. Raises Unavailable, and as `find_cluster`."""

    def look(session: NorthboundSession) -> FoundCluster | UserspaceError:
        try:
            return find_cluster(session)
        except UserspaceError as error:  # it is the caller's, and none of the session's thread
            return error

    found = client.read(look, frozenset(), "looking at OVN's northbound database", deadline, enough=lambda _: False)
    if isinstance(found, UserspaceError):
        raise found
    return found.router
