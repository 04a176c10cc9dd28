"""Reads what the switch has counted at our ports, when it is asked for.

ovs-vswitchd answers itself, by OpenFlow, one request per bridge: 400 ports take it 1 ms, and are 45 kB. OVSDB has the same
numbers, up to five seconds old, beside dozens of others (Interface.statistics): there 400 ports cost ovsdb-server 70 ms and the
reader 50. No session monitors that column, which would keep the agent busy all day. So OVSDB is asked only where ovs-vswitchd is
out of reach: by one `select` (RFC 7047, 5.2.2) in the session that the process has.

It must never wait longer than its deadline.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment.steps import OWNER, is_attached
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import SwitchRefused, Unavailable
from userspace_cni.base.switch_bridges import FrameCounts
from userspace_cni.switch.openflow import openflow_messages
from userspace_cni.switch.openflow.management import Management
from userspace_cni.switch.ovsdb.rows.qos_row import POLICER
from userspace_cni.switch.ovsdb.switch_database import SwitchClient
from userspace_cni.switch.vswitchd import Daemon

if TYPE_CHECKING:
    from userspace_cni.switch.ovsdb.rows.port_row import LimitedPort
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession

_OURS: Final = [["external_ids", "includes", ["map", [["owner", OWNER]]]]]
_TX_ERRORS: Final = re.compile(r"^ *tx_errors: (\d+)$", re.MULTILINE)
"""In the answer to qos/show: what the queue has dropped (sent too much, or its qdisc was full)."""
_COLUMNS: Final = ["name", "external_ids", "statistics"]


@dataclass(frozen=True)
class Counters:
    """The counters of one of our ports. `marks`: its external_ids; `statistics`: by the names of Interface.statistics in
    ovs-vswitchd.conf.db(5) (rx is what the switch received); a counter that this kind of port does not have is absent.
    `of_now`: whether ovs-vswitchd itself said them; OVSDB's are up to `stats-update-interval` old."""

    name: str
    marks: Mapping[str, str]
    statistics: Mapping[str, int]
    of_now: bool = True


@dataclass(frozen=True)
class LimitDrops:
    """The frames that the limits of one of our ports have dropped; None where it has no limit in that direction."""

    name: str
    marks: Mapping[str, str]
    to_pod: int | None
    from_pod: int | None


def ask(client: SwitchClient, rundir: str, deadline: Deadline, *, others: bool = False) -> list[Counters]:
    """The counters of the ports with our owner mark; `rundir`: where bridges have their management sockets. `others`: with every
    other interface, too, where ovs-vswitchd is asked.

    A resident client asks ovs-vswitchd; OVSDB where that is out of reach or speaks no version of OpenFlow with these counters.
    Raises Unavailable and SwitchRefused.
    """
    if client.resident and client.remote.startswith("unix:"):
        try:
            return _ask_bridges(client, rundir, deadline, others=others)
        except SwitchRefused:
            pass  # an administrator allows only other versions of OpenFlow
        except Unavailable as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
    return _ask_database(client, deadline)


def _ask_bridges(client: SwitchClient, rundir: str, deadline: Deadline, *, others: bool) -> list[Counters]:
    from userspace_cni.switch.ovsdb.bridge_reads import list_numbered
    from userspace_cni.switch.ovsdb.switch_reads import list_counted_ports

    ports = client.require_session().look(list_numbered if others else list_counted_ports)
    asked = [ask_bridge(f"{rundir}/{bridge}.mgmt", of, deadline) for bridge, of in ports.items()]
    return [each for group in asked for each in group]


def ask_all(client: SwitchClient, rundir: str, deadline: Deadline) -> dict[str, FrameCounts]:
    """The counters of every interface that ovs-vswitchd has open, of other programs too, by name. Of a resident client.

    A bridge that does not answer by the deadline, or is deleted meanwhile, is left out. Raises Unavailable without a session.
    """
    from userspace_cni.switch.ovsdb.bridge_reads import list_numbers

    found: dict[str, FrameCounts] = {}
    for bridge, names in client.require_session().look(list_numbers).items():
        with suppress(Unavailable, SwitchRefused):
            counted = ask_bridge(f"{rundir}/{bridge}.mgmt", {number: (name, {}) for number, name in names.items()}, deadline)
            at = time.monotonic()
            found |= {each.name: FrameCounts(at, each.statistics) for each in counted}
    return found


