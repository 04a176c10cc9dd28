"""How the load balancers that there are differ from those that Services are to have: for a command, which looks once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.base.findings import Finding
from userspace_cni.base.subnets import Address
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.northbound_tables import LOAD_BALANCER, LOAD_BALANCER_GROUP, ROUTER, SWITCH
from userspace_cni.ovn.row_view import scope_of
from userspace_cni.ovn.services.balancer_rows import Balancer
from userspace_cni.ovn.services.balancer_writing import (
    SERVICE_SCOPE,
    HeldBalancers,
    find_differences,
    list_claims,
    mark_of,
    service_of_mark,
)
from userspace_cni.ovn.services.service_book import ServiceBook
from userspace_cni.ovn.services.service_facts import read_facts, with_nodes
from userspace_cni.ovn.services.service_objects import (
    ServedService,
    ServiceSlice,
    keep_node_addresses,
    keep_service,
    keep_slice,
)
from userspace_cni.ovsdb.column_values import read_references, value_of

if TYPE_CHECKING:
    from userspace_cni.node.installation import Installation

_SHOWN: Final = 3
_COLUMN: Final = "load_balancer"


@dataclass(frozen=True)
class ListedServices:
    """What load balancers follow from, as one list of each said."""

    services: Mapping[str, ServedService]
    slices: Mapping[str, ServiceSlice]
    nodes: Mapping[str, tuple[Address, ...]]


@dataclass(frozen=True)
class BalancerCounts:
    """How many load balancers and VIPs the database has, and how many of these VIPs have no endpoint."""

    balancers: int
    vips: int
    empty: int


def count_balancers(session: NorthboundSession) -> BalancerCounts:
    """Only within `look`."""
    targets = [each for row in session.rows(LOAD_BALANCER) for each in value_of(row, "vips").values()]
    return BalancerCounts(len(session.tables[LOAD_BALANCER].rows), len(targets), targets.count(""))


def list_services(installation: Installation) -> ListedServices | None:
    """Ask the API server for all of them; None without credentials for it. Raises Unavailable, ObjectRefused."""
    from userspace_cni.base.errors import NoSuchResource
    from userspace_cni.kube.object_requests import Objects
    from userspace_cni.kube.resources import ENDPOINT_SLICES, FORMER_ENDPOINT_SLICES, NODES, SERVICES

    if not installation.has_account:
        return None
    objects = Objects(installation.clients.of("").session)
    try:
        slices = objects.list(ENDPOINT_SLICES)
    except NoSuchResource:
        slices = objects.list(FORMER_ENDPOINT_SLICES)
    return ListedServices(
        _keep(objects.list(SERVICES), keep_service),
        _keep(slices, keep_slice),
        _keep(objects.list(NODES), keep_node_addresses),
    )


def find_service_faults(session: NorthboundSession, listed: ListedServices) -> Sequence[Finding]:
    """What of Services is not as it is to be; one finding of a kind. Only within `look`."""
    there: dict[str, list[Any]] = {}
    for row in session.rows(LOAD_BALANCER):
        if (scope := scope_of(row)).startswith(SERVICE_SCOPE):
            there.setdefault(scope, []).append(row)
    book = ServiceBook(list_claims(there))
    book.take_facts(with_nodes(read_facts(session), listed.nodes))
    book.take_services(listed.services)
    book.take_slices(listed.slices)
    book.ask(map(service_of_mark, there))
    held, rows = HeldBalancers(session), session.tables[LOAD_BALANCER].rows
    faults = {
        service: said
        for service, balancers in sorted(book.settle().items())
        if (said := list(_compare(balancers, there.get(mark_of(service), ()), rows, held)))
    }
    found = []
    if faults:
        first, said = next(iter(faults.items()))
        message = f"{len(faults)} of {len(listed.services)} Services are not as they are to be, as {first}: {said[0]}"
        remedy = "does a controller run, with ovn_nb and ovn_services? it writes what differs within a second"
        found.append(Finding("ovn-service-differs", "error", "Services", message, remedy))
    if book.lacking:
        shown = "; ".join(sorted(book.lacking.values())[:_SHOWN])
        found.append(Finding("ovn-service-lacking", "note", "Services", f"{len(book.lacking)} are not served whole: {shown}"))
    return found


def find_shared_vips(session: NorthboundSession) -> Sequence[Finding]:
    """The VIPs that two load balancers of one switch or router have: which of them answers is not known. Only within `look`."""
    rows = session.tables[LOAD_BALANCER].rows
    groups = session.tables[LOAD_BALANCER_GROUP].rows if session.replica.has(LOAD_BALANCER_GROUP, _COLUMN) else {}
    twice: set[str] = set()
    for table in (SWITCH, ROUTER):
        for holder in session.rows(table):
            ids = read_references(holder, _COLUMN)
            for group in read_references(holder, "load_balancer_group") if groups else ():
                ids |= read_references(groups[group], _COLUMN) if group in groups else set()
            seen = Counter(
                f"{next(iter(value_of(rows[each], 'protocol')), 'tcp')} {vip}"
                for each in ids
                if each in rows
                for vip in value_of(rows[each], "vips")
            )
            twice |= {vip for vip, number in seen.items() if number > 1}
    if not twice:
        return []
    more = f" and {len(twice) - _SHOWN} more" if len(twice) > _SHOWN else ""
    message = f"two load balancers of one switch or router have {', '.join(sorted(twice)[:_SHOWN])}{more}"
    remedy = "ovn-nbctl list Load_Balancer shows whose they are: delete the one that is not in use"
    return [Finding("ovn-vip-twice", "warning", "load balancers", message, remedy, why="it is not known which one OVN uses")]


def _compare(balancers: Iterable[Balancer], there: Iterable[Any], rows: Mapping[Any, Any], held: HeldBalancers) -> Iterator[str]:
    wanted = {each.key.row_id: each for each in balancers}
    for row_id, balancer in wanted.items():
        row = rows.get(row_id)
        if row is None:
            yield f"{balancer.key} is missing"
        elif changed := find_differences(balancer, row, certain=True):
            yield f"{balancer.key} differs in {', '.join(sorted(changed))}"
        elif held.list_misplaced([balancer]):
            yield f"{balancer.key} is not where it is to be: {', '.join(map(str, balancer.holders[:_SHOWN]))}"
    for row in there:
        if row.uuid not in wanted:
            yield f"{LOAD_BALANCER} {value_of(row, 'name')} is not asked for"


def _keep(things: Iterable[Mapping[str, Any]], keep: Callable[[Mapping[str, Any]], Any]) -> dict[str, Any]:
    found = {}
    for each in things:
        metadata = each["metadata"]
        namespace = metadata.get("namespace")
        found[f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])] = keep(each)
    return found
