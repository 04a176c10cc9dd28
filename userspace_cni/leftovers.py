"""Brings reality back to the records: what a dead process began is undone, what OVS made anew is placed again.

Decisions are pure functions of a record and the facts; acting is `attach`'s. A record whose container's lock is taken is
somebody's work in progress and is left alone.
"""

from __future__ import annotations

from typing import Final, Protocol

from userspace_cni import attach
from userspace_cni.deadline import Deadline
from userspace_cni.errors import UserspaceError
from userspace_cni.journal import Journal
from userspace_cni.log import say
from userspace_cni.records import Record
from userspace_cni.steps import PlacedSocket

TURN_S: Final = 2.0
"""What one record may take once it is begun: an IPAM plugin has to start, and the API server's client costs 150 ms of CPU."""
PLACE_S: Final = 0.05
"""What placing a socket again may take: OVS has made it anew, or there is nothing to wait for. A pod that removes its own socket
must not hold up every call on its node."""


class Node(attach.Drivers, Protocol):
    """What reconciliation asks of the node beside its drivers."""

    def boot_id(self) -> str:
        """The kernel's random id of this boot."""
        ...

    def boottime_ns(self) -> int:
        """CLOCK_BOOTTIME now, in nanoseconds."""
        ...


def is_unfinished(record: Record, boot_id: str) -> bool:
    """Whether nobody will ever use this attachment again: its ADD was not answered, its DEL has begun, or the node rebooted."""
    return record.state != "ready" or record.boot_id != boot_id


def remove(record: Record, node: attach.Drivers, journal: Journal, deadline: Deadline) -> list[attach.Failure]:
    """Record durably that the attachment is being deleted, then undo it. The caller holds the container's lock.

    Returns what could not be undone; the record then still says `deleting`.
    """
    if record.state != "deleting":
        record = record.to("deleting")
        try:
            journal.write(record)
        except UserspaceError as error:
            # a full disk must not keep a port: undo all the same, and the old record still leads whoever comes next here
            say("warning", "the record could not be marked as deleting", error=error)
    return attach.undo_steps(record, node, journal, deadline)


def finish(node: Node, journal: Journal, deadline: Deadline) -> None:
    """Finish what earlier processes left; begin with no record after the deadline.

    Never fails: the verb at whose end it runs has its own answer. Each call begins somewhere else in the list, so that a record
    that can not be finished keeps no other from its turn.
    """
    try:
        records = journal.records()
        boot_id = node.boot_id()
    except UserspaceError as error:
        say("warning", "what earlier calls left was not looked at", error=error)
        return
    first = node.boottime_ns() % max(1, len(records))
    for record in records[first:] + records[:first]:
        if not deadline.remaining():
            return
        try:
            if is_unfinished(record, boot_id):
                _finish_one(record, node, journal)
            else:
                _place_again(record, node)
        except UserspaceError as error:
            say("warning", "an earlier attachment could not be put right", container=record.container_id, error=error)


def _finish_one(record: Record, node: Node, journal: Journal) -> None:
    lock = journal.try_container_lock(record.container_id)
    if lock is None:
        return
    with lock:
        current = journal.read_key(record.key)
        if current and is_unfinished(current, node.boot_id()):
            say("info", "finishing what an earlier call left", container=current.container_id, state=current.state)
            remove(current, node, journal, Deadline.after(TURN_S))


def _place_again(record: Record, node: Node) -> None:
    """After a restart OVS makes server-mode sockets anew at their old place, and those that pods see are dead."""
    deadline = Deadline.after(PLACE_S)
    for step in record.steps:
        if isinstance(step, PlacedSocket) and node.driver(step).check(step, deadline):
            node.driver(step).apply(step, deadline)
            say("info", "placed the socket of a restarted OVS again", container=record.container_id, socket=step.name)
