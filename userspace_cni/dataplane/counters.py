"""Reads what the switch has counted at our ports, when it is asked for.

ovs-vswitchd answers itself, by OpenFlow, one request per bridge: 400 ports take it 1 ms, and are 45 kB. OVSDB has the same
numbers, up to five seconds old, beside dozens of others (Interface.statistics): there 400 ports cost ovsdb-server 70 ms and the
reader 50. No session monitors that column, which would keep the agent busy all day. So OVSDB is asked only where ovs-vswitchd is
out of reach: by one `select` (RFC 7047, 5.2.2) in the session that the process has.

It must never wait longer than its deadline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment.steps import OWNER
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import SwitchRefused, Unavailable
from userspace_cni.dataplane.openflow import messages
from userspace_cni.dataplane.openflow.management import Management
from userspace_cni.dataplane.ovsdb.client import Client

if TYPE_CHECKING:
    from userspace_cni.dataplane.ovsdb.session import Session

_OURS: Final = [["external_ids", "includes", ["map", [["owner", OWNER]]]]]
_COLUMNS: Final = ["name", "external_ids", "statistics"]


@dataclass(frozen=True)
class Counters:
    """The counters of one of our ports. `marks`: its external_ids; `statistics`: by the names of Interface.statistics in
    ovs-vswitchd.conf.db(5) (rx is what the switch received); a counter that this kind of port does not have is absent."""

    name: str
    marks: Mapping[str, str]
    statistics: Mapping[str, int]


def ask(client: Client, rundir: str, deadline: Deadline) -> list[Counters]:
    """The counters of the ports with our owner mark; `rundir`: where bridges have their management sockets.

    A resident client asks ovs-vswitchd; OVSDB where that is out of reach or speaks no version of OpenFlow with these counters.
    Raises Unavailable and SwitchRefused.
    """
    if client.resident and client.remote.startswith("unix:"):
        try:
            return _ask_bridges(client, rundir, deadline)
        except SwitchRefused:
            pass  # an administrator allows only other versions of OpenFlow
        except Unavailable as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
    return _ask_database(client, deadline)


def _ask_bridges(client: Client, rundir: str, deadline: Deadline) -> list[Counters]:
    from userspace_cni.dataplane.ovsdb.reads import counted_ports

    ports = client.standing().look(counted_ports)
    asked = [ask_bridge(f"{rundir}/{bridge}.mgmt", of, deadline) for bridge, of in ports.items()]
    return [each for group in asked for each in group]


def ask_bridge(path: str, ports: Mapping[int, tuple[str, Mapping[str, str]]], deadline: Deadline) -> list[Counters]:
    """The counters of these ports of the bridge whose management socket is `path`: names and marks by OpenFlow number.

    A port that has been deleted is left out. Raises Unavailable when there is no answer by the deadline, SwitchRefused when the
    bridge speaks no version of OpenFlow with these counters.
    """
    found: list[Counters] = []
    with Management(path, deadline, messages.COUNTED_VERSIONS) as bridge:
        xid = next(bridge.xids)
        bridge.send(messages.ask_counted(bridge.version, xid), deadline)
        last = False
        while not last:
            answer = bridge.receive(deadline)
            if answer.kind == messages.ERROR:
                raise messages.refusal(answer, f"counters at {path}")
            if answer.xid != xid:
                continue
            counted, last = messages.counted(answer)
            found += [Counters(*ports[number], statistics) for number, statistics in counted.items() if number in ports]
    return found


def _ask_database(client: Client, deadline: Deadline) -> list[Counters]:
    """The counters of every interface with our owner mark, those of other installations among them."""
    from userspace_cni.dataplane.ovsdb.reads import Select

    def select(session: Session) -> list[dict[str, Any]]:
        command = Select(session, "Interface", _OURS, _COLUMNS)
        session.transact([command], deadline)
        return command.rows

    return read(client.use(select, frozenset(), "reading counters", deadline))


def read(rows: list[dict[str, Any]]) -> list[Counters]:
    """The counters in rows of Interface as OVSDB writes them. Raises SwitchRefused for rows in another form."""
    try:
        return [Counters(row["name"], _map(row["external_ids"]), _map(row["statistics"])) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise SwitchRefused(f"OVSDB: reading counters: {str(rows)[:200]}", "is it the database of ovs-vswitchd?") from error


def _map(value: Any) -> dict[str, Any]:
    kind, pairs = value
    if kind != "map":
        raise ValueError(kind)
    return {key: item for key, item in pairs}  # noqa: C416 - dict() would accept items that are no pairs
