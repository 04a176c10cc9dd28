"""Finishes what dead processes and absent agents left: records that no call will finish, DELs that no agent received.

Decisions are pure functions of a record and the facts; a `Turn` acts. A record whose lock is taken is another
call's work and is left alone. A process that lives for one verb does a part of this at its end, because it has no tick; the
agent's `reconcile` does it on every tick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.apply import await_turn, try_turn
from userspace_cni.attachment.records import Record, record_key
from userspace_cni.attachment.steps import Lease, PortRef, SharedReads, Step, host_end, owner_marks, port_name
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import BadRequest, RecordRefused, UserspaceError
from userspace_cni.base.log import about, say
from userspace_cni.cni.mirror_chain import is_chained
from userspace_cni.cni.request import Called, Request, read_environment, read_network, subject_of

if TYPE_CHECKING:
    from userspace_cni.attachment.apply import Turn
    from userspace_cni.attachment.attachment_store import AttachmentStore
    from userspace_cni.attachment.node import Addresses, DriverOf, Sandboxes, Switch
    from userspace_cni.attachment.spool import Entry

TURN_S: Final = 2.0
"""Seconds for one record: an IPAM plugin has to start, and the API server's client costs 150 ms of CPU."""
GIVE_UP_S: Final = 10.0
"""Seconds for one record when there will be no other time for it."""
FINISH_ONE_S: Final = 6.0
"""The same in a process that lives for one verb: it has all of that to start, beside others on a busy node. Only what hangs needs
so long."""
UNDO_S: Final = 10.0
"""What the undoing of an ADD that failed has at least: the ADD may have failed because its time was over. All other undoing has
what is left of its verb's time: a caller that is answered sooner calls again, and waits no less."""

Report = Callable[[str], None]
"""Receives the name of each action that was taken, for counting."""


def is_unfinished(record: Record, boot_id: str) -> bool:
    """Whether this attachment will never be used again: its ADD was not answered, its DEL has begun, or the node rebooted.

    The kubelet may remember over a reboot that a claim is prepared, and not ask again: its devices are made anew instead.
    """
    return record.state != "ready" or (record.boot_id != boot_id and record.owner != "claim")


def is_newer(record: Record, called: Called, store: AttachmentStore) -> bool:
    """Whether the attachment was made after the DEL was called.

    Only the present boot can be ordered against another one. A time in the future is not believed.
    """
    if record.boot_id != store.boot_id() or record.boottime_ns > store.boottime_ns():
        return False
    return called.boot_id != store.boot_id() or record.boottime_ns > called.boottime_ns


def roll_back(record: Record, turn: Turn, cause: BaseException, deadline: Deadline) -> None:
    """Undo a failed ADD, or a device of a claim, as DEL does. Steps that cannot be undone now stay recorded; the cause remains
    the answer."""
    left = ""
    try:
        failures = turn.remove(record, deadline if deadline.remaining() > UNDO_S else Deadline.after(UNDO_S))
        if failures:
            steps = ", ".join(f"{failure.step.kind} ({failure.error.message})" for failure in failures)
            left = f"not undone yet, and recorded for later: {steps}"
    except UserspaceError as error:
        left = f"what is left of it could not be recorded: {error.message}"
    if left and isinstance(cause, UserspaceError):
        cause.details = f"{cause.details}; {left}".lstrip("; ")


def remove_rivals(
    record: Record, rivals: Iterable[str], store: AttachmentStore, driver: DriverOf, sandboxes: Sandboxes, deadline: Deadline
) -> None:
    """Undo attachments of a former sandbox of this pod that hold a name which this attachment needs: their DEL was lost.

    A pod has one sandbox at a time: while another one is attached, a sandbox whose namespace is gone has ended. In doubt the
    former attachment stays.
    """
    for key in rivals:
        former = store.journal.read_key(key)
        if former is None or not record.pod_uid or former.pod_uid != record.pod_uid:
            continue
        with try_turn(former.container_id, former.ifname, store, driver) as turn:
            over = is_unfinished(former, store.boot_id()) or (former.netns and sandboxes.is_gone(former.netns))
            if turn and over and turn.read() == former:
                say("warning", "a former sandbox of the pod was never detached; it is now", former=former.container_id)
                with about(former.subject):
                    turn.remove(former, deadline)


