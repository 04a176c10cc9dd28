"""What a transaction does to the mirrors of one bridge.

A Mirror of ours is made in the transaction of the port that is its output, with every source that specs it, and removed in that
of the output's deletion. A source writes its spec into its own row, and its references where the Mirror is there; the deletion of
a port takes its references out of all Mirrors by itself. So no port has to know whether it is the last.

Two sessions race: an output must not miss the spec of a source that does not see it yet, nor a source an output. So an output
verifies that the specs are those it has seen, and both that the bridge has the Mirrors that they have seen. A Mirror that is not
ours is never changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment.steps import EVERYTHING, MirrorOutput, OvsPort, PortRef
from userspace_cni.base.errors import BadRequest, NameTaken, Unavailable
from userspace_cni.base.mirrors import MirrorSource
from userspace_cni.switch.ovsdb.replica import Clause, Replica, count, named, references, refers, value_of, with_marks
from userspace_cni.switch.ovsdb.rows.columns import changed_columns
from userspace_cni.switch.ovsdb.rows.marks import (
    IDENTITY,
    is_nodes,
    is_ours,
    other_store,
    same_attachment,
    same_owner,
    whose,
)
from userspace_cni.switch.ovsdb.rows.mirror import COLUMNS, DESIRED, MirrorRow, desired_names, mirror_columns, specs

if TYPE_CHECKING:
    from userspace_cni.switch.ovsdb.groups import BridgeDraft, Draft, Json

BRIDGE_MAX: Final = 32
"""Mirrors of a bridge: ovs-vswitchd (3.1) ignores more, with a line in its log (ofproto/ofproto-dpif-mirror.c, MAX_MIRRORS)."""


@dataclass(frozen=True)
class Member:
    """A port that a group writes: its reference, the keys of its specs, and whether it was there before."""

    port: Json
    specs: Mapping[str, str]
    living: bool


class MirrorDraft:
    """One mirror of a bridge in a Draft: all that the ports of a group do with it."""

    def __init__(self, name: str, row: Any) -> None:
        self.name = name
        self.has_output = False
        self._row = row
        self._output: Json | None = None
        self._marks: Mapping[str, str] = {}
        self._members: dict[str, Member] = {}
        self._shown: list[Any] = []
        self._removed = False
        self._everything = False

    @property
    def is_changed(self) -> bool:
        """Whether the group does anything with it."""
        return self.has_output or self._removed or bool(self._members)

    def take(self, port: Json, marks: Mapping[str, str], *, everything: bool = False) -> None:
        """Make this port, with these owner marks, the output; with `everything` of all ports, whether they spec it or not."""
        self._output, self._marks, self._everything = port, marks, everything
        self.has_output = True

    def show(self, port: Any) -> None:
        """Have the port of this row as a source, of all its frames, though it specs nothing."""
        self._shown.append(port)

    def write_specs(self, name: str, member: Member) -> None:
        """The port `name` is a source as its specs say, or none."""
        self._members[name] = member

    def remove(self) -> None:
        """Remove the Mirror, whose output goes."""
        self._removed = True

    def write(self, draft: Draft, bridge: Any) -> tuple[Json | None, Json | None]:
        """Write the operations; the references that the bridge is to take in and to let go."""
        if self._output is not None:
            sources = self._all_sources(draft, bridge)
            columns = mirror_columns(self.name, self._output, sources, self._marks) | {"select_all": self._everything}
            if self._row is None:
                return draft.write("Mirror", columns), None
            draft.verify(self._row, "external_ids", "output_port")
            if not references(self._row, "output_port"):  # its output was deleted by hand
                return draft.write("Mirror", columns), _reference(self._row)
            found = {key: value_of(self._row, key) for key in ("name", "select_all", "external_ids")}
            found |= {key: [("uuid", str(each)) for each in references(self._row, key)] for key in ("output_port", *COLUMNS)}
            if changes := changed_columns(columns, found):
                draft.update(self._row, changes)
        elif self._removed:
            draft.verify(self._row, "external_ids", "output_port")
            return None, _reference(self._row)
        elif self._row is not None:
            for member in self._members.values():
                for column, start in COLUMNS.items():
                    joins = start + self.name in member.specs
                    if joins or member.living:
                        draft.mutate(self._row, column, "insert" if joins else "delete", [member.port])
        return None, None

    def _all_sources(self, draft: Draft, bridge: Any) -> dict[str, list[Json]]:
        """Every port of the bridge that specs it, and those shown, by column; commit only if no others spec it."""
        sources: dict[str, list[Json]] = {}
        for row in self._shown:
            draft.verify(row, "name")
        for column, start in COLUMNS.items():
            key = start + self.name
            known = {name: row for name, row in ports_asking(draft.idl, key).items() if name not in self._members}
            members = {name: each.port for name, each in self._members.items() if key in each.specs}
            draft.expect(
                "Port",
                [["external_ids", "includes", ("map", [(key, DESIRED)])]],
                [{"name": name} for name in sorted({*known, *members})],
            )
            here = [("uuid", str(row.uuid)) for row in known.values() if bridge is not None and refers(bridge, "ports", row.uuid)]
            sources[column] = sorted([*here, *members.values(), *map(_reference, self._shown)])
        return sources


def takes_sources(marks: Mapping[str, str]) -> bool:
    """Whether ports may join a Mirror with these marks: one of an attachment, or of the node's settings."""
    return is_ours(marks) or is_nodes(marks)


