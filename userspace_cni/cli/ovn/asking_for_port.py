"""The node's own port on its logical switch: asked for in the node's settings file, and made by the agent."""

from __future__ import annotations

from userspace_cni.base.errors import Unavailable
from userspace_cni.cli import view
from userspace_cni.cli.network.own_settings import replace_block
from userspace_cni.cli.site import Site
from userspace_cni.ovn.management_table import BY, management_link, management_table
from userspace_cni.ovn.topology import LogicalNode


def ask_for_port(site: Site, node: LogicalNode) -> bool:
    """Write what the node's own port is to be, and have the agent make it; whether it was another before.

    Raises CommandRefused and UserspaceError.
    """
    if not replace_block(site, "gateway", BY, management_table(node, site.settings.ovn_bridge)):
        return False
    try:
        site.client.network(reconcile=True)
    except Unavailable as error:
        view.note(f"the port {management_link(node.name)} of this node is made when an agent runs: {error}")
    return True
