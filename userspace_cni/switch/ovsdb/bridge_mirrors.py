"""What a transaction does to the mirrors of one bridge.

A Mirror of ours is made in the transaction of its output port, with every source that asks for it, and removed when the output
is deleted. A source writes its request into its own row, and its references into an existing Mirror; OVSDB removes a deleted
port's references from all Mirrors. So no port has to know whether it is the last. Two sessions may race: an output must not
miss the request of a source that does not see it yet, nor a source an output. So an output verifies that the requests are those
it has seen, and both verify that the bridge's Mirrors are. A Mirror that is not ours is never changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from userspace_cni.attachment.steps import EVERYTHING
from userspace_cni.base.errors import BadRequest, NameTaken, Unavailable
from userspace_cni.ovsdb.column_values import Json, count, read_references, refers, value_of
from userspace_cni.ovsdb.database import Clause, named, with_ids
from userspace_cni.ovsdb.replica import Replica
from userspace_cni.switch.ovsdb.bridge_drafts import BridgeDraft
from userspace_cni.switch.ovsdb.index import SwitchIndex
from userspace_cni.switch.ovsdb.mirror_drafts import SourcePort
from userspace_cni.switch.ovsdb.rows.desired import DesiredRows, MirrorPart
from userspace_cni.switch.ovsdb.rows.marks import describe_owner, is_nodes, is_ours, is_same_kind, owns
from userspace_cni.switch.ovsdb.rows.mirror_row import COLUMNS, DESIRED, MirrorRow, encode_specs, read_desired_names

BRIDGE_MAX: Final = 32
"""Mirrors of a bridge: ovs-vswitchd (3.1) ignores more, with a line in its log (ofproto/ofproto-dpif-mirror.c, MAX_MIRRORS)."""


def takes_sources(marks: Mapping[str, str]) -> bool:
    """Whether ports may join a Mirror with these marks: one of an attachment, or of the node's settings."""
    return is_ours(marks) or is_nodes(marks)


def list_mirrors(replica: Replica[SwitchIndex], bridge: Any) -> list[Any]:
    """The replicated Mirror rows of the bridge (None: none)."""
    rows = replica.tables["Mirror"].rows
    found = () if bridge is None else sorted(read_references(bridge, "mirrors"))
    return [rows[each] for each in found if each in rows]


def find_mirror(replica: Replica[SwitchIndex], bridge: Any, name: str) -> Any:
    """The bridge's Mirror of that name, None if there is none; of several one that is not ours, if there is one."""
    rows = [row for row in list_mirrors(replica, bridge) if value_of(row, "name") == name]
    return min(rows, key=lambda row: takes_sources(value_of(row, "external_ids")), default=None)


def read_mirror_rows(replica: Replica[SwitchIndex], bridge: Any, port: Any) -> tuple[MirrorRow, ...]:
    return tuple(
        MirrorRow(
            value_of(row, "name"),
            takes_sources(value_of(row, "external_ids")),
            refers(row, "output_port", port.uuid),
            refers(row, "select_src_port", port.uuid),
            refers(row, "select_dst_port", port.uuid),
            value_of(row, "select_all"),
        )
        for row in list_mirrors(replica, bridge)
    )


def find_without_output(replica: Replica[SwitchIndex]) -> list[tuple[Any, Any]]:
    """The Mirrors with our owner mark that have no output, each with its bridge: the output's port was deleted by hand."""
    bridges = replica.names("Bridge").values()
    found = ((bridge, row) for bridge in bridges for row in list_mirrors(replica, bridge))
    return [
        (bridge, row)
        for bridge, row in found
        if is_ours(value_of(row, "external_ids")) and not read_references(row, "output_port")
    ]


def clauses_of(part: MirrorPart, external_ids: Mapping[str, str]) -> frozenset[Clause]:
    """The clauses for the Mirrors in which a port has a part, and for the sources of those whose output it is.

    `external_ids`: those that its row has now.
    """
    clauses = named(*(each.name for each in part.sources), *read_desired_names(external_ids), *_shown(part))
    for name in part.outputs:
        clauses |= named(name)
        for start in COLUMNS.values():
            clauses |= with_ids({start + name: DESIRED})
    return clauses


