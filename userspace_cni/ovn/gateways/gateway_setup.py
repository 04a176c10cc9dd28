"""`init-gateway` and `remove-gateway`: what a person asked for becomes desired rows, judged by what the database has.

Each is one transaction. A second run writes nothing; a changed argument changes what is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from userspace_cni.base.errors import InvalidConfig, NameTaken
from userspace_cni.ovn.desired_rows import Changes, DesiredRow, RowKey
from userspace_cni.ovn.gateways.gateway_notes import AskedGateway
from userspace_cni.ovn.gateways.gateway_rows import (
    GATEWAYS_SCOPE,
    LogicalGateway,
    choose_defaults,
    default_rows,
    gateway_rows,
    gateway_scope,
)
from userspace_cni.ovn.gateways.join_addresses import choose_joins
from userspace_cni.ovn.gateways.known_gateways import FoundGateways, cluster_joins, find_gateways, place_of
from userspace_cni.ovn.known_cluster import FoundCluster, find_cluster
from userspace_cni.ovn.northbound import NorthboundClient, NorthboundSession
from userspace_cni.ovn.northbound_tables import SWITCH
from userspace_cni.ovn.plan_writing import WriteMode, write_plan
from userspace_cni.ovn.row_writing import RowPlan
from userspace_cni.ovn.topology import JOIN_SWITCH
from userspace_cni.ovn.topology_values import require_apart

DISTRIBUTED = "distributed"
"""The name of the gateway that is no node's."""


@dataclass(frozen=True)
class WishedGateway:
    """A gateway that is to be. `router`: the cluster's, "" for the only one. `is_default`: what no policy leads elsewhere leaves
    by it."""

    asked: AskedGateway
    router: str = ""
    is_default: bool = False


def init_gateway(client: NorthboundClient, wish: WishedGateway, mode: WriteMode) -> tuple[tuple[AskedGateway, ...], Changes]:
    """Make the gateway's rows; returns the cluster's gateways, and what was written or would be.

    Of two at once that want one address the second chooses again. Raises InvalidConfig, NameTaken, Unavailable, RowsRefused.
    """
    every: list[AskedGateway] = []

    def plan(session: NorthboundSession) -> Sequence[DesiredRow]:
        cluster = find_cluster(session, wish.router)
        found = find_gateways(session, cluster)
        gateway = judge_gateway(wish.asked, cluster, found)
        every[:] = [*(each.asked for name, each in found.gateways.items() if name != gateway.asked.name), gateway.asked]
        return plan_gateway(gateway, found, is_default=wish.is_default)

    changes = write_plan(client, _plan(plan, wish.asked.name, mode), mode)
    return tuple(every), changes


def remove_gateway(
    client: NorthboundClient, name: str, mode: WriteMode, router: str = ""
) -> tuple[tuple[AskedGateway, ...], Changes]:
    """Remove the gateway's rows; another one becomes the default gateway where it was.

    `router`: the cluster's, "" for the only one. Returns and raises as `init_gateway`.
    """
    left: list[LogicalGateway] = []

    def plan(session: NorthboundSession) -> Sequence[DesiredRow]:
        cluster = find_cluster(session, router)
        found = find_gateways(session, cluster)
        left[:] = [gateway for each, gateway in found.gateways.items() if each != name]
        return default_rows(cluster.router, choose_defaults(left, found.now))

    changes = write_plan(client, _plan(plan, name, mode), mode)
    return tuple(each.asked for each in left), changes


def _plan(desired: Callable[[NorthboundSession], Sequence[DesiredRow]], name: str, mode: WriteMode) -> RowPlan:
    """What the gateways share, and what this one has; judged by which ports are on the switch `join`."""
    return RowPlan(desired, GATEWAYS_SCOPE, mode.adopt, RowKey(SWITCH, JOIN_SWITCH), (gateway_scope(name),))


