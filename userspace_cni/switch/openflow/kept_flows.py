"""Flows of ours that a bridge is to have for as long as someone keeps them: written, looked at, and written again.

Of one bridge there are several groups of flows, and each has two cookies. All flows of a group are written with the one that it
did not have last, and then those with the other are deleted: so what a former process left goes, and no flow that stays is ever
missing. It must never touch a flow without our cookie: where one of others would be replaced, nothing is written.
"""

from __future__ import annotations

import hashlib
import select
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NameTaken
from userspace_cni.switch.openflow import openflow_messages
from userspace_cni.switch.openflow.flow_entries import (
    ENTRY_VERSIONS,
    EVERY_TABLE,
    FlowEntry,
    FoundEntry,
    add_entry,
    ask_entries,
    delete_entry,
    read_entries,
)
from userspace_cni.switch.openflow.flows import Flows
from userspace_cni.switch.openflow.openflow_messages import ONE_PORT, ONE_RUN, cookie_of

_AT_ONCE: Final = 200
"""Messages that are sent before their answers are awaited: the switch reads no more while its own answers are not read."""


class EntryConnection(Flows):
    """A connection that writes and reads flows."""

    def __init__(self, path: str, deadline: Deadline) -> None:
        super().__init__(path, deadline, ENTRY_VERSIONS)

    @property
    def is_over(self) -> bool:
        """Whether the switch has closed it: nothing is sent to us unasked."""
        return bool(select.select([self], [], [], 0)[0])

    def write(self, make: Collection[Callable[[int, int], bytes]], deadline: Deadline) -> None:
        """Send these messages, each made of version and transaction; they are in force when this returns."""
        messages = list(make)
        for begin in range(0, len(messages), _AT_ONCE):
            data = b"".join(each(self.version, next(self.xids)) for each in messages[begin : begin + _AT_ONCE])
            self._carry_out(data, "changing flows", deadline)

    def read(self, cookie: int, which: int, deadline: Deadline, table: int = EVERY_TABLE) -> list[FoundEntry]:
        """The flows with that cookie, in the bits `which`."""
        self.send(ask_entries(self.version, next(self.xids), table, cookie, which), deadline)
        found: list[FoundEntry] = []
        last = False
        while not last:
            answer = self.receive(deadline)
            if answer.kind == openflow_messages.ERROR:
                raise openflow_messages.explain_refusal(answer, f"reading flows at {self.path}")
            entries, last = read_entries(answer)
            found += entries
        return found


Groups = Mapping[int, frozenset[FlowEntry] | None]
"""What each group is to be; None where that is not known: then it stays as it is."""


class KeptFlows:
    """The flows of one bridge with the cookies of `number` (32 bits). For one thread. `locate`: its management socket."""

    def __init__(self, locate: Callable[[], str], number: int) -> None:
        self._locate = locate
        self._number = number
        self._connection: EntryConnection | None = None
        self._written: dict[int, frozenset[FlowEntry]] = {}
        self._half: dict[int, int] = {}
        self._seen = b""

    def keep(self, groups: Groups, deadline: Deadline) -> str:
        """Have the bridge have these flows; what was done, in words, "" for nothing.

        Raises Unavailable and SwitchRefused as Management does, and NameTaken where others have flows in the place of ours.
        """
        try:
            return self._keep(groups, deadline)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the flows as they are."""
        if self._connection:
            self._connection.close()
        self._connection = None

    def _keep(self, groups: Groups, deadline: Deadline) -> str:
        connection = self._connection
        if connection is None or connection.is_over:
            self.close()
            connection = self._connection = EntryConnection(self._locate(), deadline)
            self._seen = b""
        wanted = {group: flows for group, flows in groups.items() if flows is not None}
        is_same = bool(self._seen) and self._look(connection, deadline) == self._seen
        changed = {group: flows for group, flows in wanted.items() if not is_same or self._written.get(group) != flows}
        if not changed:
            return ""
        self._require_room(connection, changed.values(), deadline)
        added = removed = 0
        for group, flows in changed.items():
            if is_same and group in self._written:
                added += len(flows - self._written[group])
                removed += len(self._written[group] - flows)
                connection.write(list(self._differences(group, flows)), deadline)
            else:
                added += len(flows)
                self._write_all(connection, group, flows, deadline)
            self._written[group] = flows
        self._seen = self._look(connection, deadline)
        return f"{added} written, {removed} deleted" if is_same else f"all {added} written"

    def _differences(self, group: int, flows: frozenset[FlowEntry]) -> Iterator[Callable[[int, int], bytes]]:
        former = self._written[group]
        kept = {(each.table, each.priority, each.match) for each in flows}
        for each in former - flows:
            if (each.table, each.priority, each.match) not in kept:
                yield self._deletion(each, self._cookie(group, self._half[group]))
        for each in flows - former:
            yield self._addition(each, self._cookie(group, self._half[group]))

    def _write_all(self, connection: EntryConnection, group: int, flows: frozenset[FlowEntry], deadline: Deadline) -> None:
        """Write all of the group, and delete what it has beside. Of a former process it is not known which cookie it had."""
        halves = (1, 0) if group not in self._half else (1 - self._half[group],)
        for half in halves:
            cookie = self._cookie(group, half)
            connection.write([self._addition(each, cookie) for each in flows], deadline)
            connection.delete(self._cookie(group, 1 - half), deadline)
            self._half[group] = half

    def _require_room(self, connection: EntryConnection, flows: Collection[frozenset[FlowEntry]], deadline: Deadline) -> None:
        """Raise NameTaken where flows of others have table and priority of one of these: that could be the same flow."""
        wanted = {(each.table, each.priority) for group in flows for each in group}
        for table in sorted({table for table, _ in wanted}):
            for found in connection.read(0, 0, deadline, table):
                if (found.table, found.priority) in wanted and not found.is_ours:
                    raise NameTaken(
                        f"table {found.table} of the bridge has a flow of others with priority {found.priority}, which the flows "
                        "of the gateway have: nothing of it was changed",
                        f"ovs-ofctl dump-flows BRIDGE table={found.table}: remove it, or give it another priority",
                    )

    def _look(self, connection: EntryConnection, deadline: Deadline) -> bytes:
        """A hash of all our flows there, as the switch has them."""
        found = connection.read(cookie_of(self._number), ONE_RUN, deadline)
        parts = sorted(b"%d %d %d " % (each.table, each.priority, each.cookie) + each.rest for each in found)
        return hashlib.sha256(b"\n".join(parts)).digest()

    def _cookie(self, group: int, half: int) -> int:
        return cookie_of(self._number, group * 2 + half)

    @staticmethod
    def _addition(entry: FlowEntry, cookie: int) -> Callable[[int, int], bytes]:
        return lambda version, xid: add_entry(version, xid, entry, cookie)

    @staticmethod
    def _deletion(entry: FlowEntry, cookie: int) -> Callable[[int, int], bytes]:
        return lambda version, xid: delete_entry(version, xid, entry, cookie, ONE_PORT)
