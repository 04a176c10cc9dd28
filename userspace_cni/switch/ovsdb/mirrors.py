"""What a transaction does to the mirrors of one bridge.

A Mirror of ours is made in the transaction of its output port, with every source that asks for it, and removed when the output
is deleted. A source writes its request into its own row, and its references into an existing Mirror; OVSDB removes a deleted
port's references from all Mirrors. So no port has to know whether it is the last. Two sessions may race: an output must not
miss the request of a source that does not see it yet, nor a source an output. So an output verifies that the requests are those
it has seen, and both verify that the bridge's Mirrors are. A Mirror that is not ours is never changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from userspace_cni.attachment.steps import EVERYTHING, MirrorOutput, OvsPort, PortRef
from userspace_cni.base.errors import BadRequest, NameTaken, Unavailable
from userspace_cni.base.mirrors import MirrorSource
from userspace_cni.ovsdb.database import Clause, named, with_ids
from userspace_cni.ovsdb.replica import Replica
from userspace_cni.ovsdb.values import Json, count, references, refers, value_of
from userspace_cni.switch.ovsdb.bridge_drafts import BridgeDraft
from userspace_cni.switch.ovsdb.index import SwitchIndex
from userspace_cni.switch.ovsdb.mirror_drafts import Source
from userspace_cni.switch.ovsdb.rows.marks import IDENTITY, is_nodes, is_ours, owns, same_owner, whose
from userspace_cni.switch.ovsdb.rows.mirror import COLUMNS, DESIRED, MirrorRow, desired_names, specs

BRIDGE_MAX: Final = 32
"""Mirrors of a bridge: ovs-vswitchd (3.1) ignores more, with a line in its log (ofproto/ofproto-dpif-mirror.c, MAX_MIRRORS)."""


def takes_sources(marks: Mapping[str, str]) -> bool:
    """Whether ports may join a Mirror with these marks: one of an attachment, or of the node's settings."""
    return is_ours(marks) or is_nodes(marks)


def mirrors_of(replica: Replica[SwitchIndex], bridge: Any) -> list[Any]:
    """The replicated Mirror rows of the bridge (None: none)."""
    rows = replica.tables["Mirror"].rows
    found = () if bridge is None else sorted(references(bridge, "mirrors"))
    return [rows[each] for each in found if each in rows]


def find_mirror(replica: Replica[SwitchIndex], bridge: Any, name: str) -> Any:
    """The bridge's Mirror of that name, None if there is none; of several one that is not ours, if there is one."""
    rows = [row for row in mirrors_of(replica, bridge) if value_of(row, "name") == name]
    return min(rows, key=lambda row: takes_sources(value_of(row, "external_ids")), default=None)


def mirror_rows(replica: Replica[SwitchIndex], bridge: Any, port: Any) -> tuple[MirrorRow, ...]:
    return tuple(
        MirrorRow(
            value_of(row, "name"),
            takes_sources(value_of(row, "external_ids")),
            refers(row, "output_port", port.uuid),
            refers(row, "select_src_port", port.uuid),
            refers(row, "select_dst_port", port.uuid),
            value_of(row, "select_all"),
        )
        for row in mirrors_of(replica, bridge)
    )


def without_output(replica: Replica[SwitchIndex]) -> list[tuple[Any, Any]]:
    """The Mirrors with our owner mark that have no output, each with its bridge: the output's port was deleted by hand."""
    bridges = replica.names("Bridge").values()
    found = ((bridge, row) for bridge in bridges for row in mirrors_of(replica, bridge))
    return [
        (bridge, row) for bridge, row in found if is_ours(value_of(row, "external_ids")) and not references(row, "output_port")
    ]


def clauses_of(step: OvsPort | PortRef | MirrorOutput, external_ids: Mapping[str, str] | None = None) -> frozenset[Clause]:
    """The clauses for the Mirrors in which the step has a part, and for the sources of those whose output it is.

    `external_ids`: those that its row has now; without them the clause of its marks finds what is left of an output.
    """
    if isinstance(step, PortRef):
        marks = {key: step.marks[key] for key in IDENTITY if key in step.marks}
        return with_ids(marks) if marks else frozenset()
    joined = () if isinstance(step, MirrorOutput) else (each.name for each in step.mirrors)
    clauses = named(*joined, *desired_names(external_ids or {}), *_shown(step))
    for name in step.mirror_outputs:
        clauses |= named(name)
        for start in COLUMNS.values():
            clauses |= with_ids({start + name: DESIRED})
    return clauses


def require_part(replica: Replica[SwitchIndex], step: OvsPort, bridge: Any, draft: BridgeDraft) -> None:
    """Raise unless the port can have its part, as `require_output`. Writes nothing."""
    for each in step.mirrors:
        _require_own(replica, step, bridge, each.name, joins=True)
    require_output(replica, step, bridge, draft)


