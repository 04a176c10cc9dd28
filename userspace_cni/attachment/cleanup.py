"""What dead processes and absent agents left: records that nobody will finish, DELs that nobody has heard.

Decisions are pure functions of a record and the facts; acting is `apply`'s. A record whose container's lock is taken is
somebody's work in progress and is left alone. Every process of one verb does a part of this at its end, for it has no tick; the
agent's `reconcile` does it on every tick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol

from userspace_cni.attachment import apply
from userspace_cni.attachment.journal import Journal
from userspace_cni.attachment.plan import owner_marks, port_name
from userspace_cni.attachment.records import Record, record_key
from userspace_cni.attachment.spool import Entry, Spool
from userspace_cni.attachment.steps import STEP_TYPES, Lease, LegacyRecord, PlacedSocket, PortRef, Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import BadRequest, RecordRefused, UserspaceError
from userspace_cni.base.log import about, say
from userspace_cni.cni.protocol import Called
from userspace_cni.cni.request import Environment, Network, read_environment, read_network, subject_of

TURN_S: Final = 2.0
"""What one record may take once it is begun: an IPAM plugin has to start, and the API server's client costs 150 ms of CPU."""
PLACE_S: Final = 0.05
"""What placing a socket again may take: OVS has made it anew, or there is nothing to wait for. A pod that removes its own socket
must not hold up every call on its node."""

Report = Callable[[str], None]
"""Is told the name of each action that was taken, for counting."""


class Clock(Protocol):
    """What time it is, as far as calls are ordered by it."""

    def boot_id(self) -> str:
        """The kernel's random id of this boot."""
        ...

    def boottime_ns(self) -> int:
        """CLOCK_BOOTTIME now, in nanoseconds."""
        ...


class Node(apply.Drivers, Clock, Protocol):
    """What finishing asks of the node beside its drivers."""

    @property
    def spool(self) -> Spool:
        """The DELs that no agent has seen."""
        ...

    def legacy(self, container_id: str, ifname: str) -> LegacyRecord | None:
        """The record that the plugin we replace left of this attachment."""
        ...

    def netns_is_gone(self, path: str) -> bool:
        """Whether nothing is at `path` while another namespace is visible in the same directory."""
        ...

    def marked_ports(self, network: str | None, deadline: Deadline) -> list[PortRef]:
        """All ports with our owner mark for this network (None: for any), whatever their store. Raises Unavailable."""
        ...


def is_unfinished(record: Record, boot_id: str) -> bool:
    """Whether nobody will ever use this attachment again: its ADD was not answered, its DEL has begun, or the node rebooted."""
    return record.state != "ready" or record.boot_id != boot_id


def is_newer(record: Record, called: Called, node: Clock) -> bool:
    """Whether the attachment was made after the DEL was called.

    Of two boots only the present one can be told from the other; a time that is yet to come is no time.
    """
    if record.boot_id != node.boot_id() or record.boottime_ns > node.boottime_ns():
        return False
    return called.boot_id != node.boot_id() or record.boottime_ns > called.boottime_ns


def remove(record: Record, node: apply.Drivers, journal: Journal, deadline: Deadline) -> list[apply.Failure]:
    """Record that the attachment is being deleted, then undo it. The caller holds the container's lock.

    Returns what could not be undone; the record then still says `deleting`. Raises RecordRefused, with nothing undone, when a
    living attachment cannot be marked: what is gone would be made again, without holders.
    """
    if record.state != "deleting":
        record = journal.mark_deleting(record)
    return apply.undo_steps(record, node, journal, deadline)


def make_way(record: Record, rivals: Iterable[str], node: Node, journal: Journal, deadline: Deadline) -> None:
    """Undo attachments of a former sandbox of this pod that hold a name which is to be this one's: the DEL for them was lost.

    A pod has one sandbox at a time, so one whose namespace is gone while another is attached is over. What is in doubt stays.
    """
    for key in rivals:
        former = journal.read_key(key)
        if former is None or not record.pod_uid or former.pod_uid != record.pod_uid:
            continue
        lock = journal.try_container_lock(former.container_id)
        if lock is None:
            continue
        with lock:
            over = is_unfinished(former, node.boot_id()) or (former.netns and node.netns_is_gone(former.netns))
            if over and journal.read_key(key) == former:
                say("warning", "a former sandbox of the pod was never detached; it is now", former=former.container_id)
                with about(former.subject):
                    remove(former, node, journal, deadline)


