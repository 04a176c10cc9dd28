"""`ovn init-gateway` and `ovn remove-gateway`."""

from __future__ import annotations

from typing import Any

import click

from userspace_cni.cli import view
from userspace_cni.cli.name_completion import bridge_names, nic_names
from userspace_cni.cli.ovn.gateway_writing import AskedGone, AskedOptions, WrittenGateway, drop_gateway, set_gateway
from userspace_cni.cli.ovn.opened_databases import describe_changes, open_databases, show_changes
from userspace_cni.cli.ovn.way_options import ways
from userspace_cni.cli.site import NodeCommand


@click.command(
    "init-gateway",
    cls=NodeCommand,
    examples=(
        "userspace-cni ovn init-gateway --bridge br-ex --ip 192.0.2.10/24 --next-hop 192.0.2.1",
        "userspace-cni ovn init-gateway --distributed --chassis n1,n2 --bridge br-ex --ip 192.0.2.30/24 --next-hop 192.0.2.1",
    ),
)
@click.option("--node", default="", help="The node's name.  [default: this node's]")
@click.option("--bridge", default="", shell_complete=bridge_names, help="The bridge that leads outside, as br-ex.")
@click.option("--interface", default="", shell_complete=nic_names, help="Or its NIC, which is on a bridge already.")
@click.option("--ip", required=True, metavar="IP/LEN[,IP6/LEN]", help="The gateway's addresses outside.")
@click.option("--next-hop", default="", metavar="IP[,IP6]", help="The router outside.  [default: that of the bridge]")
@click.option("--snat/--no-snat", default=True, show_default=True, help="Whether pods leave with the gateway's address.")
@click.option("--source-subnets", default="", metavar="CIDR,…", help="Subnets of further pods that leave by it.")
@click.option("--default", "is_default", is_flag=True, help="Pods of nodes without a gateway leave by it.  [default: the first]")
@click.option("--shared", is_flag=True, help="The addresses are the node's own, on the bridge.")
@click.option("--distributed", is_flag=True, help="A gateway of no node: the first of --chassis that lives has it.")
@click.option("--chassis", default="", metavar="NAME,…", help="The chassis, by system-id.  [default: this node's]")
@click.option("--network", default="", help="What OVN calls the network outside.  [default: as it does, else as the bridge]")
@click.option("--vlan", default=0, metavar="ID", help="The VLAN outside.")
@click.option("--mtu", type=int, help="Of the largest packet that pods take, 0 for any.  [default: what tunnels carry]")
@click.option("--router", default="", help="The router, where there are several clusters'.")
@click.option("--no-chassis", is_flag=True, help="Write the database only, as for another machine: with --chassis.")
@ways
@click.pass_context
def gateway_command(ctx: click.Context, /, *, as_json: bool, **given: Any) -> None:
    """Make a gateway, by which pods reach the network outside, and nodes' ports are reached from there.

    It is a router with an address outside, behind a bridge of this node. A node's pods leave by their node's gateway, and those
    of other nodes by the default one. The rows are one transaction; then external_ids:ovn-bridge-mappings of Open_vSwitch gets
    the bridge, beside those that are there. With --distributed run it on each of the chassis. The second run changes nothing, a
    changed option changes what is ours. Exit code: 0 when it is there, 1 when something is in the way or lacking, 2 for wrong
    options or settings, 3 when a database or the switch does not answer.
    """
    site, databases = open_databases(ctx)
    written = set_gateway(site, databases, AskedOptions(**given))
    _show(written, as_json=as_json, dry_run=given["dry_run"])


@click.command("remove-gateway", cls=NodeCommand, examples=("userspace-cni ovn remove-gateway",))
@click.option("--node", default="", help="The node's name.  [default: this node's]")
@click.option("--distributed", is_flag=True, help="The gateway of no node.")
@click.option("--router", default="", help="The router, where there are several clusters'.")
@click.option("--no-chassis", is_flag=True, help="Write the database only, as for another machine.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
@click.pass_context
def remove_command(ctx: click.Context, /, *, as_json: bool, **given: Any) -> None:
    """Remove what init-gateway made: its rows, and the bridge's mapping where no other gateway needs it.

    Another gateway becomes the default one where it was. A second run changes nothing. Exit code: as of init-gateway.
    """
    site, databases = open_databases(ctx)
    written = drop_gateway(site, databases, AskedGone(**given))
    _show(written, as_json=as_json, dry_run=given["dry_run"])


def _show(written: WrittenGateway, *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        view.show_json(
            {
                "gateway": written.name,
                "changes": describe_changes(written.changes),
                "external_ids": dict(written.ids),
                "dry_run": dry_run,
            }
        )
    else:
        show_changes(written.changes, written.ids, dry_run=dry_run)