def reconstruct_record(container_id: str, ifname: str, network: str, store: AttachmentStore, sandboxes: Sandboxes) -> Record:
    """A record of what may exist of an attachment without one: never added, record lost, deleted before, or made by the plugin
    that this one replaces."""
    marks = owner_marks(container_id, network, ifname)
    marks["store"] = store.journal.identity()
    ports = [PortRef(name(container_id, ifname), marks=marks) for name in (port_name, host_end)]
    legacy = sandboxes.legacy(container_id, ifname)
    steps = (*traces(container_id, ifname, ports, store, sandboxes), *([legacy] if legacy else []))
    return Record("deleting", network, container_id, ifname, steps=steps)


def traces(
    container_id: str, ifname: str, ports: Iterable[PortRef], store: AttachmentStore, sandboxes: Sandboxes
) -> tuple[Step, ...]:
    """What is known of an attachment without a record, in the order of ADD: what it would have in the kernel, its port, and the
    shared things that it holds."""
    held = store.journal.held_by(record_key(container_id, ifname))
    return (
        *sandboxes.link_traces(container_id, ifname),
        *(step for step in held if not step.from_switch),
        *ports,
        *(step for step in held if step.from_switch),
    )


def sweep(store: AttachmentStore) -> None:
    """Remove half-written files of dead writers. Never fails."""
    store.spool.sweep()
    try:
        store.journal.sweep()
    except UserspaceError as error:
        say("warning", "half-written files of dead processes could not be removed", error=error)


def settle(store: AttachmentStore, driver: DriverOf, switch: Switch, sandboxes: Sandboxes, deadline: Deadline) -> None:
    """Once a boot, before its first attachment: undo the attachments of another boot, whose DEL may not have reached the disk.

    Each attachment is tried once, one after the other; `finish` tries again what could not be undone. Raises Unavailable when
    the time does not suffice: the next call goes on with the rest.
    """
    journal = store.journal
    if journal.is_settled:
        return
    with journal.boot_lock(deadline):
        if journal.is_settled:
            return
        for record in journal.records():
            if record.boot_id != store.boot_id() and not journal.was_tried(record):
                deadline.require("undoing the attachments of another boot")
                with about(record.subject):
                    _try_one(record, store, driver)
        _sweep_rows(store, driver, switch, sandboxes, deadline)
        journal.settle()


def _try_one(record: Record, store: AttachmentStore, driver: DriverOf) -> None:
    try:
        finish_one(record, store, driver)
    except UserspaceError as error:
        say("warning", "an attachment of another boot could not be undone now", error=error)


def _sweep_rows(store: AttachmentStore, driver: DriverOf, switch: Switch, sandboxes: Sandboxes, deadline: Deadline) -> None:
    """Remove the ports of another boot that no record names: OVSDB may have lost their deletion in a power cut."""
    identity = store.journal.identity()
    for port in switch.list_marked(None, deadline):
        container_id, ifname = port.marks.get("container-id", ""), port.marks.get("ifname", "")
        if port.marks.get("store") != identity or port.marks.get("boot-id", "") in ("", store.boot_id()):
            continue
        with try_turn(container_id, ifname, store, driver) as turn:
            if turn and turn.read() is None:
                say("info", "removing a port of another boot", port=port.name, container=container_id)
                turn.remove(_record_of(port, store, sandboxes), deadline)


def list_unrecorded_ports(store: AttachmentStore, switch: Switch) -> list[PortRef]:
    """The ports with the mark of our state directory that no record names. Raises Unavailable while it cannot be asked."""
    found = switch.list_marked(None, Deadline.after(TURN_S))
    identity = store.journal.identity()
    recorded = {record.key for record in store.journal.records()}
    return [port for port in found if port.marks.get("store") == identity and _key_of(port) not in recorded]


def _key_of(port: PortRef) -> str:
    return record_key(port.marks.get("container-id", ""), port.marks.get("ifname", ""))