def require_part(replica: Replica[SwitchIndex], rows: DesiredRows, bridge: Any, draft: BridgeDraft) -> None:
    """Raise unless the port can have its part. Writes nothing.

    NameTaken: a Mirror is not ours, or has another output. BadRequest: the port that is to be shown has gone. Unavailable: the
    bridge can have no further Mirror that shows something of its own.
    """
    part, on = rows.mirrors, rows.bridge.name
    for each in part.sources:
        _require_own(replica, rows, bridge, each.name, joins=True)
    for name in part.outputs:
        _require_own(replica, rows, bridge, name)
    for name in part.outputs:
        _require_no_output(replica, rows, bridge, draft, name)
    if not part.shows:
        return
    for name in _shown(part):
        if name not in replica.names("Port"):
            raise BadRequest(f"there is no port {name} any more", "its attachment was removed; userspace-cni list")
    number = 0 if bridge is None else count(bridge, "mirrors")
    if number >= BRIDGE_MAX and any(find_mirror(replica, bridge, name) is None for name in part.outputs):
        raise Unavailable(
            f"bridge {on} has {number} mirrors, and ovs-vswitchd ignores more than {BRIDGE_MAX}",
            f"ovs-vsctl list Mirror; ovs-vsctl get Bridge {on} mirrors",
        )


def _require_own(replica: Replica[SwitchIndex], rows: DesiredRows, bridge: Any, name: str, *, joins: bool = False) -> None:
    """Raise NameTaken for a Mirror of another owner; one of the node's takes sources of any."""
    row = find_mirror(replica, bridge, name)
    marks = value_of(row, "external_ids") if row is not None else {}
    if row is not None and not is_same_kind(rows.marks, marks) and not (joins and takes_sources(marks)):
        raise NameTaken(
            f"mirror {name} of bridge {rows.bridge.name} exists and belongs to {describe_owner(marks)}",
            "it is not changed here; use another name for the mirror",
        )


def _shown(part: MirrorPart) -> tuple[str, ...]:
    """The port whose frames all mirrors of the part show."""
    return () if part.shows in ("", EVERYTHING) else (part.shows,)


def _require_no_output(replica: Replica[SwitchIndex], rows: DesiredRows, bridge: Any, draft: BridgeDraft, name: str) -> None:
    """Raise NameTaken if another attachment is the output of that Mirror."""
    row = find_mirror(replica, bridge, name)
    marks = value_of(row, "external_ids") if row is not None else {}
    held = row is not None and read_references(row, "output_port") and not owns(rows.marks, marks)
    if held or draft.draft_mirror(name, row).has_output:
        holder = describe_owner(marks) if held else "another attachment"
        raise NameTaken(
            f"mirror {name} of bridge {rows.bridge.name} has an output, which belongs to {holder}",
            "a mirror has one output: use another name for the mirror, or DEL that attachment first",
        )


def take_part(draft: BridgeDraft, replica: Replica[SwitchIndex], rows: DesiredRows, port: Json, *, living: Any) -> None:
    """Have the port be a source and an output as the rows say. `living`: its row, None for a new one and for one of others."""
    part = rows.mirrors
    desired = encode_specs(part.sources)
    before = read_desired_names(value_of(living, "external_ids")) if living is not None else ()
    for name in {*(each.name for each in part.sources), *before}:
        row = find_mirror(replica, draft.row, name)
        if rows.port and (row is None or takes_sources(value_of(row, "external_ids"))):
            draft.draft_mirror(name, row).write_specs(rows.port.name, SourcePort(port, desired, living is not None))
    for name in part.outputs:
        mirror = draft.draft_mirror(name, find_mirror(replica, draft.row, name))
        mirror.take(port, rows.marks, everything=part.shows == EVERYTHING)
        for shown in _shown(part):
            mirror.show(replica.names("Port")[shown])
    if living is not None:
        leave(draft, replica, rows.marks, keep=part.outputs)


def leave(draft: BridgeDraft, replica: Replica[SwitchIndex], marks: Mapping[str, str], keep: Collection[str] = ()) -> None:
    """Remove the Mirrors of the bridge with these marks, but those of the names `keep`."""
    for row in list_mirrors(replica, draft.row):
        name = value_of(row, "name")
        if name not in keep and owns(marks, value_of(row, "external_ids")):
            draft.draft_mirror(name, row).remove()


def has_part(part: MirrorPart, living: Any) -> bool:
    """Whether flows that are in use may have to change when a port with this part is written; `living`: its row, or None."""
    if living is None:
        return bool(part.outputs)
    return bool(part.outputs or part.sources or read_desired_names(value_of(living, "external_ids")))
