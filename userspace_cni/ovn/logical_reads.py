"""Reads the logical networks of ports from the northbound database. Only within `look`.

Other programs may have made them: no marks of ours are needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_interface
from typing import Any, Final

from userspace_cni.ovn.logical_networks import LogicalNetworks, LogicalRouter, LogicalSwitch
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.northbound_tables import ROUTER, ROUTER_PORT, STATIC_ROUTE, SWITCH, SWITCH_PORT
from userspace_cni.ovsdb.column_values import read_references, value_of

_EVERYWHERE: Final = ("0.0.0.0/0", "::/0")


def look_at_networks(session: NorthboundSession, ports: Iterable[str]) -> LogicalNetworks:
    """The switches that have these logical ports, and their routers. A port that no switch has is left out."""
    wanted, rows = frozenset(ports), session.tables[SWITCH_PORT].rows
    routers = {each: row for row in session.rows(ROUTER) for each in read_references(row, "ports")}
    ends = {value_of(row, "name"): (uuid, row) for uuid, row in session.tables[ROUTER_PORT].rows.items() if uuid in routers}
    switches: list[LogicalSwitch] = []
    joined: dict[str, Any] = {}
    switch_of: dict[str, str] = {}
    for switch in session.rows(SWITCH):
        own = [rows[each] for each in read_references(switch, "ports") if each in rows]
        named = {value_of(each, "name") for each in own} & wanted
        if not named:
            continue
        name = value_of(switch, "name")
        switch_of |= dict.fromkeys(named, name)
        far = (value_of(each, "options").get("router-port", "") for each in own if value_of(each, "type") == "router")
        found = sorted((value_of(routers[uuid], "name"), each) for each in far if each in ends for uuid, _ in [ends[each]])
        if found:
            router, end = found[0]
            joined[router] = routers[ends[end][0]]
            switches.append(LogicalSwitch(name, _subnets(ends[end][1]), router))
        else:
            switches.append(LogicalSwitch(name))
    return LogicalNetworks(
        tuple(sorted(switches, key=lambda each: each.name)),
        tuple(LogicalRouter(name, _next_hops(session, joined[name])) for name in sorted(joined)),
        switch_of,
    )


def _subnets(router_port: Any) -> tuple[str, ...]:
    found = []
    for text in value_of(router_port, "networks"):
        with suppress(ValueError):  # it is shown, not used
            found.append(str(ip_interface(text).network))
    return tuple(found)


def _next_hops(session: NorthboundSession, router: Any) -> tuple[str, ...]:
    rows = session.tables[STATIC_ROUTE].rows
    routes = [rows[each] for each in read_references(router, "static_routes") if each in rows]
    return tuple(sorted({value_of(each, "nexthop") for each in routes if value_of(each, "ip_prefix") in _EVERYWHERE}))
