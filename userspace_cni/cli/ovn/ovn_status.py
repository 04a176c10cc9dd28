"""`ovn status` and `ovn check`: a look at both databases and at this node's switch. They write nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.base.findings import Finding
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.ovn.opened_databases import give_time, open_databases, read_addresses
from userspace_cni.cli.site import NodeCommand, Site
from userspace_cni.diagnosis import rendering
from userspace_cni.ovn.databases import OvnDatabases
from userspace_cni.ovn.gateways.gateway_notes import AskedGateway
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.ovn_facts import ChassisFact, NorthFacts, look_north, look_south
from userspace_cni.ovn.ovn_findings import find_gateway_faults, find_network_faults, find_node_faults
from userspace_cni.ovn.services.service_check import (
    count_balancers,
    find_service_faults,
    find_shared_vips,
    list_services,
)

_KEYS: Final = {each: each for each in ("name", "severity", "subject", "message", "remedy", "why")}
_NODES: Final = ("NODE", "SUBNETS", "PORTS", "UP")
_GATEWAYS: Final = ("GATEWAY", "CHASSIS", "ADDRESSES", "NEXT HOPS", "SNAT")
_CHASSIS: Final = ("CHASSIS", "HOSTNAME", "TUNNELS", "PORTS")


@click.command("status", cls=NodeCommand, examples=("userspace-cni ovn status",))
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def status_command(ctx: click.Context, as_json: bool) -> None:
    """Show the cluster's router, its nodes and their logical ports, the gateways, and the chassis.

    Exit code: 0, 1 where several routers are marked as the cluster's, 2 for wrong settings, 3 when a database does not answer.
    """
    _, databases = open_databases(ctx)
    north, chassis = look(databases)
    balancers = databases.northbound.read(
        count_balancers, frozenset(), "counting load balancers", give_time(), enough=lambda _: False
    )
    if as_json:
        view.show_json({**describe(databases, north, chassis), "load_balancers": asdict(balancers)})
        return
    cluster = north.cluster
    joins = [str(each) for each in cluster.joins.get(f"rtoj-{cluster.router}", ())]
    configurations = " ".join(f"{name}={number}" for name, number in north.configurations.items())
    view.show_facts(
        [
            ("northbound", f"{databases.northbound_remote} ({configurations})"),
            ("southbound", databases.southbound_remote),
            ("router", cluster.router or "none"),
            ("subnets", view.join([*map(str, cluster.subnets)], "unknown")),
            ("join", view.join(joins, "none")),
            ("load balancers", f"{balancers.balancers} with {balancers.vips} VIPs, {balancers.empty} of them without endpoints"),
        ]
    )
    ends = [(each, view.join([" ".join(end) for end in each.ends])) for each in chassis]
    tables = (
        (_NODES, [_node_row(name, north) for name in sorted(cluster.nodes)]),
        (_GATEWAYS, [_gateway_row(each) for each in sorted(north.gateways, key=lambda each: each.name)]),
        (_CHASSIS, [[each.name, each.hostname, tunnels, str(each.ports)] for each, tunnels in ends]),
    )
    for heading, rows in tables:
        if rows:
            click.echo()
            view.show_table(heading, rows)


@click.command("check", cls=NodeCommand, examples=("userspace-cni ovn check",))
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def check_command(ctx: click.Context, as_json: bool) -> None:
    """Report rows that are missing or differ, names that two rows have, chassis that are gone, and what this node lacks.

    Exit code: 0 when there is nothing but notes, 1 for findings, 2 for wrong settings, 3 when a database does not answer.
    """
    site, databases = open_databases(ctx)
    north, chassis = look(databases)
    findings = [*find_network_faults(north, chassis)]
    try:
        findings += find_node_faults(databases.ids, chassis, read_addresses(site))
        findings += find_gateway_faults(databases.ids, north.gateways)
    except Unavailable as error:
        view.note(f"this node's switch cannot be asked, and is left out: {error}")
    findings += _find_service_faults(site, databases)
    if as_json:
        view.show_json({"findings": [rendering.as_json(each, _KEYS) for each in findings]})
    else:
        view.show_findings(findings)
        view.note_checked(f"OVN at {databases.northbound_remote}", findings, ())
    if any(each.severity in ("error", "warning") for each in findings):
        ctx.exit(FOUND)


def _find_service_faults(site: Site, databases: OvnDatabases) -> Sequence[Finding]:
    """What of load balancers is wrong; of Services where there is an account of the API server, else with a note."""
    what = "comparing Services with OVN's northbound database"
    found = databases.northbound.read(find_shared_vips, frozenset(), what, give_time(), enough=lambda _: False)
    if not site.settings.ovn_services:
        return found
    try:
        listed = list_services(site.drivers.installation)
    except UserspaceError as error:
        view.note(f"Services are left out: {error}")
        return found
    if listed is None:
        view.note("Services are not shown: there is no access to the API server (setting kubeconfig)")
        return found

    def look(session: NorthboundSession) -> Sequence[Finding]:
        return find_service_faults(session, listed)

    return [*found, *databases.northbound.read(look, frozenset(), what, give_time(), enough=lambda _: False)]


def look(databases: OvnDatabases) -> tuple[NorthFacts, tuple[ChassisFact, ...]]:
    """What both databases say now. Raises Unavailable."""
    north = databases.northbound.read(
        look_north, frozenset(), "looking at OVN's northbound database", give_time(), enough=lambda _: False
    )
    south = databases.southbound.read(
        look_south, frozenset(), "looking at OVN's southbound database", give_time(), enough=lambda _: False
    )
    return north, south


def describe(databases: OvnDatabases, north: NorthFacts, chassis: Sequence[ChassisFact]) -> dict[str, Any]:
    """The status as JSON has it."""
    cluster = north.cluster
    return {
        "northbound": {"remote": databases.northbound_remote, **north.configurations},
        "southbound": {"remote": databases.southbound_remote},
        "router": cluster.router,
        "subnets": [*map(str, cluster.subnets)],
        "joins": {name: [*map(str, each)] for name, each in cluster.joins.items()},
        "nodes": [{"name": each.name, "subnets": [*map(str, each.subnets)]} for each in cluster.nodes.values()],
        "gateways": [
            {
                "name": each.name,
                "chassis": [*each.chassis],
                "addresses": [*map(str, each.addresses)],
                "next_hops": [*map(str, each.next_hops)],
                "network": each.network,
                "snat": each.snat,
                "source_subnets": [*map(str, each.source_subnets)],
                "shared": bool(each.shared),
                "distributed": each.distributed,
            }
            for each in north.gateways
        ],
        "ports": [
            {"name": each.name, "switch": each.switch, "addresses": [*each.addresses], "up": each.up} for each in north.ports
        ],
        "chassis": [
            {"name": each.name, "hostname": each.hostname, "tunnels": [list(end) for end in each.ends], "ports": each.ports}
            for each in chassis
        ],
    }


def _gateway_row(gateway: AskedGateway) -> list[str]:
    addresses, hops = ([*map(str, each)] for each in (gateway.addresses, gateway.next_hops))
    return [gateway.name, view.join([*gateway.chassis]), view.join(addresses), view.join(hops), "yes" if gateway.snat else "no"]


def _node_row(name: str, north: NorthFacts) -> list[str]:
    ports = [each for each in north.ports if each.switch == name]
    subnets = view.join([*map(str, north.cluster.nodes[name].subnets)], "none")
    return [name, subnets, str(len(ports)), str(sum(each.up is True for each in ports))]
