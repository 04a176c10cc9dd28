"""`ovn remove-node` and `ovn remove-cluster`."""

from __future__ import annotations

import click

from userspace_cni.cli import view
from userspace_cni.cli.ovn.node_setup import drop_node
from userspace_cni.cli.ovn.opened_databases import describe_changes, give_time, open_databases, show_changes
from userspace_cni.cli.site import NodeCommand
from userspace_cni.ovn.desired_rows import Changes
from userspace_cni.ovn.plan_writing import WriteMode
from userspace_cni.ovn.setting_up import remove_cluster
from userspace_cni.ovn.topology_values import node_name_of


@click.command("remove-node", cls=NodeCommand, examples=("userspace-cni ovn remove-node",))
@click.option("--node", default="", help="The node's name.  [default: this node's]")
@click.option("--no-chassis", is_flag=True, help="Write the database only, as for another machine.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
@click.pass_context
def node_removal(ctx: click.Context, node: str, no_chassis: bool, as_json: bool, dry_run: bool) -> None:
    """Remove what init-node made: the node's switch and its port on the router, and on the node its own port.

    It is refused while pods have ports on the switch, or the node has a gateway. external_ids of Open_vSwitch stay: they say
    where OVN is. A second run changes nothing. Exit code: as of init-node.
    """
    site, databases = open_databases(ctx)
    name = node_name_of(node or site.drivers.installation.name)
    changes = drop_node(site, databases, name, is_here=not no_chassis, dry_run=dry_run)
    _show(changes, as_json=as_json, dry_run=dry_run)


@click.command("remove-cluster", cls=NodeCommand, examples=("userspace-cni ovn remove-cluster",))
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
@click.pass_context
def cluster_removal(ctx: click.Context, as_json: bool, dry_run: bool) -> None:
    """Remove what init-cluster made, after nodes and gateways were removed.

    It is refused while one is there, or a load balancer of a Service. Exit code: as of init-cluster.
    """
    _, databases = open_databases(ctx)
    _show(remove_cluster(databases.northbound, WriteMode(give_time(), dry_run=dry_run)), as_json=as_json, dry_run=dry_run)


def _show(changes: Changes, *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        view.show_json({"changes": describe_changes(changes), "dry_run": dry_run})
    else:
        show_changes(changes, {}, dry_run=dry_run)