def plan_gateway(gateway: LogicalGateway, found: FoundGateways, *, is_default: bool) -> list[DesiredRow]:
    """Its rows, and those that all gateways share. Pure."""
    name = gateway.asked.name
    every = [*({**found.gateways, name: gateway}.values())]
    defaults = default_rows(gateway.place.router, choose_defaults(every, found.now, name if is_default else ""))
    return [*(replace(each, scope=gateway.scope) for each in gateway_rows(gateway)), *defaults]


def judge_gateway(asked: AskedGateway, cluster: FoundCluster, found: FoundGateways) -> LogicalGateway:
    """The gateway that was asked for, beside the others. Raises InvalidConfig, and NameTaken where something is lacking. Pure."""
    joins = cluster_joins(cluster)
    require_cluster(cluster)
    if not asked.distributed and asked.name not in cluster.nodes:
        raise NameTaken(f"there is no node {asked.name}", "userspace-cni ovn init-node makes it")
    if found.lacks_group:
        raise NameTaken(
            "the cluster has no group of load balancers for gateways", "userspace-cni ovn init-cluster with its options makes it"
        )
    for each in asked.addresses:
        if each.version not in {subnet.version for subnet in cluster.subnets}:
            raise InvalidConfig(f"--ip has {each}, and the cluster has no subnet of IPv{each.version}")
    for subnet in asked.source_subnets:
        if not any(subnet.version == whole.version and subnet.subnet_of(whole) for whole in cluster.subnets):  # type: ignore[arg-type]
            listed = " and ".join(map(str, cluster.subnets))
            raise InvalidConfig(
                f"--source-subnets has {subnet}, which is no part of the cluster's {listed}", "give subnets of pods"
            )
    others = {name: each.asked for name, each in found.gateways.items() if name != asked.name}
    require_apart([each.network for each in asked.addresses], "--ip", {"the cluster": cluster.subnets, "the switch join": joins})
    for name, other in others.items():
        if taken := {each.ip for each in asked.addresses} & {each.ip for each in other.addresses}:
            raise InvalidConfig(f"--ip has {min(map(str, taken))}, which gateway {name} has", "give each gateway its own address")
        if same := set(asked.source_subnets) & set(other.source_subnets):
            raise InvalidConfig(
                f"--source-subnets has {min(map(str, same))}, which gateway {name} has", "one of them can have it"
            )
    return place_gateway(asked, cluster, found)


def place_gateway(asked: AskedGateway, cluster: FoundCluster, found: FoundGateways) -> LogicalGateway:
    """The gateway with its addresses on the switch `join`. Raises InvalidConfig where none is left. Pure."""
    wanted = [each for each in cluster_joins(cluster) if each.version in {own.version for own in asked.addresses}]
    former = found.gateways[asked.name].place.own_joins if asked.name in found.gateways else ()
    chosen = choose_joins(asked.name, wanted, found.taken_by_others(asked.name), former)
    return LogicalGateway(asked, place_of(asked, cluster, chosen))


def plan_known(cluster: FoundCluster, found: FoundGateways) -> dict[str, tuple[DesiredRow, ...]]:
    """The rows that the gateways are to have, by mark, by what their routers say was asked for. Pure."""
    placed = []
    for each in found.gateways.values():
        with suppress(InvalidConfig):  # there is no address for it: init-gateway says so
            placed.append(place_gateway(each.asked, cluster, found))
    shared = default_rows(cluster.router, choose_defaults(placed, found.now))
    return {GATEWAYS_SCOPE: shared, **{each.scope: gateway_rows(each) for each in placed}}


def require_cluster(cluster: FoundCluster) -> None:
    """Raise NameTaken unless the cluster's rows say what a gateway needs."""
    if not cluster.router:
        raise NameTaken("there is no router of a cluster", "userspace-cni ovn init-cluster makes it")
    if not (cluster.subnets and cluster_joins(cluster)):
        lacking = "the subnets of its pods" if not cluster.subnets else f"the port rtoj-{cluster.router}"
        raise NameTaken(f"router {cluster.router} does not have {lacking}", "userspace-cni ovn init-cluster --adopt writes it")