def give_up(
    ports: Iterable[PortRef], store: AttachmentStore, driver: DriverOf, sandboxes: Sandboxes
) -> Iterator[tuple[Record, UserspaceError | None]]:
    """Undo every attachment, also those of living pods, and these ports of ours without a record; each, with why that failed.

    For an installation that is taken away: no DEL will be served any more. Raises RecordRefused.
    """
    for record in [*store.journal.records(), *(_record_of(port, store, sandboxes) for port in ports)]:
        with about(record.subject):
            try:
                deadline = Deadline.after(GIVE_UP_S)
                with await_turn(record.container_id, record.ifname, store, driver, deadline) as turn:
                    turn.remove(turn.read() or record, deadline)
            except UserspaceError as error:
                yield record, error
            else:
                yield record, None


def _record_of(port: PortRef, store: AttachmentStore, sandboxes: Sandboxes) -> Record:
    container_id, ifname = port.marks.get("container-id", ""), port.marks.get("ifname", "")
    steps = traces(container_id, ifname, [port], store, sandboxes)
    return Record("deleting", port.marks.get("network", ""), container_id, ifname, steps=steps)


def drain(
    store: AttachmentStore, sandboxes: Sandboxes, addresses: Addresses, deadline: Deadline, report: Report = lambda _: None
) -> None:
    """Turn spooled DELs into records that say `deleting`, oldest first; begin with none after the deadline.

    Never fails: an entry that cannot be recorded now, or whose attachment is in use by another call, stays for the next time.
    """
    try:
        for entry in store.spool.entries():
            if not deadline.remaining():
                return
            with about(_subject(entry)):
                _drain_one(entry, store, sandboxes, addresses, report)
    except UserspaceError as error:
        say("warning", "DELs that were called without an agent wait longer", error=error)


def drain_one(key: str, store: AttachmentStore, sandboxes: Sandboxes, addresses: Addresses) -> None:
    """Turn this attachment's spooled DELs into records, which `drain` could not while its lock was taken; the caller has it now.

    Raises RecordRefused when one cannot be recorded: the caller would take an attachment for living whose DEL was answered.
    """
    try:
        entries = list(store.spool.entries(keep=True))
    except RecordRefused:
        return  # a spool that cannot be read fails no verb; `drain` has logged it
    for entry in entries:
        if record_key(entry.environ.get("CNI_CONTAINERID", ""), entry.environ.get("CNI_IFNAME", "")) == key:
            with suppress(BadRequest), about(_subject(entry)):
                _carry_out(entry, _call_of(entry), store, sandboxes, addresses)


def _drain_one(entry: Entry, store: AttachmentStore, sandboxes: Sandboxes, addresses: Addresses, report: Report) -> None:
    try:
        call = _call_of(entry)
    except BadRequest as error:
        store.spool.put_aside(entry.name, str(error))
        return
    lock = store.journal.try_turn_lock(record_key(call.environment.container_id, call.environment.ifname))
    if lock is None:
        return
    with lock:
        if _carry_out(entry, call, store, sandboxes, addresses):
            report("spooled-del")


def _subject(entry: Entry) -> dict[str, str]:
    try:
        return {**subject_of(entry.environ), "network": read_network(entry.stdin, "DEL").name}
    except BadRequest:
        return subject_of(entry.environ)


def _call_of(entry: Entry) -> Request:
    """The DEL. Raises BadRequest."""
    environment = read_environment({**entry.environ, "CNI_COMMAND": "DEL"}, "DEL")
    return Request(environment, read_network(entry.stdin, "DEL"), entry.stdin)


def _carry_out(entry: Entry, call: Request, store: AttachmentStore, sandboxes: Sandboxes, addresses: Addresses) -> bool:
    """Record what the DEL is to remove, and drop the entry; whether there was anything. The caller holds its lock."""
    record = _deleted_by(entry, call, store, sandboxes, addresses)
    if record:
        say("info", "a DEL that was called without an agent is carried out")
        store.journal.keep(record.to("deleting"))
    store.spool.remove(entry.name)
    return record is not None