def ask_bridge(path: str, ports: Mapping[int, tuple[str, Mapping[str, str]]], deadline: Deadline) -> list[Counters]:
    """The counters of these ports of the bridge whose management socket is `path`: names and marks by OpenFlow number.

    A port that has been deleted is left out. Raises Unavailable when there is no answer by the deadline, SwitchRefused when the
    bridge speaks no version of OpenFlow with these counters.
    """
    with Management(path, deadline, openflow_messages.COUNTED_VERSIONS) as bridge:
        answers = bridge.collect(openflow_messages.ask_counters, openflow_messages.read_counters, "counters", deadline)
    counted = ((number, statistics) for answer in answers for number, statistics in answer.items())
    return [Counters(*ports[number], statistics) for number, statistics in counted if number in ports]


def _ask_database(client: SwitchClient, deadline: Deadline) -> list[Counters]:
    """The counters of every interface with our owner mark, those of other installations among them."""
    from userspace_cni.ovsdb.reads import Select

    def select(session: SwitchSession) -> list[dict[str, Any]]:
        command = Select(session, "Interface", _OURS, _COLUMNS)
        session.transact([command], deadline)
        return command.rows

    found = read(client.use(select, frozenset(), "reading counters", deadline))
    return [each for each in found if is_attached(each.marks)]


def read_statistics(client: SwitchClient, ports: Collection[str], deadline: Deadline) -> Mapping[str, Mapping[str, int]]:
    """Interface.statistics of the ports of these names, which has the causes of drops, too. One request for all.

    Raises Unavailable and SwitchRefused.
    """
    from userspace_cni.ovsdb.reads import Select

    def select(session: SwitchSession) -> list[dict[str, Any]]:
        commands = [Select(session, "Interface", [["name", "==", name]], _COLUMNS) for name in ports]
        session.transact(commands, deadline)
        return [row for command in commands for row in command.rows]

    rows = client.use(select, frozenset(), "reading statistics", deadline) if ports else []
    return {each.name: each.statistics for each in read(rows)}


def ask_drops(client: SwitchClient, daemon: Daemon, deadline: Deadline) -> list[LimitDrops]:
    """The frames that limits have dropped, of a resident client. Only limited ports are asked for.

    OpenFlow has none of these numbers. What policers count is in OVSDB, up to five seconds late; ovs-vswitchd is asked for a
    qdisc's. Raises Unavailable and SwitchRefused.
    """
    from userspace_cni.ovsdb.reads import Select
    from userspace_cni.switch.ovsdb.switch_reads import list_limited_ports

    ports = client.require_session().look(list_limited_ports)
    policed = [port for port in ports if port.from_pod or port.to_pod == POLICER]

    def select(session: SwitchSession) -> list[dict[str, Any]]:
        by_uuid = ([["_uuid", "==", ["uuid", port.interface]]] for port in policed)
        commands = [Select(session, "Interface", where, ["statistics"]) for where in by_uuid]
        session.transact(commands, deadline)
        return [_map(command.rows[0]["statistics"]) if command.rows else {} for command in commands]

    statistics = client.use(select, frozenset(), "reading what limits have dropped", deadline) if policed else []
    counted = {port.name: of for port, of in zip(policed, statistics, strict=True)}
    return [_drops(port, counted.get(port.name, {}), daemon, deadline) for port in ports]


def _drops(port: LimitedPort, counted: Mapping[str, int], daemon: Daemon, deadline: Deadline) -> LimitDrops:
    to_pod = counted.get("ovs_tx_qos_drops", 0) if port.to_pod == POLICER else None
    if port.to_pod and port.to_pod != POLICER:
        shown = daemon.run_command("qos/show", port.name, deadline=deadline)
        to_pod = sum(int(value) for value in _TX_ERRORS.findall(shown))
    return LimitDrops(port.name, port.marks, to_pod, counted.get("ovs_rx_qos_drops", 0) if port.from_pod else None)


def read(rows: list[dict[str, Any]]) -> list[Counters]:
    """The counters in rows of Interface as OVSDB writes them. Raises SwitchRefused for rows in another form."""
    try:
        return [Counters(row["name"], _map(row["external_ids"]), _map(row["statistics"]), of_now=False) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise SwitchRefused(f"OVSDB: reading counters: {str(rows)[:200]}", "is it the database of ovs-vswitchd?") from error


def _map(value: Any) -> dict[str, Any]:
    kind, pairs = value
    if kind != "map":
        raise ValueError(kind)
    return {key: item for key, item in pairs}  # noqa: C416 - dict() would accept items that are no pairs
