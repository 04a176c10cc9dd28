"""`ovn init-cluster` and `ovn init-node`."""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from userspace_cni.base.errors import UserspaceError
from userspace_cni.cli import view
from userspace_cni.cli.ovn.node_setup import SetUp, set_up
from userspace_cni.cli.ovn.opened_databases import describe_changes, give_time, open_databases, read_addresses, show_changes
from userspace_cni.cli.ovn.way_options import ways
from userspace_cni.cli.site import NodeCommand, Site
from userspace_cni.ovn.chassis_ids import SYSTEM_ID, AskedChassis, find_changed_ids, list_absent_ends
from userspace_cni.ovn.desired_rows import Changes
from userspace_cni.ovn.free_subnets import AskedFree, read_lengths
from userspace_cni.ovn.management_table import read_former_subnets
from userspace_cni.ovn.node_subnets import read_pod_subnets
from userspace_cni.ovn.plan_writing import WriteMode
from userspace_cni.ovn.setting_up import AskedNode, init_cluster, init_node
from userspace_cni.ovn.topology import DEFAULT_ROUTER, LogicalCluster, LogicalNode
from userspace_cni.ovn.topology_values import (
    ENCAP_TYPES,
    joins_for,
    machine_address,
    require_apart,
    require_router_name,
    require_targets,
    subnets_of,
)

SYSTEM_ID_FILE: Final = "/etc/openvswitch/system-id.conf"
"""Where OVS's own start script keeps the name of a switch."""


@click.command(
    "init-cluster",
    cls=NodeCommand,
    examples=(
        "userspace-cni ovn init-cluster --cluster-subnet 10.244.0.0/16 --dry-run",
        "userspace-cni ovn init-cluster --cluster-subnet 10.244.0.0/16",
    ),
)
@click.option(
    "--cluster-subnet", required=True, metavar="CIDR[,CIDR6]", help="The subnet of all pods; one of each version of IP."
)
@click.option(
    "--join-subnet", default="", metavar="CIDR[,CIDR6]", help="That of the join switch.  [default: 100.64.0.0/16, fd98::/64]"
)
@click.option("--router", default=DEFAULT_ROUTER, show_default=True, help="The name of the cluster's router.")
@click.option("--set-connection", multiple=True, metavar="TARGET", help="Have the northbound database listen, as ptcp:6641.")
@ways
@click.pass_context
def cluster_command(
    ctx: click.Context, /, cluster_subnet: str, join_subnet: str, router: str, set_connection: tuple[str, ...], **way: bool
) -> None:
    """Make what the cluster has once in OVN's northbound database: a router, the switch `join`, and groups of load balancers.

    All in one transaction. A second run changes nothing; a changed option changes what is ours, and nothing else. Exit code: 0
    when it is there, 1 when rows of others are in the way, 2 for wrong options or settings, 3 when a database does not answer.
    """
    subnets = subnets_of(cluster_subnet, "--cluster-subnet")
    cluster = LogicalCluster(
        subnets, joins_for(subnets, join_subnet), require_router_name(router), connections=require_targets(set_connection)
    )
    _, databases = open_databases(ctx)
    changes = init_cluster(databases.northbound, cluster, WriteMode(give_time(), way["dry_run"], way["adopt"]))
    if way["as_json"]:
        view.show_json({"changes": describe_changes(changes), "dry_run": way["dry_run"]})
    else:
        show_changes(changes, {}, dry_run=way["dry_run"])