def require_output(replica: Replica[SwitchIndex], step: OvsPort | MirrorOutput, bridge: Any, draft: BridgeDraft) -> None:
    """Raise unless the port can be the output of its mirrors. Writes nothing.

    NameTaken: a Mirror is not ours, or has another output. BadRequest: the port that is to be shown has gone. Unavailable: the
    bridge can have no further Mirror that shows something of its own.
    """
    for name in step.mirror_outputs:
        _require_own(replica, step, bridge, name)
    for name in step.mirror_outputs:
        _require_no_output(replica, step, bridge, draft, name)
    if not step.shows:
        return
    for name in _shown(step):
        if name not in replica.names("Port"):
            raise BadRequest(f"there is no port {name} any more", "its attachment was removed; userspace-cni list")
    number = 0 if bridge is None else count(bridge, "mirrors")
    if number >= BRIDGE_MAX and any(find_mirror(replica, bridge, name) is None for name in step.mirror_outputs):
        raise Unavailable(
            f"bridge {step.bridge} has {number} mirrors, and ovs-vswitchd ignores more than {BRIDGE_MAX}",
            f"ovs-vsctl list Mirror; ovs-vsctl get Bridge {step.bridge} mirrors",
        )


def _require_own(
    replica: Replica[SwitchIndex], step: OvsPort | MirrorOutput, bridge: Any, name: str, *, joins: bool = False
) -> None:
    """Raise NameTaken for a Mirror of another owner; one of the node's takes sources of any."""
    row = find_mirror(replica, bridge, name)
    marks = value_of(row, "external_ids") if row is not None else {}
    if row is not None and not same_owner(step, marks) and not (joins and takes_sources(marks)):
        raise NameTaken(
            f"mirror {name} of bridge {step.bridge} exists and belongs to {whose(marks)}",
            "it is not changed here; use another name for the mirror",
        )


def _shown(step: OvsPort | MirrorOutput) -> tuple[str, ...]:
    """The port whose frames all mirrors of the step show."""
    return () if step.shows in ("", EVERYTHING) else (step.shows,)


def _require_no_output(
    replica: Replica[SwitchIndex], step: OvsPort | MirrorOutput, bridge: Any, draft: BridgeDraft, name: str
) -> None:
    """Raise NameTaken if another attachment is the output of that Mirror."""
    row = find_mirror(replica, bridge, name)
    marks = value_of(row, "external_ids") if row is not None else {}
    held = row is not None and references(row, "output_port") and not owns(step, marks)
    if held or draft.mirror(name, row).has_output:
        holder = whose(marks) if held else "another attachment"
        raise NameTaken(
            f"mirror {name} of bridge {step.bridge} has an output, which belongs to {holder}",
            "a mirror has one output: use another name for the mirror, or DEL that attachment first",
        )


def take_part(
    draft: BridgeDraft, replica: Replica[SwitchIndex], step: OvsPort, marks: Mapping[str, str], port: Json, *, living: Any
) -> None:
    """Have the port be a source and an output as the step says. `living`: its row, None for a new one."""
    desired = specs(step.mirrors)
    before = desired_names(value_of(living, "external_ids")) if living is not None else ()
    for name in {*(each.name for each in step.mirrors), *before}:
        row = find_mirror(replica, draft.row, name)
        if row is None or takes_sources(value_of(row, "external_ids")):
            draft.mirror(name, row).write_specs(step.name, Source(port, desired, living is not None))
    take_output(draft, replica, step, marks, port)
    if living is not None:
        _let_go(draft, replica, step, keep=step.mirror_outputs)


def take_output(
    draft: BridgeDraft, replica: Replica[SwitchIndex], step: OvsPort | MirrorOutput, marks: Mapping[str, str], port: Json
) -> None:
    for name in step.mirror_outputs:
        mirror = draft.mirror(name, find_mirror(replica, draft.row, name))
        mirror.take(port, marks, everything=step.shows == EVERYTHING)
        for shown in _shown(step):
            mirror.show(replica.names("Port")[shown])


def leave(draft: BridgeDraft, replica: Replica[SwitchIndex], step: PortRef | MirrorOutput) -> None:
    """Remove the Mirrors whose output the step's port is, or was before another process deleted it."""
    _let_go(draft, replica, step)


def has_part(mirrors: Iterable[MirrorSource], outputs: Collection[str], living: Any) -> bool:
    """Whether flows that are in use may have to change when a port with this part is written; `living`: its row, or None."""
    if living is None:
        return bool(outputs)
    return bool(outputs or tuple(mirrors) or desired_names(value_of(living, "external_ids")))


def _let_go(
    draft: BridgeDraft, replica: Replica[SwitchIndex], step: OvsPort | PortRef | MirrorOutput, keep: Collection[str] = ()
) -> None:
    for row in mirrors_of(replica, draft.row):
        marks, name = value_of(row, "external_ids"), value_of(row, "name")
        if name not in keep and owns(step, marks):
            draft.mirror(name, row).remove()