def undo(
    entry: Entry, store: AttachmentStore, driver: DriverOf, sandboxes: Sandboxes, addresses: Addresses, deadline: Deadline
) -> None:
    """Undo an ADD whose caller left before the answer. Touches no newer attachment, and never fails."""
    call = _call_of(entry)
    with about({**subject_of(entry.environ), "network": call.network.name}):
        try:
            with await_turn(call.environment.container_id, call.environment.ifname, store, driver, deadline) as turn:
                record = _deleted_by(entry, call, store, sandboxes, addresses)
                if record:
                    turn.remove(record, deadline)
        except UserspaceError as error:
            say("warning", "an attachment whose caller has gone stays for now", error=error)


def _deleted_by(entry: Entry, call: Request, store: AttachmentStore, sandboxes: Sandboxes, addresses: Addresses) -> Record | None:
    """The record of what the DEL is to remove, as it is stored or made up of traces; None when there is nothing to remove."""
    environment, network = call.environment, call.network
    if is_chained(network):
        return None  # the attachment is the plugin's before it, which has a DEL of its own
    record = store.journal.read(environment.container_id, environment.ifname)
    if record:
        stale = record.network != network.name or record.state == "deleting" or is_newer(record, entry.called, store)
        return None if stale else record
    record = reconstruct_record(environment.container_id, environment.ifname, network.name, store, sandboxes)
    if not network.ipam:
        return record
    # Only this call names the IPAM plugin: it is asked to release, and its refusal matters only where a lease may exist.
    granted = None if any(step.may_have_lease for step in record.steps) else False
    stdin = addresses.as_leased(call).stdin
    lease = Lease(network.ipam, stdin.decode("utf-8"), environment.variables, granted)
    return record.to("deleting", steps=(lease, *record.steps))


def finish(store: AttachmentStore, driver: DriverOf, deadline: Deadline) -> None:
    """Finish what earlier processes left; begin with no other record than the first after the deadline.

    Never fails: the verb at whose end it runs has its own answer. Each call begins at another record, so that one that cannot
    be finished does not block the others. It does that one however late it is: on a node so busy that reading the records takes
    all of the time, nothing would be finished otherwise.
    """
    try:
        records = store.journal.records()
        boot_id = store.boot_id()
    except UserspaceError as error:
        say("warning", "the attachments of earlier calls could not be looked at", error=error)
        return
    first = store.boottime_ns() % max(1, len(records))
    for number, record in enumerate(records[first:] + records[:first]):
        if number and not deadline.remaining():
            return
        with about(record.subject):
            try:
                if is_unfinished(record, boot_id):
                    finish_one(record, store, driver)
                else:
                    place_again(record, store, driver)
            except UserspaceError as error:
                say("warning", "an earlier attachment could not be repaired", error=error)


def finish_one(record: Record, store: AttachmentStore, driver: DriverOf) -> None:
    """Undo an unfinished attachment unless another call works on it."""
    with try_turn(record.container_id, record.ifname, store, driver) as turn:
        current = turn.read() if turn else None
        if turn and current and is_unfinished(current, store.boot_id()):
            say("info", "finishing what an earlier call left", state=current.state)
            for step in current.steps:
                driver(step).prepare()
            turn.remove(current, Deadline.after(FINISH_ONE_S))


def place_again(record: Record, store: AttachmentStore, driver: DriverOf) -> bool:
    """Place the server-mode sockets that a restarted OVS made anew: those that the pod sees are dead. Whether there were any."""
    if not _lost_sockets(record, driver):
        return False
    with try_turn(record.container_id, record.ifname, store, driver) as turn:
        if turn is None or turn.read() != record:
            return False
        lost = _lost_sockets(record, driver)
        turn.settle(turn.begin(record, lost, Deadline.after(TURN_S), again=True))
    for step in lost:
        say("info", "placed again what a restarted OVS has recreated", step=step.kind)
    return bool(lost)


def _lost_sockets(record: Record, driver: DriverOf) -> list[Step]:
    """The steps that place something that OVS makes, and whose thing is missing where the pod sees it."""
    deadline, seen = Deadline.after(TURN_S), SharedReads()
    return [step for step in record.steps if step.from_switch and driver(step).is_lost(step, seen, deadline)]
