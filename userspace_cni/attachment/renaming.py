"""Gives attachments in server mode another port where ovs-vswitchd cannot make the socket of the one that they have.

That is so under a daemon that found a dead socket at its start: its predecessor was killed after it had bound its sockets, and
before an agent placed them. All such ports are replaced in one transaction, because with each change of its configuration that
daemon tries the failed ones once more, and harms itself. The pod sees its socket under the name that it always had.

The record comes first, flushed, with the new port and a reference to the old one. So a process that dies anywhere in between
leaves a record whose DEL undoes both, and that the next pass goes on from.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.apply import Turn
from userspace_cni.attachment.cleanup import Report, is_unfinished
from userspace_cni.attachment.steps import PortRef, Step, VhostUserServer
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import about, say
from userspace_cni.base.notices import PORT_RESTORED, Notice

if TYPE_CHECKING:
    from userspace_cni.attachment.node import Node
    from userspace_cni.attachment.records import Record

WORK_S: Final = 10.0
"""Seconds for the transaction, and for each attachment after it."""


@dataclass(frozen=True)
class _Renamed:
    """An attachment with its turn; `record` has the new port, and references to those that it had."""

    turn: Turn
    record: Record

    @property
    def former(self) -> tuple[PortRef, ...]:
        """The ports that it had."""
        return tuple(step for step in self.record.steps if isinstance(step, PortRef))

    @property
    def steps(self) -> tuple[Step, ...]:
        """What it is to have."""
        return tuple(step for step in self.record.steps if not isinstance(step, PortRef))


def rename_spoiled(node: Node, report: Report) -> None:
    """Replace the ports of all such attachments, but those on which another call works. Never fails: a later pass tries again."""
    try:
        found = [record for record in node.journal.records() if _is_due(record, node)]
        if found:
            with ExitStack() as locks:
                _replace(_prepared(found, locks, node), node, report)
    except UserspaceError as error:
        say("warning", "ports whose sockets ovs-vswitchd could not make are not replaced now", error=error)


def _is_due(record: Record, node: Node) -> bool:
    port = record.port
    if port is None or not isinstance(port.interface, VhostUserServer) or is_unfinished(record, node.boot_id()):
        return False
    return any(isinstance(step, PortRef) for step in record.steps) or node.sockets.is_spoiled(record)


def _prepared(found: list[Record], locks: ExitStack, node: Node) -> list[_Renamed]:
    """Those that nothing else works on, recorded with their new ports."""
    turns: dict[str, Turn] = {}
    prepared = []
    for record in found:
        container = record.container_id
        if container not in turns:
            lock = node.journal.try_container_lock(container)
            if lock is None:
                continue
            turns[container] = Turn(record.key, node, locks.enter_context(lock).share)
        if node.journal.read_key(record.key) != record:
            continue
        with about(record.subject):
            try:
                spoiled = node.sockets.is_spoiled(record)
                new = record.to(record.state, steps=node.sockets.renamed(record)) if spoiled else record
                node.journal.write(new)
            except UserspaceError as error:
                say("warning", "its port cannot have another name", error=error)
                continue
        prepared.append(_Renamed(turns[container], new))
    return prepared


def _replace(renamed: list[_Renamed], node: Node, report: Report) -> None:
    pairs = [(old, each.record.port) for each in renamed for old in each.former if each.record.port]
    if not pairs:
        return
    node.sockets.replace(pairs, Deadline.after(WORK_S))
    for each in renamed:
        with about(each.record.subject):
            try:
                _finish(each, node)
            except UserspaceError as error:
                say("warning", "a port was replaced, and its socket cannot be placed now", error=error)
            else:
                report("renamed-port")


def _finish(renamed: _Renamed, node: Node) -> None:
    """Await the port, place its socket, and forget the port that it had, with the dead socket."""
    turn, record, deadline = renamed.turn, renamed.record, Deadline.after(WORK_S)
    for step in (record.port, record.socket):
        if step:
            turn.settle(turn.begin(record, [step], deadline))
    for old in renamed.former:
        node.sockets.free(old.name, deadline)
    node.journal.write(record.to(record.state, steps=renamed.steps))
    name = record.port.name if record.port else ""
    text = f"ovs-vswitchd could not make the socket of port {renamed.former[0].name}, which a dead one was in the way of: "
    say("info", "a port has another name, because ovs-vswitchd cannot make the socket of the one that it had", port=name)
    node.tell(record.recipient, (Notice(PORT_RESTORED, f"{text}the port is there again, as {name}"),))
