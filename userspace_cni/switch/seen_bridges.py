"""Reads what a bridge has now, for the question why a pod's traffic does not arrive: rows of OVSDB, what OpenFlow forbids its
ports, learned addresses, and what its flows do to a frame.

Each question is asked on its own, and what is not answered hides nothing else. It must never wait longer than its deadline, and
changes nothing: a trace learns no address and counts in no flow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment.steps import owner_kind
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import SwitchRefused, UserspaceError
from userspace_cni.base.seen_bridge import (
    USUAL_MTU,
    LearnedMacs,
    SeenBridge,
    SeenController,
    SeenMirror,
    SeenPort,
    TracedFrame,
)
from userspace_cni.base.vlans import Vlan
from userspace_cni.switch.openflow import port_configs
from userspace_cni.switch.openflow.management import Management
from userspace_cni.switch.ovsdb.rows.marks import ATTACHED_MAC, is_ours
from userspace_cni.switch.ovsdb.switch_database import SwitchClient
from userspace_cni.switch.vswitchd import Daemon

if TYPE_CHECKING:
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession

_INWARD: Final = frozenset({"dpdkvhostuser", "dpdkvhostuserclient", "internal"})
"""Types of interfaces behind which is a pod, a VM or the node itself."""
_NICS: Final = frozenset({"", "system", "dpdk", "afxdp"})
"""Types of interfaces that have an MTU and are none of these; a patch and a tunnel have none of their own."""
_COUNTS: Final = re.compile(r"(?m)^ *Current/maximum MAC entries in the table: ([0-9]{1,9})/([0-9]{1,9})$")
_LEARNED: Final = re.compile(r"(?m)^ *(\S{1,10}) +([0-9]{1,4}) +([0-9a-f]{2}(?::[0-9a-f]{2}){5}) ")
_RULE: Final = re.compile(r" ?([0-9]{1,3}\. .{0,400})")
_REASON: Final = re.compile(r" *>> ?(?:>> )?(.{1,400}?)(?: <<<<)?$")
_LOCAL: Final = "LOCAL"

Row = Mapping[str, Any]


def read_bridges(client: SwitchClient, daemon: Daemon, names: Collection[str], deadline: Deadline) -> dict[str, SeenBridge]:
    """The bridges of these names that are there, from the replica of a resident client and beyond it. Raises Unavailable."""
    look = client.require_session().look
    numbered = {name: found for name in names if (found := look(partial(_bridge, name)))}
    rows, problem = _rows(client, deadline)
    return {name: _complete(bridge, numbers, rows, problem, daemon, deadline) for name, (bridge, numbers) in numbered.items()}


def trace(daemon: Daemon, bridge: str, flow: str, deadline: Deadline) -> TracedFrame:
    """What the bridge's flows do to a frame; `flow`: its fields, with `in_port`, as ovs-appctl ofproto/trace takes them.

    Raises Unavailable and SwitchRefused.
    """
    return read_trace(daemon.run_command("ofproto/trace", bridge, flow, deadline=deadline))


def read_trace(text: str) -> TracedFrame:
    """The answer of ofproto/trace."""
    lines = text.splitlines()
    rules = [found[1] for line in lines if (found := _RULE.fullmatch(line))]
    reasons = [found[1] for line in lines if (found := _REASON.fullmatch(line))]
    rule = rules[-1] if rules else ""
    dropped = next((line for line in reversed(lines) if line.startswith("Datapath actions: ")), "").endswith(": drop")
    normal = any(line.strip() == "NORMAL" for line in lines)
    return TracedFrame(dropped, "" if rule.endswith("No match.") else rule, "; ".join(reasons), normal)


def _bridge(name: str, session: SwitchSession) -> tuple[SeenBridge, dict[int, str]] | None:
    """What the replica has of the bridge, and the names of its ports by the number of their interface."""
    from userspace_cni.ovsdb.column_values import read_references, value_of
    from userspace_cni.switch.ovsdb.bridge_mirrors import list_mirrors

    bridge = session.row("Bridge", name)
    if bridge is None:
        return None
    ports, interfaces = session.tables["Port"].rows, session.tables["Interface"].rows
    found, numbers, names = [], dict[int, str](), dict[Any, str]()
    for reference in sorted(read_references(bridge, "ports")):
        port = ports.get(reference)
        if port is None:
            continue
        called = names[reference] = value_of(port, "name")
        members = [interfaces[each] for each in read_references(port, "interfaces") if each in interfaces]
        if members and called != name:
            found.append(_port(port, members))
            numbers |= {ofport[0]: called for row in members if (ofport := value_of(row, "ofport")) and ofport[0] > 0}
    mirrors = [_mirror(row, names) for row in list_mirrors(session.replica, bridge)]
    return SeenBridge(name, tuple(sorted(found, key=lambda port: port.name)), tuple(mirrors)), numbers


def _port(port: Any, members: list[Any]) -> SeenPort:
    from userspace_cni.ovsdb.column_values import value_of

    marks, kinds = value_of(port, "external_ids"), {value_of(row, "type") for row in members}
    ours = is_ours(marks)
    tag, mode = value_of(port, "tag"), value_of(port, "vlan_mode")
    mtus = [asked[0] for row in members if (asked := value_of(row, "mtu_request") or value_of(row, "mtu"))]
    macs = [mac for row in members if (mac := value_of(row, "external_ids").get(ATTACHED_MAC, ""))]
    return SeenPort(
        value_of(port, "name"),
        value_of(members[0], "type"),
        Vlan(tag[0] if tag else None, tuple(sorted(value_of(port, "trunks"))), mode[0] if mode else ""),
        min(mtus, default=0) or (USUAL_MTU if kinds <= _INWARD | _NICS else 0),
        macs[0].lower() if macs else "",
        "/".join(filter(None, (marks.get("pod-namespace", ""), marks.get("pod-name", "")))) if ours else "",
        ours,
        not ours and bool(kinds - _INWARD),
        number=next((ofport[0] for row in members if (ofport := value_of(row, "ofport")) and ofport[0] > 0), 0),
    )


def _mirror(row: Any, names: Mapping[Any, str]) -> SeenMirror:
    from userspace_cni.ovsdb.column_values import read_references, value_of

    source, target = (
        frozenset(names.get(each, "") for each in read_references(row, f"select_{way}_port")) for way in ("src", "dst")
    )
    output = "".join(names.get(each, "") for each in read_references(row, "output_port"))
    ours = bool(owner_kind(value_of(row, "external_ids")))
    return SeenMirror(value_of(row, "name"), ours, source, target, value_of(row, "select_all"), output)


_Rows = Mapping[str, Mapping[str, Row]]
"""Rows of Bridge and Port by name, and of Controller by UUID."""


def _rows(client: SwitchClient, deadline: Deadline) -> tuple[_Rows, str]:
    """What no replica has of bridges, ports and controllers, in one request; and why it is not known, "" if it is."""
    from userspace_cni.ovsdb.reads import Select

    asked = {
        "Bridge": ["name", "fail_mode", "controller", "stp_enable", "rstp_enable"],
        "Port": ["name", "status", "rstp_status"],
        "Controller": ["_uuid", "target", "is_connected", "status"],
    }

    def select(session: SwitchSession) -> list[list[dict[str, Any]]]:
        commands = [Select(session, table, [], columns) for table, columns in asked.items()]
        session.transact(commands, deadline)
        return [command.rows for command in commands]

    try:
        answers = client.use(select, frozenset(), "looking at bridges", deadline)
    except UserspaceError as error:
        return {}, str(error)
    found: dict[str, dict[str, Row]] = {}
    for table, rows in zip(asked, answers, strict=True):
        key = "_uuid" if table == "Controller" else "name"
        found[table] = {row[key][1] if key == "_uuid" else row[key]: row for row in rows}
    return found, ""


def _complete(
    bridge: SeenBridge, numbers: Mapping[int, str], rows: _Rows, problem: str, daemon: Daemon, deadline: Deadline
) -> SeenBridge:
    """The bridge with what the replica does not have."""
    unasked = [(f"bridge {bridge.name}", problem)] if problem else []
    bridge = _with_rows(bridge, rows) if not problem else bridge

    def ask(what: str, question: Callable[[], Any], default: Any) -> Any:
        try:
            return question()
        except UserspaceError as error:
            unasked.append((what, str(error)))
            return default

    path = f"{daemon.rundir}/{bridge.name}.mgmt"
    configs = ask(f"what OpenFlow forbids ports of {bridge.name}", lambda: _read_configs(path, deadline), {})
    learned = ask(
        f"addresses learned on {bridge.name}", lambda: _read_learned(daemon, bridge.name, numbers, deadline), LearnedMacs()
    )
    ports = tuple(replace(port, config=configs.get(port.number, frozenset())) for port in bridge.ports)
    return replace(bridge, ports=ports, learned=learned, unasked=tuple(unasked))


def _with_rows(bridge: SeenBridge, rows: _Rows) -> SeenBridge:
    row = rows["Bridge"].get(bridge.name, {})
    spanning = "rstp" if row.get("rstp_enable") else "stp" if row.get("stp_enable") else ""
    column, key = ("rstp_status", "rstp_port_state") if spanning == "rstp" else ("status", "stp_state")
    states = {name: _map(port.get(column)).get(key, "") for name, port in rows["Port"].items()} if spanning else {}
    controllers = [rows["Controller"][each] for each in _uuids(row.get("controller")) if each in rows["Controller"]]
    return replace(
        bridge,
        ports=tuple(replace(port, spanning=states.get(port.name, "").lower()) for port in bridge.ports),
        fail_mode=row["fail_mode"] if isinstance(row.get("fail_mode"), str) else "standalone",
        controllers=tuple(
            SeenController(each["target"], each["is_connected"], _map(each["status"]).get("last_error", ""))
            for each in sorted(controllers, key=lambda each: str(each["target"]))
        ),
        spanning=spanning,
    )


def _read_configs(path: str, deadline: Deadline) -> dict[int, frozenset[str]]:
    """What OpenFlow forbids each port, by its number; in 1.0 if the bridge allows it. Raises Unavailable and SwitchRefused."""
    try:
        return _configs_in(path, port_configs.OLD, deadline)
    except SwitchRefused:
        return _configs_in(path, port_configs.NEW, deadline)


def _configs_in(path: str, versions: frozenset[int], deadline: Deadline) -> dict[int, frozenset[str]]:
    with Management(path, deadline, versions) as bridge:
        answers = bridge.collect(port_configs.ask_port_configs, port_configs.read_port_configs, "ports", deadline)
    return {number: words for answer in answers for number, words in answer.items()}


def _read_learned(daemon: Daemon, bridge: str, numbers: Mapping[int, str], deadline: Deadline) -> LearnedMacs:
    """The learned addresses; an Open vSwitch before 2.16 does not say how many there can be.

    Raises Unavailable and SwitchRefused.
    """
    text = daemon.run_command("fdb/show", bridge, deadline=deadline)
    places = {(int(vlan), mac): _place(port, numbers) for port, vlan, mac in _LEARNED.findall(text)}
    try:
        counts = _COUNTS.search(daemon.run_command("fdb/stats-show", bridge, deadline=deadline))
    except SwitchRefused:
        counts = None
    return LearnedMacs(int(counts[1]), int(counts[2]), places) if counts else LearnedMacs(len(places), 0, places)


def _place(port: str, numbers: Mapping[int, str]) -> str:
    return numbers.get(int(port), "") if port.isdecimal() else _LOCAL if port == _LOCAL else ""


def _uuids(value: Any) -> list[str]:
    """The UUIDs of a column of references as OVSDB writes it: one alone, or a set."""
    kind, content = value or ("set", [])
    return [str(content)] if kind == "uuid" else [str(each[1]) for each in content]


def _map(value: Any) -> dict[str, str]:
    return dict(value[1]) if value else {}
