"""What a node gets, and what is taken from it: rows of the northbound database, external_ids of its switch, and its own port in
the settings file.

All three are judged before the first is written, and one command at a time does it on a node. After a crash in between the same
command writes what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from userspace_cni.base.errors import Unavailable
from userspace_cni.cli import view
from userspace_cni.cli.network.own_settings import FileChange, FileLock, plan_block
from userspace_cni.cli.ovn.opened_databases import give_time
from userspace_cni.cli.site import Site
from userspace_cni.ovn.databases import OvnDatabases
from userspace_cni.ovn.desired_rows import Changes
from userspace_cni.ovn.management_table import BY, management_link, management_table
from userspace_cni.ovn.plan_writing import WriteMode
from userspace_cni.ovn.setting_up import remove_node
from userspace_cni.ovn.topology import LogicalNode, Subnet

RowWriter = Callable[[WriteMode], tuple[LogicalNode, Changes]]


@dataclass(frozen=True)
class SetUp:
    """What to do. `rows`: writes the database, or shows what it would write. `find_ids`: the external_ids to write beside those
    that the switch has; None where this machine is not the node: then its switch and its settings stay as they are.
    `services`: where Services are, which the node's own processes reach by its port.
    """

    rows: RowWriter
    find_ids: Callable[[Mapping[str, str]], Mapping[str, str]] | None
    dry_run: bool = False
    adopt: bool = False
    services: tuple[Subnet, ...] = ()


def set_up(site: Site, databases: OvnDatabases, asked: SetUp) -> tuple[LogicalNode, Changes, Mapping[str, str]]:
    """Do it; the node, and what was written of rows and external_ids, or would be. Raises CommandRefused and UserspaceError."""
    is_here = asked.find_ids is not None
    ids: Mapping[str, str] = {}
    with FileLock(site) if is_here and not asked.dry_run else nullcontext() as lock:
        node, changes = asked.rows(WriteMode(give_time(), dry_run=True, adopt=asked.adopt))
        if asked.find_ids is not None:
            ids = asked.find_ids(databases.read_ids(give_time()))
            change = _plan_port(site, node, asked.services)
            if lock is not None and change.text != change.former:
                lock.require()
                change.prove()
        if asked.dry_run:
            return node, changes, ids
        node, changes = asked.rows(WriteMode(give_time(), adopt=asked.adopt))
        if ids:
            databases.write_ids(ids, give_time())
        written = is_here and _plan_port(site, node, asked.services).write()
    if written:
        _tell_agent(site, node.name, is_made=node.management)
    return node, changes, ids


def _plan_port(site: Site, node: LogicalNode, services: tuple[Subnet, ...]) -> FileChange:
    """The settings file with the node's own port, or without it where the node has none. Raises as `plan_block`."""
    table = management_table(node, site.settings.ovn_bridge, services) if node.management else ""
    return plan_block(site, "gateway", BY, table)


def drop_node(site: Site, databases: OvnDatabases, name: str, *, is_here: bool, dry_run: bool) -> Changes:
    """Remove the node's rows, and where this machine is the node its port. Raises CommandRefused and UserspaceError."""
    with FileLock(site) if is_here and not dry_run else nullcontext() as lock:
        changes = remove_node(databases.northbound, name, WriteMode(give_time(), dry_run=True))
        change = plan_block(site, "gateway", BY, "") if is_here else None
        if dry_run:
            return changes
        if lock is not None and change is not None and change.text != change.former:
            lock.require()
            change.prove()
        changes = remove_node(databases.northbound, name, WriteMode(give_time()))
        written = change is not None and change.write()
    if written:
        _tell_agent(site, name, is_made=False)
    return changes


def _tell_agent(site: Site, node: str, *, is_made: bool) -> None:
    try:
        site.client.network(reconcile=True)
    except Unavailable as error:
        done = "made" if is_made else "removed"
        view.note(f"the port {management_link(node)} of this node is {done} when an agent runs: {error}")
