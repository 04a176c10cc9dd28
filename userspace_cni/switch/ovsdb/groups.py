"""Commits the transactions of several callers as one, because ovs-vswitchd goes through all of its ports after each commit.

A group is what queued while the previous commit ran: there is no timer, and a single caller never waits for others. Each caller
keeps:
- its own deadline: when it passes the caller is answered, and the group goes on for the others;
- its own error: a command that cannot be run is left out, and when the server refuses the group its members run one by one;
- its own view: no command sees what another one of the group is about to write. A Draft collects what all change on a bridge.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ovs.db import idl as ovs_idl
from ovsdbapp.backend.ovs_idl import command

from userspace_cni.attachment.steps import OwnerKind, owner_kind
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.switch.ovsdb.mirrors import MirrorDraft
from userspace_cni.switch.ovsdb.replica import (
    CLOSED,
    SLACK_SECONDS,
    Clause,
    Replica,
    SessionLost,
    count,
    references,
    value_of,
)

if TYPE_CHECKING:
    from userspace_cni.switch.ovsdb.session import Connection, Session

HUNG_SECONDS = 0.5
"""A session is given up when the server has been silent for so long and all callers have run out of time. A shorter silence
proves nothing; the probe of a session that lives long finds a hung server."""

_STILL_THERE = {"op": "select", "table": "Open_vSwitch", "where": [], "columns": ["_uuid"]}
Operation = dict[str, Any]
"""One operation of a transaction: RFC 7047, 5.2."""
Json = tuple[str, Any]
"""A set, a map or a reference as OVSDB writes it: RFC 7047, 5.1."""


class Refused(Exception):
    """ovsdb-server rejected the transaction; `error` and `details` are its own words (RFC 7047, 4.1.3)."""

    def __init__(self, error: str, details: str) -> None:
        super().__init__(f"{error}: {details}")
        self.error = error
        self.details = details


class Command(command.BaseCommand):  # type: ignore[misc]
    """One action of a transaction. `run_idl` runs again when the database has changed meanwhile.

    `run_idl(draft)` may raise an error of ours only before it writes to the Draft.
    """

    api: Session
    port: str = ""
    """The port that it writes: two commands on one port never share a transaction."""

    def needs(self) -> frozenset[Clause]:
        """The rows of Port and Interface that `run_idl` looks at; may depend on what is already replicated."""
        return frozenset()

    def should_retry(self, refused: Refused) -> bool:  # noqa: ARG002 - for subclasses
        """Whether to run the command once more after the server rejected it alone."""
        return False


class Draft(ovs_idl.Transaction):  # type: ignore[misc]
    """A transaction that is being written: its operations as OVSDB takes them, in order."""

    def __init__(self, idl: Replica) -> None:
        super().__init__(idl)
        self._bridges: dict[str, BridgeDraft] = {}
        self._inserted = 0
        self._afxdp: dict[str, frozenset[str]] = {}
        self._answers: list[Any] = []

    def select(self, table: str, where: list[Any], columns: list[str]) -> int:
        """Read columns that are not replicated; returns the number by which `selected` finds the answer."""
        self.add_op({"op": "select", "table": table, "where": where, "columns": columns})
        return len(self._operations) - 1

    def selected(self, number: int) -> list[dict[str, Any]]:
        """The rows of a `select`, with values as OVSDB writes them (RFC 7047, 5.1). Only after the commit."""
        rows: list[dict[str, Any]] = self._answers[number]["rows"]
        return rows

    def _process_reply(self, msg: Any) -> None:
        """As the base class, and keep the answers."""
        super()._process_reply(msg)
        if isinstance(msg.result, list):
            self._answers = msg.result[len(msg.result) - len(self._operations) :]

    def verify(self, row: Any, *columns: str) -> None:
        """Commit only if these columns of the row are still what the replica shows, and the row is still there."""
        shown = {column: as_json(value_of(row, column)) for column in columns}
        self.expect(row._table.name, by_uuid(row), [shown])  # noqa: SLF001

    def expect(self, table: str, where: list[Any], rows: list[Operation], *, until: str = "==") -> None:
        """Commit only if at this point of the transaction the rows chosen by `where` are (with "!=": are not) `rows`."""
        columns = list(rows[0]) if rows else ["name"]
        wait = {"op": "wait", "table": table, "where": where, "columns": columns, "until": until, "rows": rows}
        self.add_op(wait | {"timeout": 0})

    def write(self, table: str, columns: dict[str, Any]) -> Json:
        """Insert a row; returns the reference to it within this transaction."""
        self._inserted += 1
        name = f"row{self._inserted}"
        row = {column: as_json(value) for column, value in columns.items()}
        self.add_op({"op": "insert", "table": table, "uuid-name": name, "row": row})
        return ("named-uuid", name)

    def update(self, row: Any, columns: dict[str, Any]) -> None:
        """Write these columns of the row."""
        changes = {column: as_json(value) for column, value in columns.items()}
        self.add_op({"op": "update", "table": row._table.name, "where": by_uuid(row), "row": changes})  # noqa: SLF001

    def delete(self, row: Any) -> None:
        """Delete the row, which must be of a root table and referred to by none."""
        self.add_op({"op": "delete", "table": row._table.name, "where": by_uuid(row)})  # noqa: SLF001

    def increment(self, row: Any, column: str) -> None:
        """Add one to the column, whatever its value is at the commit."""
        self.add_op({"op": "mutate", "table": row._table.name, "where": by_uuid(row), "mutations": [[column, "+=", 1]]})  # noqa: SLF001

    def confirm(self) -> int:
        """Have ovs-vswitchd say when it has done what this transaction asks for; returns the number for `confirmed`."""
        self.increment(self.idl.root(), "next_cfg")
        return self.select("Open_vSwitch", [], ["next_cfg"])

    def confirmed(self, number: int) -> Callable[[], Literal[True] | None]:
        """What a Watch on SWITCH looks for: whether ovs-vswitchd has done it. Only after the commit."""
        wanted = self.configuration(number)
        return lambda: True if value_of(self.idl.root(), "cur_cfg") >= wanted else None

    def configuration(self, number: int) -> int:
        """The number of the configuration for which ovs-vswitchd was asked with `confirm`. Only after the commit."""
        configuration: int = self.selected(number)[0]["next_cfg"]
        return configuration

    def mutate(self, row: Any, column: str, mutator: str, members: list[Json]) -> None:
        """Insert members into the column, or delete them from it."""
        mutations = [[column, mutator, ("set", members)]]
        self.add_op({"op": "mutate", "table": row._table.name, "where": by_uuid(row), "mutations": mutations})  # noqa: SLF001

    def bridge(self, name: str, row: Any) -> BridgeDraft:
        """The changes to this bridge; `row` is None while the bridge does not exist."""
        if name not in self._bridges:
            self._bridges[name] = BridgeDraft(name, row)
        return self._bridges[name]

    def take_afxdp(self, name: str, others: frozenset[str], most: int) -> bool:
        """Count an interface of type afxdp that is to be added, if there are no more than `most` then; whether that is so.

        Commit only if the `others` are all that the database has.
        """
        fits = len(others | self._afxdp.keys() | {name}) <= most
        if fits:
            self._afxdp[name] = others
        return fits

    def complete(self, replica: Replica) -> None:
        """Write the changes to bridges, and a `select`, so that the server always answers."""
        for bridge in self._bridges.values():
            bridge.write(self, replica)
        if self._afxdp:
            names = sorted(frozenset(self._afxdp).union(*self._afxdp.values()))
            self.expect("Interface", [["type", "==", "afxdp"]], [{"name": name} for name in names])
        self.add_op(_STILL_THERE)


class BridgeDraft:
    """One bridge in a Draft: all that the group does with its ports and mirrors. Whether it is deleted is decided once, here."""

    def __init__(self, name: str, row: Any) -> None:
        self.name = name
        self.row = row
        self._mirrors: dict[str, MirrorDraft] = {}
        self._made: tuple[dict[str, Any], dict[str, Any], dict[str, Any]] | None = None
        self._added: list[Json] = []
        self._removed: list[uuid.UUID] = []
        self._ours = False
        self._given_up = False
        self.deleted = False

    def make(self, bridge: dict[str, Any], local_port: dict[str, Any], local_interface: dict[str, Any]) -> None:
        """Make the bridge, which does not exist, with these columns."""
        self._made = bridge, local_port, local_interface

    def require_maker(self, kind: OwnerKind) -> None:
        """Raise Unavailable if another member of the group makes the bridge, for another kind of owner."""
        if self._made is not None and owner_kind(self._made[0]["external_ids"]) != kind:
            raise Unavailable(f"bridge {self.name} is being made by another attachment", "try again: then it shows whose it is")

    def give_up(self) -> None:
        """Delete the bridge, unless the group adds a port: `deleted` says so after the commit."""
        self._given_up = True

    def add(self, port: Json) -> None:
        """Add the port with this reference."""
        self._added.append(port)

    def mirror(self, name: str, row: Any) -> MirrorDraft:
        """The changes to this mirror; `row` is None while the bridge has none of that name."""
        if name not in self._mirrors:
            self._mirrors[name] = MirrorDraft(name, row)
        return self._mirrors[name]

    def remove(self, port: Any, *, ours: bool) -> None:
        """Remove the row `port` (None: none); a bridge of ours is deleted when no port is left."""
        self._ours = ours
        if port is not None:
            self._removed.append(port.uuid)

    def write(self, draft: Draft, replica: Replica) -> None:
        """Write the operations."""
        if self._made is not None:
            self._insert(draft, replica.root())
            return
        local = replica.names("Port").get(self.name)
        kept = [as_json(local.uuid)] if local is not None else []
        if not self._added and (self._given_up or (self._ours and self._is_last(kept))):
            self.deleted = True
            draft.verify(self.row, "ports", "external_ids")
            draft.mutate(replica.root(), "bridges", "delete", [as_json(self.row.uuid)])
            return
        if self._added:
            draft.verify(self.row, "name", "datapath_type")
            draft.mutate(self.row, "ports", "insert", self._added)
        self._write_mirrors(draft)
        if self._removed:
            draft.mutate(self.row, "ports", "delete", [as_json(port) for port in self._removed])
            if self._ours:
                # Two sessions may each remove one of the last two ports: the later one must notice that no port is left.
                draft.expect("Bridge", by_uuid(self.row), [{"ports": ("set", kept)}], until="!=")

    def _write_mirrors(self, draft: Draft) -> None:
        changed = [mirror for mirror in self._mirrors.values() if mirror.is_changed]
        if changed:
            draft.verify(self.row, "mirrors")
        for mirror in changed:
            made, gone = mirror.write(draft, self.row)
            if gone is not None:
                draft.mutate(self.row, "mirrors", "delete", [gone])
            if made is not None:
                draft.mutate(self.row, "mirrors", "insert", [made])

    def _is_last(self, kept: list[Json]) -> bool:
        return count(self.row, "ports") <= len(kept) + len(self._removed) and not (
            references(self.row, "ports") - set(self._removed) - {uuid.UUID(reference[1]) for reference in kept}
        )

    def _insert(self, draft: Draft, root: Any) -> None:
        assert self._made is not None  # noqa: S101 - for the type checker
        bridge, local_port, local_interface = self._made
        interface = draft.write("Interface", local_interface)
        local = draft.write("Port", local_port | {"interfaces": interface})
        mirrors = [made for each in self._mirrors.values() if each.is_changed and (made := each.write(draft, None)[0])]
        made = draft.write("Bridge", bridge | {"ports": ("set", [local, *self._added]), "mirrors": ("set", mirrors)})
        draft.mutate(root, "bridges", "insert", [made])


class Member:
    """One caller's commands, and its wait for them."""

    def __init__(self, commands: Iterable[Command], deadline: Deadline) -> None:
        self.commands: Sequence[Command] = tuple(commands)
        self.deadline = deadline
        self.certain = False
        self.begun = False
        self._answered = threading.Event()
        self._error: BaseException | None = None

    @property
    def ports(self) -> frozenset[str]:
        """Names of the ports that the commands write."""
        return frozenset(each.port for each in self.commands if each.port)

    @property
    def answered(self) -> bool:
        """Whether the caller has its answer."""
        return self._answered.is_set()

    def answer(self, error: BaseException | None = None) -> None:
        """Give the caller its answer, `error` or success; only the first call counts."""
        if not self.answered:
            self._error = error
            self._answered.set()

    def wait(self, remote: str) -> None:
        """Wait for the answer; raises its error."""
        if not self._answered.wait(self.deadline.remaining() + SLACK_SECONDS):
            begun = "; whether the transaction was done is unknown" if self.begun else ""
            raise Unavailable(f"OVSDB is busy with other transactions{begun}", f"is ovsdb-server at {remote} overloaded?")
        if self._error is not None:
            raise self._error


