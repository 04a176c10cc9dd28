"""`nic-to-bridge`: a bridge with one NIC as uplink, for people who know that command of ovn-kubernetes' utilities.

It only writes a spec, into the settings file or into what lasts until the next boot, and has it met: there is no other way by
which a NIC gets onto a bridge. A spec that cannot be met is taken back, and what it took the place of is desired again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import click

from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.provider_networks import MoveAddresses, ProviderNetwork, require_possible
from userspace_cni.base.settings import load
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.name_completion import nic_names
from userspace_cni.cli.network import network_status, uplink_commands
from userspace_cni.cli.network.own_settings import append_table
from userspace_cni.cli.site import CommandRefused, NodeCommand, Site, open_site
from userspace_cni.network import commanded
from userspace_cni.network.spec_list import COMMANDS, SETTINGS
from userspace_cni.node.uplink_look import list_missing_links

_MOVES = {"no": "false", "yes": "true", "primary": '"primary"'}


@click.command(
    "nic-to-bridge",
    cls=NodeCommand,
    examples=(
        "userspace-cni nic-to-bridge eth1",
        "userspace-cni nic-to-bridge eth1 --persist",
    ),
)
@click.argument("nic", shell_complete=nic_names)
@click.option("--persist", is_flag=True, help="Write it into the settings file, so that it is there after a boot, too.")
@click.option(
    "--move-addresses",
    type=click.Choice(list(_MOVES)),
    default="yes",
    show_default=True,
    help="Whether the NIC's addresses move to the bridge; primary: also where it has the node's default route.",
)
@click.option("--bridge", default="", help="The bridge's name.  [default: br-NIC]")
@click.pass_context
def bridging_command(ctx: click.Context, nic: str, persist: bool, move_addresses: MoveAddresses, bridge: str) -> None:
    """Make a bridge with NIC as its uplink: the provider network NIC. Its addresses move to the bridge.

    Without --persist it lasts until `uplink remove NIC`, or until the node boots. Exit code: 0 when the node has it, 1 when it
    cannot have it: then the former spec counts again; 2 for wrong settings or arguments; 3 when something does not answer: if
    it is the agent, the spec stays. A NIC that the node does not have is refused, and nothing is written.
    """
    site = open_site(ctx)
    site.require_root("changing the node's network")
    asked = ProviderNetwork(nic, nic, move_addresses=move_addresses, bridge=bridge, said_by=commanded.SAID_BY)
    network = require_possible(asked)
    _require_nic(network, site)
    named = f'bridge = "{bridge}"\n' if bridge else ""
    table = f'[[provider_network]]\nname = "{nic}"\n{named}interface = "{nic}"\nmove_addresses = {_MOVES[move_addresses]}\n'
    if not persist:
        take_back = _command(site, nic, table)
    elif network in site.settings.provider_networks:  # a former call of this command wrote it
        take_back = _keep
    else:
        take_back = append_table(site, "provider_network", table)
    try:
        fresh = Site(load(site.environ), site.given, environ=site.environ) if persist else site
        ctx.call_on_close(fresh.close)
        status = uplink_commands.apply(network.name, fresh)
        if status["source"] != (SETTINGS if persist else COMMANDS):
            said_by = status["said_by"] or status["source"]
            raise CommandRefused(
                f"{nic} is desired by {said_by}, which takes precedence over this command: change it there", FOUND
            )
        if not status["ready"]:
            raise CommandRefused(f"{nic} cannot be the uplink of a bridge: {status['problem']}", FOUND)
    except uplink_commands.CommandUnanswered:
        raise  # the agent may be at it: taken back now, the spec would be undone while it is being met
    except (CommandRefused, UserspaceError):
        take_back()
        with suppress(UserspaceError):  # an agent that does not answer reads it later
            site.client.network(reconcile=True)
        raise
    if persist:
        commanded.remove(site.map_path(site.settings.run_dir), nic)  # one spec: the settings' stands in its place
    network_status.show({"specs": [status], "concerns": [], "objects": ""})


def _require_nic(network: ProviderNetwork, site: Site) -> None:
    """Refuse a NIC that this node does not have, before anything is written: an agent that is asked may answer late."""
    missing = list_missing_links(network, site.drivers.installation)
    if missing:
        raise CommandRefused(f"there is no NIC {view.join(missing)} on this node; ip link lists the NICs", FOUND)


def _keep() -> None:
    """What stood there before this command stays, whatever becomes of it."""


def _command(site: Site, nic: str, table: str) -> Callable[[], object]:
    """Ask for it until the next boot; returns what takes it back. Raises UserspaceError."""
    run_dir = site.map_path(site.settings.run_dir)
    boot_id = site.node.store.boot_id()
    others = any(each.network == COMMANDS and each.boot_id == boot_id for each in site.node.store.journal.node_records())
    former = commanded.add(run_dir, nic, table, others=others)
    return lambda: commanded.add(run_dir, nic, former) if former else commanded.remove(run_dir, nic)