def unrecorded(container_id: str, ifname: str, network: str, node: Node, journal: Journal) -> Record:
    """What may exist of an attachment without a record: never added, lost, deleted before, or made by the plugin we replace."""
    marks = owner_marks(container_id, network, ifname)
    marks["store"] = journal.identity()
    port = PortRef(port_name(container_id, ifname), marks=marks)
    legacy = node.legacy(container_id, ifname)
    steps = (*traces(container_id, ifname, port, journal), *([legacy] if legacy else []))
    return Record("deleting", network, container_id, ifname, steps=steps)


def traces(container_id: str, ifname: str, port: PortRef, journal: Journal) -> tuple[Step, ...]:
    """What an attachment without a record leads to, in the order of ADD: its port, and what it holds."""
    held = apply.held_by(record_key(container_id, ifname), journal)
    return tuple(sorted([*held, port], key=lambda step: STEP_TYPES.index(type(step))))


def sweep(node: Node, journal: Journal) -> None:
    """Remove what writers that died left half-written. Never fails."""
    node.spool.sweep()
    try:
        journal.sweep()
    except UserspaceError as error:
        say("warning", "what dead writers left could not be removed", error=error)


def settle(node: Node, journal: Journal, deadline: Deadline) -> None:
    """Once a boot, before its first attachment: undo what is of another, whose end may not have reached the disk.

    Each is tried once, one after the other; one that cannot be undone is left to `finish`. Raises Unavailable when the time does
    not suffice: the next call goes on with the rest.
    """
    if journal.is_settled:
        return
    with journal.boot_lock(deadline):
        if journal.is_settled:
            return
        for record in journal.records():
            if record.boot_id != node.boot_id() and not journal.was_tried(record):
                deadline.require("undoing what is of another boot")
                with about(record.subject):
                    _try_one(record, node, journal)
        _sweep_rows(node, journal, deadline)
        journal.settle()


def _try_one(record: Record, node: Node, journal: Journal) -> None:
    try:
        finish_one(record, node, journal)
    except UserspaceError as error:
        say("warning", "an attachment of another boot could not be undone now", error=error)


def _sweep_rows(node: Node, journal: Journal, deadline: Deadline) -> None:
    """Remove the ports of another boot that no record names: a database may have lost what came after a record was dropped."""
    store = journal.identity()
    for port in node.marked_ports(None, deadline):
        container_id, ifname = port.marks.get("container-id", ""), port.marks.get("ifname", "")
        if port.marks.get("store") != store or port.marks.get("boot-id", "") in ("", node.boot_id()):
            continue
        lock = journal.try_container_lock(container_id)
        if lock is None:
            continue
        with lock:
            if journal.read(container_id, ifname) is None:
                say("info", "removing a port of another boot", port=port.name, container=container_id)
                record = Record("deleting", port.marks.get("network", ""), container_id, ifname)
                remove(record.to("deleting", steps=traces(container_id, ifname, port, journal)), node, journal, deadline)


def drain(node: Node, journal: Journal, deadline: Deadline, report: Report = lambda _: None) -> None:
    """Turn spooled DELs into records that say `deleting`, oldest first; begin with none after the deadline.

    Never fails: an entry that can not be dealt with now, or whose container is being worked on, stays for the next time.
    """
    try:
        for entry in node.spool.entries():
            if not deadline.remaining():
                return
            with about(_subject(entry)):
                _drain_one(entry, node, journal, report)
    except UserspaceError as error:
        say("warning", "DELs that were called without an agent wait longer", error=error)


def hear(container_id: str, node: Node, journal: Journal) -> None:
    """Turn this container's spooled DELs into records, which `drain` could not while its lock was taken; the caller has it now.

    Raises RecordRefused when one cannot be recorded: the caller would take for attached what was answered as deleted.
    """
    try:
        entries = list(node.spool.entries(keep=True))
    except RecordRefused:
        return  # a spool that cannot be read fails no verb; `drain` has told of it
    for entry in entries:
        if entry.environ.get("CNI_CONTAINERID") == container_id:
            with suppress(BadRequest), about(_subject(entry)):
                _hear(entry, *_call_of(entry), node, journal)


def _drain_one(entry: Entry, node: Node, journal: Journal, report: Report) -> None:
    try:
        environment, network = _call_of(entry)
    except BadRequest as error:
        node.spool.put_aside(entry.name, str(error))
        return
    lock = journal.try_container_lock(environment.container_id)
    if lock is None:
        return
    with lock:
        if _hear(entry, environment, network, node, journal):
            report("spooled-del")


