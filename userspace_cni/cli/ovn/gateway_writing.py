"""What a gateway gets: rows of the northbound database, and on its chassis the mapping of the bridge that leads outside.

All is judged before the first is written, and one command at a time does it on a node. After a crash in between the same command
writes what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final

from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND, USAGE
from userspace_cni.cli.network.own_settings import FileLock
from userspace_cni.cli.ovn.opened_databases import give_time
from userspace_cni.cli.site import CommandRefused, Site
from userspace_cni.ovn.chassis_ids import SYSTEM_ID
from userspace_cni.ovn.databases import OvnDatabases
from userspace_cni.ovn.desired_rows import Changes
from userspace_cni.ovn.gateways.bridge_mappings import choose_network, plan_mappings
from userspace_cni.ovn.gateways.gateway_notes import AskedGateway
from userspace_cni.ovn.gateways.gateway_setup import DISTRIBUTED, WishedGateway, init_gateway, remove_gateway
from userspace_cni.ovn.gateways.gateway_values import (
    chassis_names,
    outside_addresses,
    read_next_hops,
    read_source_subnets,
    require_mtu,
    require_network,
    require_vlan,
)
from userspace_cni.ovn.gateways.outside_bridges import OutsideBridge, OutsideLook, require_own_address
from userspace_cni.ovn.plan_writing import WriteMode
from userspace_cni.ovn.topology_values import node_name_of

RowWriter = Callable[[WriteMode], tuple[Sequence[AskedGateway], Changes]]
_TUNNEL: Final = "ovn-encap-ip"


@dataclass(frozen=True)
class AskedOptions:
    """The options of `init-gateway`, as they were given."""

    ip: str
    next_hop: str = ""
    node: str = ""
    bridge: str = ""
    interface: str = ""
    snat: bool = True
    source_subnets: str = ""
    is_default: bool = False
    shared: bool = False
    distributed: bool = False
    chassis: str = ""
    network: str = ""
    vlan: int = 0
    mtu: int | None = None
    router: str = ""
    no_chassis: bool = False
    adopt: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class AskedGone:
    """The options of `remove-gateway`."""

    node: str = ""
    distributed: bool = False
    router: str = ""
    no_chassis: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class WrittenGateway:
    """What a command has written, or would have: rows, and external_ids of this node's switch."""

    name: str
    changes: Changes
    ids: Mapping[str, str]


def set_gateway(site: Site, databases: OvnDatabases, given: AskedOptions) -> WrittenGateway:
    """Make the gateway. Raises CommandRefused and UserspaceError."""
    _require_possible(given)
    asked = _read(_name(site, given.node, distributed=given.distributed), given)
    if given.no_chassis:
        asked = replace(asked, network=require_network(given.network or given.bridge, "--network"), bridge=given.bridge)
        _, changes = _rows(databases, asked, given)(WriteMode(give_time(), given.dry_run, given.adopt))
        return WrittenGateway(asked.name, changes, {})
    with nullcontext() if given.dry_run else FileLock(site):
        ids = databases.read_ids(give_time())
        own = ids.get(SYSTEM_ID, "")
        if not own:
            raise CommandRefused("this machine is no chassis of OVN: userspace-cni ovn init-node makes it one", FOUND)
        root, netns = site.drivers.installation.root, site.settings.switch_netns
        look = OutsideLook(site.drivers.switch.ports.client, netns, root, give_time())
        bridge = look.find_bridge(given.bridge, given.interface)
        asked = _complete(asked, given, bridge, ids)
        if given.mtu is None and (tunnel := ids.get(_TUNNEL, "")):
            asked = replace(asked, mtu=look.find_mtu(tunnel))
        is_here = own in asked.chassis
        if is_here:
            require_own_address(asked, bridge)
        else:
            view.note(f"this machine is chassis {own}, and the gateway is on {view.join(asked.chassis)}: run this there, too")
        rows = _rows(databases, asked, given)
        every, changes = rows(WriteMode(give_time(), dry_run=True, adopt=given.adopt))
        added = {asked.network: bridge.name} if is_here and not asked.shared else {}
        wanted = plan_mappings(ids, _needed(every, own), added)
        if not given.dry_run:
            _, changes = rows(WriteMode(give_time(), adopt=given.adopt))
            _write_ids(databases, wanted)
    return WrittenGateway(asked.name, changes, wanted)