class Commit:
    """The commit of one group. Runs on the connection's thread, which holds the lock."""

    def __init__(self, link: Connection, members: Sequence[Member]) -> None:
        self._link = link
        self._idl: Replica = link.idl
        self._members = list(members)
        self._began = time.monotonic()

    def run(self) -> None:
        """Commit until every member is answered."""
        try:
            while self._in_time():
                self._replicate()
                self._try_once()
        except Refused as refused:
            self._retry_alone(refused)
        except Exception as error:  # noqa: BLE001 - every caller must be answered, and the thread goes on
            if self._idl.txn is not None:
                self._idl.txn.abort()
            for each in self._members:
                each.answer(error)
            if not isinstance(error, UserspaceError):
                self._idl.lose(f"a bug here: {error!r}")

    def _in_time(self) -> bool:
        """Whether a member is left. Members without time are answered and left out: their caller may have gone."""
        self._members = [each for each in self._members if not each.answered]
        for each in self._members:
            if not each.deadline.remaining():
                each.answer(each.deadline.passed("a transaction with OVSDB"))
        self._members = [each for each in self._members if not each.answered]
        for each in self._members:
            each.begun = True
        return bool(self._members)

    def _try_once(self) -> None:
        draft, written = self._compose()
        if all(each.answered for each in self._members):
            draft.abort()
            return
        seqno = self._idl.change_seqno
        if self._commit(draft) == draft.SUCCESS:
            self._done(draft, written)
            # The errors of the others may come from an outdated replica; it is up to date now, so they run once more.
            for each in self._members:
                each.certain = True
            return
        while self._idl.change_seqno == seqno:  # a verified row has changed: its update must be on the way
            self._await_message()

    def _compose(self) -> tuple[Draft, list[Member]]:
        """A transaction of all members whose commands can be run, and these members."""
        draft, written = Draft(self._idl), []
        for member in self._members:
            try:
                for each in member.commands:
                    each.run_idl(draft)
                written.append(member)
            except UserspaceError as error:
                if member.certain:
                    member.answer(error)
            except Exception as error:  # noqa: BLE001 - a bug in one must not fail the others
                draft.abort()
                member.answer(error)
                self._members.remove(member)
                return self._compose()
        draft.complete(self._idl)
        return draft, written

    def _done(self, draft: Draft, written: list[Member]) -> None:
        ports = sum(bool(each.ports) for each in written)
        if ports:
            self._link.on_group(ports)
        for member in written:
            for each in member.commands:
                each.post_commit(draft)
            member.answer()

    def _retry_alone(self, refused: Refused) -> None:
        """Run the members one by one: the server does not say whose command it refused. A single member gets the refusal."""
        waiting = [each for each in self._members if not each.answered]
        if len(waiting) == 1 and not any(each.should_retry(refused) for each in waiting[0].commands):
            waiting[0].answer(refused)
        for each in waiting:
            if not each.answered:
                Commit(self._link, [each]).run()

    def _commit(self, draft: Draft) -> str:
        """Send the transaction and wait for the outcome: SUCCESS or TRY_AGAIN. Raises Refused."""
        while (status := draft.commit()) == draft.INCOMPLETE:
            self._await_message()
        self._idl.require()
        if status == draft.ERROR:
            raise _refused(draft.get_error())
        return str(status)

    def _replicate(self) -> None:
        """Fetch the rows that the commands need. Repeats, because a row may show that more are needed."""
        idl = self._idl
        while True:
            idl.require()
            if idl.everything:
                return
            idl.choose(frozenset().union(*(each.needs() for member in self._members for each in member.commands)))
            if idl.chosen:
                return
            while not idl.chosen:
                idl.run()
                idl.require()
                if not idl.chosen:
                    self._await_message()

    def _await_message(self) -> None:
        """Wait for a message of the server, and answer members that run out of time. Without members the session is given up."""
        waiting = [each for each in self._members if not each.answered]
        for each in waiting:
            if not each.deadline.remaining():
                each.answer(self._no_answer())
        waiting = [each for each in waiting if not each.answered]
        if not waiting:
            if not self._idl.everything or time.monotonic() - self._began >= HUNG_SECONDS:
                self._idl.lose("it does not answer")
            raise self._no_answer()
        if not self._link.is_running:
            raise SessionLost(CLOSED)
        self._link.await_message(min(SLACK_SECONDS, *(each.deadline.remaining() for each in waiting)))
        self._idl.run()
        self._idl.require()

    def _no_answer(self) -> Unavailable:
        message = f"OVSDB at {self._idl.session_name()} does not answer; whether the transaction was done is unknown"
        return Unavailable(message, "is ovsdb-server stopped or overloaded?")


def distinct(members: Sequence[Member]) -> tuple[list[Member], list[Member]]:
    """The members that can share a transaction, in order, and those that must wait, because a port is written once only."""
    group: list[Member] = []
    later: list[Member] = []
    taken: set[str] = set()
    for each in members:
        (later if taken & each.ports else group).append(each)
        taken |= each.ports
    return group, later


def by_uuid(row: Any) -> list[Any]:
    """The condition that chooses this row."""
    return [["_uuid", "==", as_json(row.uuid)]]


def as_json(value: Any) -> Any:
    """A value as OVSDB writes it; a value in that form is returned as it is."""
    if isinstance(value, dict):
        return ("map", list(value.items()))
    if isinstance(value, uuid.UUID):
        return ("uuid", str(value))
    if isinstance(value, list):
        return ("set", [as_json(each) for each in value])
    return value


def _refused(error: str) -> Refused:
    try:
        answer = json.loads(error)
        return Refused(str(answer.get("error", "error")), str(answer.get("details", "")))
    except (ValueError, AttributeError):
        return Refused("error", error)
