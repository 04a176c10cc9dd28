"""Transactions of several callers committed as one, because ovs-vswitchd works through all of its ports after each commit.

A group is what queued while the previous commit ran: there is no timer, and a single caller waits for nobody. What each caller is
owed all the same:
- its own deadline: when that passes it is answered, and the group goes on for the others;
- its own error: a command that can not be run is left out, and when the server refuses the group its members run one by one;
- its own look: no command sees what another one of the group is about to write; what all mean for a bridge, a Draft collects.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ovs.db import idl as ovs_idl
from ovsdbapp.backend.ovs_idl import command

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.dataplane.ovsdb.replica import (
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
    from userspace_cni.dataplane.ovsdb.session import Connection, Session

HUNG_SECONDS = 0.5
"""A server that lets everybody's time pass is given up after so long. Who has less time learns nothing about the server; where a
session lives long, its probe will."""

_STILL_THERE = {"op": "select", "table": "Open_vSwitch", "where": [], "columns": ["_uuid"]}
Operation = dict[str, Any]
"""One operation of a transaction: RFC 7047, 5.2."""
Json = tuple[str, Any]
"""A set, a map or a reference as OVSDB writes it: RFC 7047, 5.1."""


class Refused(Exception):
    """ovsdb-server took the transaction and rejected it; `error` and `details` are its own words (RFC 7047, 4.1.3)."""

    def __init__(self, error: str, details: str) -> None:
        super().__init__(f"{error}: {details}")
        self.error = error
        self.details = details


class Command(command.BaseCommand):  # type: ignore[misc]
    """One thing to do or to read in a transaction. `run_idl` runs again when the database changed under it.

    `run_idl(draft)` raises an error of ours before it has written anything to the Draft, or none.
    """

    api: Session
    port: str = ""
    """The port that it writes: two commands on one port never share a transaction."""

    def needs(self) -> frozenset[Clause]:
        """The rows of Port and Interface that `run_idl` looks at; may depend on what is already replicated."""
        return frozenset()

    def again(self, refused: Refused) -> bool:  # noqa: ARG002 - for those who know better
        """Whether to run once more after the server rejected it, alone."""
        return False


class Draft(ovs_idl.Transaction):  # type: ignore[misc]
    """A transaction that is being written: its operations as OVSDB takes them, in order."""

    def __init__(self, idl: Replica) -> None:
        super().__init__(idl)
        self._bridges: dict[str, BridgeDraft] = {}
        self._inserted = 0
        self._answers: list[Any] = []

    def select(self, table: str, where: list[Any], columns: list[str]) -> int:
        """Read columns that are not replicated; the number under which `selected` has what the server answers."""
        self.add_op({"op": "select", "table": table, "where": where, "columns": columns})
        return len(self._operations) - 1

    def selected(self, number: int) -> list[dict[str, Any]]:
        """The rows, with values as OVSDB writes them (RFC 7047, 5.1). Once it is committed."""
        rows: list[dict[str, Any]] = self._answers[number]["rows"]
        return rows

    def _process_reply(self, msg: Any) -> None:
        """As the base class, which keeps no answers."""
        super()._process_reply(msg)
        if isinstance(msg.result, list):
            self._answers = msg.result[len(msg.result) - len(self._operations) :]

    def verify(self, row: Any, *columns: str) -> None:
        """Commit only if these columns of the row are still what the replica shows, and the row is still there."""
        shown = {column: as_json(value_of(row, column)) for column in columns}
        self.expect(row._table.name, by_uuid(row), [shown])  # noqa: SLF001

    def expect(self, table: str, where: list[Any], rows: list[Operation], *, until: str = "==") -> None:
        """Commit only if at this point of the transaction the rows chosen by `where` are (or with "!=": are not) these."""
        columns = list(rows[0]) if rows else ["name"]
        wait = {"op": "wait", "table": table, "where": where, "columns": columns, "until": until, "rows": rows}
        self.add_op(wait | {"timeout": 0})

    def write(self, table: str, columns: dict[str, Any]) -> Json:
        """Insert a row; the reference to it within this transaction."""
        self._inserted += 1
        name = f"row{self._inserted}"
        row = {column: as_json(value) for column, value in columns.items()}
        self.add_op({"op": "insert", "table": table, "uuid-name": name, "row": row})
        return ("named-uuid", name)

    def update(self, row: Any, columns: dict[str, Any]) -> None:
        """Write these columns."""
        changes = {column: as_json(value) for column, value in columns.items()}
        self.add_op({"op": "update", "table": row._table.name, "where": by_uuid(row), "row": changes})  # noqa: SLF001

    def increment(self, row: Any, column: str) -> None:
        """Add one to the column, whatever it is by then."""
        self.add_op({"op": "mutate", "table": row._table.name, "where": by_uuid(row), "mutations": [[column, "+=", 1]]})  # noqa: SLF001

    def mutate(self, row: Any, column: str, mutator: str, members: list[Json]) -> None:
        """Insert members into the column, or delete them from it."""
        mutations = [[column, mutator, ("set", members)]]
        self.add_op({"op": "mutate", "table": row._table.name, "where": by_uuid(row), "mutations": mutations})  # noqa: SLF001

    def bridge(self, name: str, row: Any) -> BridgeDraft:
        """What becomes of this bridge; `row` is None while there is none."""
        if name not in self._bridges:
            self._bridges[name] = BridgeDraft(name, row)
        return self._bridges[name]

    def complete(self, replica: Replica) -> None:
        """Write what is to become of bridges, and ask for an answer in any case."""
        for bridge in self._bridges.values():
            bridge.write(self, replica)
        self.add_op(_STILL_THERE)


class BridgeDraft:
    """One bridge in a Draft: all ports that the group adds to it and takes from it, so that its end is decided once."""

    def __init__(self, name: str, row: Any) -> None:
        self.name = name
        self._row = row
        self._made: tuple[dict[str, Any], dict[str, Any], dict[str, Any]] | None = None
        self._added: list[Json] = []
        self._removed: list[uuid.UUID] = []
        self._ours = False

    def make(self, bridge: dict[str, Any], local_port: dict[str, Any], local_interface: dict[str, Any]) -> None:
        """There is none: make it, with these columns."""
        self._made = bridge, local_port, local_interface

    def add(self, port: Json) -> None:
        """Its ports will include this one, by its reference."""
        self._added.append(port)

    def remove(self, port: Any, *, ours: bool) -> None:
        """Its ports will not include the row `port` (None: see whether any are left); a bridge of ours goes with its last."""
        self._ours = ours
        if port is not None:
            self._removed.append(port.uuid)

    def write(self, draft: Draft, replica: Replica) -> None:
        """The operations."""
        if self._made is not None:
            self._insert(draft, replica.root())
            return
        local = replica.names("Port").get(self.name)
        kept = [as_json(local.uuid)] if local is not None else []
        if self._ours and not self._added and self._nothing_left(kept):
            draft.verify(self._row, "ports", "external_ids")
            draft.mutate(replica.root(), "bridges", "delete", [as_json(self._row.uuid)])
            return
        if self._added:
            draft.verify(self._row, "name", "datapath_type")
            draft.mutate(self._row, "ports", "insert", self._added)
        if self._removed:
            draft.mutate(self._row, "ports", "delete", [as_json(port) for port in self._removed])
            if self._ours:
                # Of two sessions that each leave the other's port behind, one must notice that nothing is left.
                draft.expect("Bridge", by_uuid(self._row), [{"ports": ("set", kept)}], until="!=")

    def _nothing_left(self, kept: list[Json]) -> bool:
        return count(self._row, "ports") <= len(kept) + len(self._removed) and not (
            references(self._row, "ports") - set(self._removed) - {uuid.UUID(reference[1]) for reference in kept}
        )

    def _insert(self, draft: Draft, root: Any) -> None:
        assert self._made is not None  # noqa: S101 - for the type checker
        bridge, local_port, local_interface = self._made
        interface = draft.write("Interface", local_interface)
        local = draft.write("Port", local_port | {"interfaces": interface})
        made = draft.write("Bridge", bridge | {"ports": ("set", [local, *self._added])})
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
        """Names of the ports that it writes."""
        return frozenset(each.port for each in self.commands if each.port)

    @property
    def answered(self) -> bool:
        """Whether its caller knows."""
        return self._answered.is_set()

    def answer(self, error: BaseException | None = None) -> None:
        """Tell the caller how it went, once."""
        if not self.answered:
            self._error = error
            self._answered.set()

    def wait(self, remote: str) -> None:
        """For the answer; raises what it is."""
        if not self._answered.wait(self.deadline.remaining() + SLACK_SECONDS):
            begun = "; whether it did what was asked is unknown" if self.begun else ""
            raise Unavailable(f"OVSDB is busy with other transactions{begun}", f"is ovsdb-server at {remote} overloaded?")
        if self._error is not None:
            raise self._error


class Commit:
    """One group on its way into the database. On the connection's thread, which holds the lock."""

    def __init__(self, link: Connection, members: Sequence[Member]) -> None:
        self._link = link
        self._idl: Replica = link.idl
        self._members = list(members)
        self._began = time.monotonic()

    def run(self) -> None:
        """Answer every member."""
        try:
            while self._in_time():
                self._replicate()
                self._round()
        except Refused as refused:
            self._refused(refused)
        except Exception as error:  # noqa: BLE001 - everybody must be answered, and the thread serves on
            if self._idl.txn is not None:
                self._idl.txn.abort()
            for each in self._members:
                each.answer(error)
            if not isinstance(error, UserspaceError):
                self._idl.lose(f"a bug here: {error!r}")

    def _in_time(self) -> bool:
        """Whether anybody is left to commit for: who queued and has run out of time may have gone, and it must not land later."""
        self._members = [each for each in self._members if not each.answered]
        for each in self._members:
            if not each.deadline.remaining():
                each.answer(Unavailable("a transaction with OVSDB: out of time", "the deadline has passed (setting deadline_s)"))
        self._members = [each for each in self._members if not each.answered]
        for each in self._members:
            each.begun = True
        return bool(self._members)

    def _round(self) -> None:
        draft, written = self._compose()
        if all(each.answered for each in self._members):
            draft.abort()
            return
        seqno = self._idl.change_seqno
        if self._settle(draft) == draft.SUCCESS:
            self._done(draft, written)
            # What the others saw may be out of date: they have heard the server now, and look again.
            for each in self._members:
                each.certain = True
            return
        while self._idl.change_seqno == seqno:  # a row that we verified is not what we saw: the news must be on their way
            self._await_message()

    def _compose(self) -> tuple[Draft, list[Member]]:
        """A transaction of all members that can be run, and these."""
        draft, written = Draft(self._idl), []
        for member in self._members:
            try:
                for each in member.commands:
                    each.run_idl(draft)
                written.append(member)
            except UserspaceError as error:
                if member.certain:
                    member.answer(error)
            except Exception as error:  # noqa: BLE001 - a bug met by one must not cost the others
                draft.abort()
                member.answer(error)
                self._members.remove(member)
                return self._compose()
        draft.complete(self._idl)
        return draft, written

    def _done(self, draft: Draft, written: list[Member]) -> None:
        ports = sum(bool(each.ports) for each in written)
        if ports:
            self._link.grouped(ports)
        for member in written:
            for each in member.commands:
                each.post_commit(draft)
            member.answer()

    def _refused(self, refused: Refused) -> None:
        """Who is to blame is not known: one by one, and then each may know better."""
        alone = [each for each in self._members if not each.answered]
        if len(alone) == 1 and not any(each.again(refused) for each in alone[0].commands):
            alone[0].answer(refused)
        for each in alone:
            if not each.answered:
                Commit(self._link, [each]).run()

    def _settle(self, draft: Draft) -> str:
        """Send it and wait for the outcome: SUCCESS or TRY_AGAIN."""
        while (status := draft.commit()) == draft.INCOMPLETE:
            self._await_message()
        self._idl.require()
        if status == draft.ERROR:
            raise _refused(draft.get_error())
        return str(status)

    def _replicate(self) -> None:
        """Fetch the rows that the commands need; they may need more once these are there."""
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
        """Hear the server. Who runs out of time meanwhile is answered; a server that kept everybody waiting is given up."""
        waiting = [each for each in self._members if not each.answered]
        for each in waiting:
            if not each.deadline.remaining():
                each.answer(self._silence())
        waiting = [each for each in waiting if not each.answered]
        if not waiting:
            if not self._idl.everything or time.monotonic() - self._began >= HUNG_SECONDS:
                self._idl.lose("it does not answer")
            raise self._silence()
        if not self._link.is_running:
            raise SessionLost(CLOSED)
        self._link.await_message(min(SLACK_SECONDS, *(each.deadline.remaining() for each in waiting)))
        self._idl.run()
        self._idl.require()

    def _silence(self) -> Unavailable:
        message = f"OVSDB at {self._idl.session_name()} does not answer; whether it did what was asked is unknown"
        return Unavailable(message, "is ovsdb-server stopped or overloaded?")


def distinct(members: Sequence[Member]) -> tuple[list[Member], list[Member]]:
    """Those that can share a transaction, in order, and those that must wait for the next one: no port is written twice."""
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
    """A value as OVSDB writes it; what is written so already stays."""
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