def ports_asking(replica: Replica, key: str) -> dict[str, Any]:
    """The replicated Port rows with this spec, of any bridge, by name."""
    rows = replica.names("Port")
    return {name: rows[name] for name, ids in replica.marks.items() if ids.get(key) == DESIRED}


def mirrors_of(replica: Replica, bridge: Any) -> list[Any]:
    """The replicated Mirror rows of the bridge (None: none)."""
    rows = replica.tables["Mirror"].rows
    found = () if bridge is None else sorted(references(bridge, "mirrors"))
    return [rows[each] for each in found if each in rows]


def find_mirror(replica: Replica, bridge: Any, name: str) -> Any:
    """The bridge's Mirror of that name, None if there is none; of several one that is not ours, if there is one."""
    rows = [row for row in mirrors_of(replica, bridge) if value_of(row, "name") == name]
    return min(rows, key=lambda row: takes_sources(value_of(row, "external_ids")), default=None)


def mirror_rows(replica: Replica, bridge: Any, port: Any) -> tuple[MirrorRow, ...]:
    """The replicated Mirrors of the bridge, as seen from the port."""
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


def without_output(replica: Replica) -> list[tuple[Any, Any]]:
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
        return with_marks(marks) if marks else frozenset()
    joined = () if isinstance(step, MirrorOutput) else (each.name for each in step.mirrors)
    clauses = named(*joined, *desired_names(external_ids or {}), *_shown(step))
    for name in step.mirror_outputs:
        clauses |= named(name)
        for start in COLUMNS.values():
            clauses |= with_marks({start + name: DESIRED})
    return clauses


def require_part(replica: Replica, step: OvsPort, bridge: Any, draft: BridgeDraft) -> None:
    """Raise unless the port can have its part, as `require_output`. Writes nothing."""
    for each in step.mirrors:
        _require_own(replica, step, bridge, each.name, joins=True)
    require_output(replica, step, bridge, draft)


def require_output(replica: Replica, step: OvsPort | MirrorOutput, bridge: Any, draft: BridgeDraft) -> None:
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


def _require_own(replica: Replica, step: OvsPort | MirrorOutput, bridge: Any, name: str, *, joins: bool = False) -> None:
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


def _require_no_output(replica: Replica, step: OvsPort | MirrorOutput, bridge: Any, draft: BridgeDraft, name: str) -> None:
    """Raise NameTaken if another attachment is the output of that Mirror."""
    row = find_mirror(replica, bridge, name)
    marks = value_of(row, "external_ids") if row is not None else {}
    held = row is not None and references(row, "output_port") and not same_attachment(step, marks)
    if held or draft.mirror(name, row).has_output:
        holder = whose(marks) if held else "another attachment"
        raise NameTaken(
            f"mirror {name} of bridge {step.bridge} has an output, which belongs to {holder}",
            "a mirror has one output: use another name for the mirror, or DEL that attachment first",
        )


def take_part(draft: BridgeDraft, replica: Replica, step: OvsPort, marks: Mapping[str, str], port: Json, *, living: Any) -> None:
    """Have the port be a source and an output as the step says. `living`: its row, None for a new one."""
    desired = specs(step.mirrors)
    before = desired_names(value_of(living, "external_ids")) if living is not None else ()
    for name in {*(each.name for each in step.mirrors), *before}:
        row = find_mirror(replica, draft.row, name)
        if row is None or takes_sources(value_of(row, "external_ids")):
            draft.mirror(name, row).write_specs(step.name, Member(port, desired, living is not None))
    take_output(draft, replica, step, marks, port)
    if living is not None:
        _let_go(draft, replica, step, keep=step.mirror_outputs)


def take_output(draft: BridgeDraft, replica: Replica, step: OvsPort | MirrorOutput, marks: Mapping[str, str], port: Json) -> None:
    """Have the port be the output of its mirrors."""
    for name in step.mirror_outputs:
        mirror = draft.mirror(name, find_mirror(replica, draft.row, name))
        mirror.take(port, marks, everything=step.shows == EVERYTHING)
        for shown in _shown(step):
            mirror.show(replica.names("Port")[shown])


def leave(draft: BridgeDraft, replica: Replica, step: PortRef | MirrorOutput) -> None:
    """Remove the Mirrors whose output the step's port is, or was before another process deleted it."""
    _let_go(draft, replica, step)


def has_part(mirrors: Iterable[MirrorSource], outputs: Collection[str], living: Any) -> bool:
    """Whether flows that are in use may have to change when a port with this part is written; `living`: its row, or None."""
    if living is None:
        return bool(outputs)
    return bool(outputs or tuple(mirrors) or desired_names(value_of(living, "external_ids")))


def _let_go(draft: BridgeDraft, replica: Replica, step: OvsPort | PortRef | MirrorOutput, keep: Collection[str] = ()) -> None:
    for row in mirrors_of(replica, draft.row):
        marks, name = value_of(row, "external_ids"), value_of(row, "name")
        if name not in keep and same_attachment(step, marks) and not other_store(step, marks):
            draft.mirror(name, row).remove()


def _reference(row: Any) -> Json:
    return "uuid", str(row.uuid)
