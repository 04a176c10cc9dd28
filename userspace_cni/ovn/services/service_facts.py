"""What Services' load balancers depend on in the northbound database, kept from the notices of a session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any, Final

from userspace_cni.base.subnets import Address, Cidr
from userspace_cni.ovn.gateways.gateway_notes import PHYSICAL_IPS
from userspace_cni.ovn.logical_switches import FoundSwitch, read_subnets
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.northbound_tables import LOAD_BALANCER_GROUP, ROUTER, ROUTER_PORT, SWITCH
from userspace_cni.ovn.services.balancer_rows import ServiceFacts, ServiceGateway
from userspace_cni.ovn.topology import CLUSTER_ROUTER, NODE_KEY, SUBNETS_KEY
from userspace_cni.ovsdb.column_values import value_of
from userspace_cni.ovsdb.database import ROW_UPDATE

_ROUTER: Final = "GR_"
"""Before the node's name: a gateway's router."""
_JOINED: Final = "rtoj-"
"""Before a router's name: its port on the switch `join`."""
_COLUMNS: Final = {
    SWITCH: {"name", "other_config", "external_ids"},
    ROUTER: {"name", "external_ids"},
    ROUTER_PORT: {"name", "networks"},
    LOAD_BALANCER_GROUP: {"name"},
}
"""The columns that count."""
_HOLDERS: Final = frozenset({LOAD_BALANCER_GROUP, SWITCH, ROUTER})


class ServiceFactsView:
    """`told` is for the session's notices, on its thread; all is called with its lock.

    `is_left`: what has which load balancers may have changed; who reads it resets it.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._session: NorthboundSession | None = None
        self._facts: ServiceFacts | None = None
        self.is_left = False

    def told(self, table: str, event: str, row: Any, former: Any) -> None:  # noqa: ARG002 - as all that follow a session
        """A row has changed: as `Index.change`."""
        changed = former._data.keys() if event == ROW_UPDATE else ()  # noqa: SLF001 - ovs.db.idl has no other list
        if table in _COLUMNS and (event != ROW_UPDATE or not _COLUMNS[table].isdisjoint(changed)):
            self._facts = None
        elif table in _HOLDERS and "load_balancer" in changed:
            self.is_left = True
        else:
            return
        self._on_change()

    def take(self, session: NorthboundSession) -> ServiceFacts:
        """What there is now; the same object as before where nothing has changed."""
        if self._facts is None or session is not self._session:
            self._session, self._facts = session, read_facts(session)
        return self._facts


def read_facts(session: NorthboundSession) -> ServiceFacts:
    """Read all of it. Only within the session's lock."""
    switches: dict[str, str] = {}
    subnets: dict[Cidr, None] = {}
    for row in session.rows(SWITCH):
        name, ids = value_of(row, "name"), value_of(row, "external_ids")
        if NODE_KEY in ids:
            switches[ids[NODE_KEY]] = name
        found = read_subnets(FoundSwitch(name, value_of(row, "other_config"), ids))
        subnets |= dict.fromkeys(each.network for each in found)
    gateways: dict[str, ServiceGateway] = {}
    owners: dict[Address, str] = {}
    for row in session.rows(ROUTER):
        name, ids = value_of(row, "name"), value_of(row, "external_ids")
        if CLUSTER_ROUTER.items() <= ids.items():
            subnets |= dict.fromkeys(_read(ids.get(SUBNETS_KEY, ""), ip_network))
        if PHYSICAL_IPS in ids:
            node = ids.get(NODE_KEY, name.removeprefix(_ROUTER))
            gateways[name] = ServiceGateway(node, tuple(_read(ids[PHYSICAL_IPS], ip_address)))
            owners |= dict.fromkeys(gateways[name].addresses, f"that of the gateway on node {node}")
    for row in session.rows(ROUTER_PORT):
        name = value_of(row, "name")
        for each in _read(",".join(value_of(row, "networks")), ip_interface):
            owners.setdefault(each.ip, f"that of the router port {name}")
            if name.startswith(_JOINED):
                subnets[each.network] = None
    groups = [value_of(row, "name") for row in session.rows(LOAD_BALANCER_GROUP)] if has_groups(session) else []
    return ServiceFacts(switches, gateways, frozenset(groups), owners, tuple(subnets))


def with_nodes(facts: ServiceFacts, nodes: Mapping[str, Iterable[Address]]) -> ServiceFacts:
    """The facts with whose the nodes' addresses are."""
    owners = {address: f"that of node {name}" for name, addresses in nodes.items() for address in addresses}
    return replace(facts, owners={**facts.owners, **owners})


def has_groups(session: NorthboundSession) -> bool:
    """Whether the server knows groups of load balancers."""
    return bool(session.replica.has(LOAD_BALANCER_GROUP, "name"))


def _read(text: str, read: Callable[[str], Any]) -> Iterator[Any]:
    """What the text has between commas, without what cannot be read."""
    for each in text.split(","):
        try:
            yield read(each.strip())
        except ValueError:
            continue