def _subject(entry: Entry) -> dict[str, str]:
    """Of which attachment the DEL is."""
    try:
        return {**subject_of(entry.environ), "network": read_network(entry.stdin, "DEL").name}
    except BadRequest:
        return subject_of(entry.environ)


def _call_of(entry: Entry) -> tuple[Environment, Network]:
    """What the DEL says. Raises BadRequest."""
    return read_environment(entry.environ, "DEL"), read_network(entry.stdin, "DEL")


def _hear(entry: Entry, environment: Environment, network: Network, node: Node, journal: Journal) -> bool:
    """Record what the DEL is to remove, and forget the entry; whether there was anything. The container's lock is held."""
    marked = _overtaken_by(entry, environment, network, node, journal)
    if marked:
        say("info", "a DEL that was called without an agent is carried out")
        journal.keep(marked)
    node.spool.remove(entry.name)
    return marked is not None


def undo(entry: Entry, node: Node, journal: Journal, deadline: Deadline) -> None:
    """Carry out a DEL that nobody called: of an ADD whose answer nobody has taken. Touches nothing newer, and never fails."""
    environment = read_environment({**entry.environ, "CNI_COMMAND": "DEL"}, "DEL")
    network = read_network(entry.stdin, "DEL")
    with about({**subject_of(entry.environ), "network": network.name}):
        try:
            with journal.container_lock(environment.container_id, deadline):
                record = _overtaken_by(entry, environment, network, node, journal)
                if record:
                    remove(record, node, journal, deadline)
        except UserspaceError as error:
            say("warning", "an attachment that nobody knows of stays for now", error=error)


def _overtaken_by(entry: Entry, environment: Environment, network: Network, node: Node, journal: Journal) -> Record | None:
    """The record, saying `deleting`, of what the DEL is to remove; None when it has nothing to say."""
    record = journal.read(environment.container_id, environment.ifname)
    if record:
        stale = record.network != network.name or record.state == "deleting" or is_newer(record, entry.called, node)
        return None if stale else record.to("deleting")
    record = unrecorded(environment.container_id, environment.ifname, network.name, node, journal)
    if not network.ipam:
        return record
    # Nothing tells of a lease but this call: its plugin is asked, and its refusal believed unless the former plugin's record says
    # that there was an attachment.
    granted = None if any(isinstance(step, LegacyRecord) for step in record.steps) else False
    lease = Lease(network.ipam, entry.stdin.decode("utf-8"), environment.variables, granted)
    return record.to("deleting", steps=(lease, *record.steps))


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
        with about(record.subject):
            try:
                if is_unfinished(record, boot_id):
                    finish_one(record, node, journal)
                else:
                    place_again(record, node, journal)
            except UserspaceError as error:
                say("warning", "an earlier attachment could not be put right", error=error)


def finish_one(record: Record, node: Node, journal: Journal) -> bool:
    """Undo an unfinished attachment unless somebody works on its container; whether nothing is left of it."""
    lock = journal.try_container_lock(record.container_id)
    if lock is None:
        return False
    with lock:
        current = journal.read_key(record.key)
        if current is None or not is_unfinished(current, node.boot_id()):
            return False
        say("info", "finishing what an earlier call left", state=current.state)
        return not remove(current, node, journal, Deadline.after(TURN_S))


def place_again(record: Record, node: apply.Drivers, journal: Journal) -> bool:
    """After a restart OVS makes server-mode sockets anew at their old place, and those that pods see are dead."""
    if not _misplaced(record, node):
        return False
    lock = journal.try_container_lock(record.container_id)
    if lock is None:
        return False
    with lock:
        if journal.read_key(record.key) != record:
            return False
        lost = _misplaced(record, node)
        apply.settle(apply.begin_steps(record, lost, node, journal, Deadline.after(PLACE_S)))
    for step in lost:
        say("info", "placed the socket of a restarted OVS again", socket=step.name)
    return bool(lost)


def _misplaced(record: Record, node: apply.Drivers) -> list[PlacedSocket]:
    """The sockets of OVS that are not where the pod sees them."""
    deadline = Deadline.after(PLACE_S)
    return [step for step in record.steps if isinstance(step, PlacedSocket) and node.driver(step).check(step, deadline)]