def drop_gateway(site: Site, databases: OvnDatabases, given: AskedGone) -> WrittenGateway:
    """Remove the gateway. Raises CommandRefused and UserspaceError."""
    name = _name(site, given.node, distributed=given.distributed)
    with nullcontext() if given.dry_run or given.no_chassis else FileLock(site):
        ids = {} if given.no_chassis else databases.read_ids(give_time())
        left, changes = remove_gateway(databases.northbound, name, WriteMode(give_time(), dry_run=given.dry_run), given.router)
        wanted = plan_mappings(ids, _needed(left, ids.get(SYSTEM_ID, "")), {})
        if not given.dry_run:
            _write_ids(databases, wanted)
    return WrittenGateway(name, changes, wanted)


def _name(site: Site, node: str, *, distributed: bool) -> str:
    if distributed:
        return DISTRIBUTED
    name = node_name_of(node or site.drivers.installation.name)
    if name == DISTRIBUTED:
        raise CommandRefused(f"a node called {name} can have no gateway: that is what the one of no node is called", USAGE)
    return name


def _require_possible(given: AskedOptions) -> None:
    """Raise CommandRefused for options that exclude or need each other."""
    if not (given.bridge or given.interface or (given.no_chassis and given.network)):
        raise CommandRefused("give the bridge that leads outside: --bridge, or its NIC: --interface", USAGE)
    if given.distributed and not given.chassis:
        raise CommandRefused("--distributed needs --chassis: the chassis that can have it", USAGE)
    if given.distributed and (given.shared or given.node):
        raise CommandRefused(f"--distributed is of no node: --{'shared' if given.shared else 'node'} does not go with it", USAGE)
    if given.no_chassis and given.shared:
        raise CommandRefused("--shared needs the bridge's MAC: run it on the node, without --no-chassis", USAGE)
    if given.no_chassis and not given.next_hop:
        raise CommandRefused("--no-chassis needs --next-hop: the router outside", USAGE)
    if given.no_chassis and not given.chassis:
        raise CommandRefused("--no-chassis needs --chassis: the gateway's", USAGE)
    if given.shared and given.vlan:
        raise CommandRefused("--vlan does not go with --shared: the bridge's own port has no tag", USAGE)
    if "," in given.chassis and not given.distributed:
        raise CommandRefused("--chassis names several: only a gateway with --distributed has them", USAGE)


def _read(name: str, given: AskedOptions) -> AskedGateway:
    """What the options say alone; no next hops where none are given. Raises InvalidConfig."""
    outside = outside_addresses(given.ip, "--ip")
    return AskedGateway(
        name,
        chassis_names(given.chassis, "--chassis") if given.chassis else (),
        outside,
        read_next_hops(given.next_hop, "--next-hop", outside) if given.next_hop else (),
        network=require_network(given.network, "--network") if given.network else "",
        vlan=require_vlan(given.vlan, "--vlan"),
        snat=given.snat,
        source_subnets=read_source_subnets(given.source_subnets, "--source-subnets") if given.source_subnets else (),
        mtu=require_mtu(given.mtu or 0, "--mtu"),
        distributed=given.distributed,
    )


def _complete(asked: AskedGateway, given: AskedOptions, bridge: OutsideBridge, ids: Mapping[str, str]) -> AskedGateway:
    """With what this node says of it. Raises CommandRefused."""
    if given.shared and not bridge.mac:
        raise CommandRefused(f"bridge {bridge.name} has no link of its own: ovs-vsctl get Interface {bridge.name} error", FOUND)
    text = ",".join(bridge.next_hop(each.version) for each in asked.addresses)
    if not (asked.next_hops or text.strip(",")):
        raise CommandRefused(f"--next-hop is missing: bridge {bridge.name} has no default route", USAGE)
    return replace(
        asked,
        next_hops=asked.next_hops or read_next_hops(text.strip(","), "the default route", asked.addresses),
        chassis=asked.chassis or (ids[SYSTEM_ID],),
        network=asked.network or require_network(choose_network(bridge.name, ids), "--network"),
        bridge="" if given.distributed else bridge.name,
        shared=bridge.mac if given.shared else "",
    )


def _rows(databases: OvnDatabases, asked: AskedGateway, given: AskedOptions) -> RowWriter:
    wish = WishedGateway(asked, given.router, given.is_default or given.distributed)
    return lambda mode: init_gateway(databases.northbound, wish, mode)


def _needed(gateways: Sequence[AskedGateway], chassis: str) -> set[str]:
    """The networks outside to which the chassis has to lead."""
    return {each.network for each in gateways if chassis in each.chassis and not each.shared}


def _write_ids(databases: OvnDatabases, ids: Mapping[str, str]) -> None:
    if ids:
        databases.write_ids(ids, give_time())