@click.command(
    "init-node", cls=NodeCommand, examples=("userspace-cni ovn init-node --subnet 10.244.1.0/24 --encap-ip 192.0.2.11",)
)
@click.option("--node", default="", help="The node's name.  [default: this node's]")
@click.option(
    "--subnet",
    default="",
    metavar="CIDR[,CIDR6]",
    help="That of the node's pods; /24 (or /24,/64) for its former one, else a free one.  [default: Node's podCIDRs]",
)
@click.option(
    "--service-subnet",
    default="",
    metavar="CIDR[,CIDR6]",
    help="That of Services: the node's own processes reach them by OVN.  [default: no such route]",
)
@click.option("--router", default="", help="The router, where there are several clusters'.")
@click.option("--encap-ip", default="", metavar="IP", help="This machine's address for tunnels.")
@click.option("--encap-type", type=click.Choice(ENCAP_TYPES), help="Of tunnels.  [default: as it is, else geneve]")
@click.option("--encap-csum/--no-encap-csum", default=None, help="Whether tunnels have checksums.  [default: OVN's]")
@click.option("--no-chassis", is_flag=True, help="Write the database only, as for another machine.")
@click.option("--no-management-port", is_flag=True, help="The node has no logical port of its own.")
@ways
@click.pass_context
def node_command(ctx: click.Context, /, **given: Any) -> None:
    """Make a node's switch and its port on the cluster's router, and this machine the node's chassis.

    The rows are one transaction; the second address of the subnet is kept for the node's own logical port. Then external_ids of
    Open_vSwitch say to ovn-controller where the southbound database and this machine's end of tunnels are; a system-id is made
    where there is none. The second run changes nothing. Exit code: as of init-cluster.
    """
    encap_ip = machine_address(given["encap_ip"], "--encap-ip") if given["encap_ip"] else ""
    lengths = read_lengths(given["subnet"], "--subnet") if given["subnet"].startswith("/") else ()
    subnets = subnets_of(given["subnet"], "--subnet") if given["subnet"] and not lengths else ()
    services = subnets_of(given["service_subnet"], "--service-subnet") if given["service_subnet"] else ()
    site, databases = open_databases(ctx)
    name = given["node"] or site.drivers.installation.name
    if not (subnets or lengths) and (found := read_pod_subnets(site.drivers.installation, name)):
        subnets = subnets_of(found, f"Node {name}'s podCIDRs")
    free = AskedFree(lengths, read_former_subnets(site.settings.gateways, name)) if lengths else None
    node_asked = AskedNode(name, subnets, given["router"], management=not given["no_management_port"], free=free)
    find_ids = None
    if not given["no_chassis"]:
        remotes = databases.northbound_remote, databases.southbound_remote
        chassis = AskedChassis(*remotes, given["encap_type"] or "", encap_ip, given["encap_csum"], system_id=own_system_id(site))
        find_ids = partial(find_changed_ids, chassis)
        node_asked = replace(node_asked, chassis=databases.ids.get(SYSTEM_ID) or chassis.system_id)

    def write_rows(mode: WriteMode) -> tuple[LogicalNode, Changes]:
        node, changes = init_node(databases.northbound, node_asked, mode)
        require_apart(services, "--service-subnet", {"the cluster": node.cluster_subnets, f"node {node.name}": node.subnets})
        return node, changes

    asked = SetUp(write_rows, find_ids, given["dry_run"], given["adopt"], services)
    node, changes, ids = set_up(site, databases, asked)
    if node.name != node.given_name:
        view.note(f"the node is called {node.name} in OVN, in small letters")
    if find_ids is not None and not (encap_ip or databases.ids.get("ovn-encap-ip")):
        view.note("ovn-controller needs the address of this machine's end of tunnels: --encap-ip")
    if find_ids is not None and (absent := list_absent_ends({**databases.ids, **ids}, read_addresses(site))):
        view.note(
            f"no link and no bridge of this node has {', '.join(absent)}, its end of tunnels: see userspace-cni nic-to-bridge"
        )
    if given["as_json"]:
        view.show_json(
            {"node": node.name, "changes": describe_changes(changes), "external_ids": ids, "dry_run": given["dry_run"]}
        )
    else:
        show_changes(changes, ids, dry_run=given["dry_run"])


def own_system_id(site: Site) -> str:
    """The name that this machine's switch gets where it has none: OVS's own, which its start script keeps, else a new one."""
    try:
        found = Path(site.map_path(SYSTEM_ID_FILE)).read_text(encoding="ascii").strip()
    except (OSError, ValueError, UserspaceError):
        found = ""
    return found or str(uuid.uuid4())
