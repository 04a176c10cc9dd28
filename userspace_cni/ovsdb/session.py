"""One connection to OVSDB: a replica of the needed rows, and transactions that end by their deadline.

ovsdbapp's own connection and transaction are made for a service that lives as long as its database: they reconnect for ever, wait
for a daemon on the thread that serves all callers, and never notice a hung server on a unix socket. A verb has a deadline
instead. So here
- a Session is one connection. When it breaks it is lost (SessionLost), and the caller opens another one and reads again;
- every transaction asks the server for something, so that the server and not only the replica confirms its success;
- the outcome of a transaction that is out of time is unknown; when all callers have run out of time, the Session is lost;
- transactions that queue while one is under way share the next one (`groups`).

It must never wait without a deadline, log anything by itself, or let an exception of ovs or ovsdbapp out.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import ovs.poller
from ovs.db import idl as ovs_idl
from ovsdbapp.backend import ovs_idl as backend
from ovsdbapp.backend.ovs_idl import connection

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.threads import start
from userspace_cni.ovsdb.database import Clause, Database, I
from userspace_cni.ovsdb.groups import Command, Commit, Member, distinct
from userspace_cni.ovsdb.replica import CLOSED, SLACK_SECONDS, Replica, SessionLost, Watch

# Without a handler of its own or of the root, logging would print ovsdbapp's warnings to stderr.
logging.getLogger("ovsdbapp").addHandler(logging.NullHandler())

T = TypeVar("T")


class Session(backend.Backend, Generic[I]):  # type: ignore[misc]
    """An open connection with its replica. Safe to use from several threads.

    `everything`: replicate all rows from the start instead of those that commands need, and notice a hung server; for a process
    that lives long. `on_group` gets the number of callers that write in each transaction, on the connection's thread.
    """

    ovsdb_connection: Any = None  # of this object; the base class has one for the whole process

    def __init__(
        self,
        remote: str,
        database: Database[I],
        needs: frozenset[Clause],
        deadline: Deadline,
        *,
        everything: bool = False,
        on_group: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.remote = remote
        self._replica = Replica(remote, database, everything=everything)
        try:
            self._link = Connection(self._replica, on_group)
        except OSError as error:  # it makes a pipe
            raise Unavailable(f"a session with OVSDB at {remote}: {error.strerror}", "see the limits of this process") from error
        super().__init__(self._link, start=False, auto_index=False)
        try:
            self._link.open(needs, deadline)
        except BaseException:
            self._link.abandon()
            raise

    @property
    def lost(self) -> str:
        """Why the connection is lost; "" while it is not."""
        return self._replica.lost

    @property
    def replica(self) -> Replica[I]:
        """The rows; without the lock only `lost` may be read."""
        return self._replica

    @property
    def index(self) -> I:
        """What is kept of the rows; without the lock only what it allows may be read."""
        return self._replica.index

    def transact(self, commands: Iterable[Command[Any]], deadline: Deadline) -> None:
        """Run the commands in one transaction, together with those that other callers queue at the same time.

        Raises SessionLost; Unavailable at the deadline, and then the outcome is unknown; Refused; and the errors of the commands.
        """
        deadline.require("a transaction with OVSDB")
        member = Member(commands, deadline)
        self._link.submit(member)
        member.wait(self.remote)

    def look(self, look: Callable[[Session[I]], T]) -> T:
        """The result of `look` on the replica now; the server is not asked."""
        with self._link.lock:
            self._replica.require()
            return look(self)

    def watch(self, table: str, name: str, look: Callable[[], T | None]) -> Watch[T]:
        """Call `look` now, and again when the row of that name has changed; the name of the root table's row is ""."""
        with self._link.lock:
            return Watch(self._replica, (table, name), look)

    def row(self, table: str, name: str) -> Any:
        """The row of that name of a table of `Database.named`, or None. Only within a command, `look` or `watch`."""
        return self._replica.names(table).get(name)

    def rows(self, table: str) -> list[Any]:
        """All rows of a table in the replica, which has those of that table. Only within a command or `look`."""
        return list(self.tables[table].rows.values())

    def root(self) -> Any:
        """The one row of the root table. Only within a command or `look`."""
        return self._replica.root()

    def close(self) -> None:
        """End the connection and its thread. Calls that wait raise SessionLost."""
        self._link.stop(timeout=2 * SLACK_SECONDS)


class Connection(connection.Connection):  # type: ignore[misc]
    """ovsdbapp's thread around an IDL; it is opened within a deadline, and commits all that has queued at once."""

    def __init__(self, idl: Replica[Any], on_group: Callable[[int], None]) -> None:
        super().__init__(idl, timeout=None)
        self.on_group = on_group
        self._queue: list[Member] = []
        self._queue_lock = threading.Lock()

    def open(self, needs: frozenset[Clause], deadline: Deadline) -> None:
        """Connect, fetch the rows and start the thread. Raises Unavailable."""
        with self.lock:
            self.idl.choose(needs)
            while True:
                self.idl.run()
                self.idl.require()
                if self.idl.state == ovs_idl.Idl.IDL_S_MONITORING:
                    break
                if not deadline.remaining():
                    self.idl.lose("it does not answer")
                    raise Unavailable(
                        f"OVSDB at {self.idl.session_name()} does not answer", "is ovsdb-server stopped or overloaded?"
                    )
                self.await_message(deadline.remaining())
            self.poller = ovs.poller.Poller()
            self.thread = threading.Thread(target=self.run, daemon=True, name="ovsdb")
            self.is_running = True
            start(self.thread, f"the session with OVSDB at {self.idl.session_name()}")

    def abandon(self) -> None:
        """End what `open` began. The thread may already run, when a signal's exception interrupted `open`."""
        if self.thread is not None and self.thread.is_alive():
            self.stop(timeout=2 * SLACK_SECONDS)
        else:
            self.is_running = False
            self.idl.close()
            self.txns.close()

    def await_message(self, seconds: float) -> None:
        """Release the lock, and wait until the connection has something to read or write, `seconds` at most."""
        poller = ovs.poller.Poller()
        self.idl.wait(poller)
        poller.timer_wait(math.ceil(seconds * 1000))
        self.lock.release()
        try:
            poller.block()
        finally:
            self.lock.acquire()

    def submit(self, member: Member) -> None:
        """Queue it for the next group. Raises SessionLost; Unavailable when the thread cannot be woken."""
        with self._queue_lock:
            if not self.is_running:
                raise SessionLost(CLOSED)
            self._queue.append(member)
            try:
                self._wake()
            except OSError as error:
                self._queue.remove(member)
                what = f"waking the session with OVSDB at {self.idl.session_name()}: {error.strerror}"
                raise Unavailable(what, "nothing was sent; try again later") from error

    def run(self) -> None:
        """The thread: read the server's messages, and commit what has queued."""
        while self.is_running:
            self.idl.wait(self.poller)
            self.poller.fd_wait(self.txns.alert_fileno, ovs.poller.POLLIN)
            self.poller.block()
            self.txns.get_nowait()
            with self.lock:
                self.idl.run()
                while self.is_running and (group := self._take()):
                    Commit(self, group).run()
        with self.lock:
            self.idl.lose(CLOSED)

    def stop(self, timeout: float | None = None) -> bool:
        """End the thread; transactions that are queued or under way are answered with SessionLost."""
        with self._queue_lock:
            if not self.is_running:
                return True
            self.is_running = False
            waiting, self._queue = self._queue, []
            with contextlib.suppress(OSError):  # then the thread ends at the server's next message
                self._wake()
        for member in waiting:
            member.answer(SessionLost(CLOSED))
        self.thread.join(timeout)
        if not self.thread.is_alive():
            self.txns.close()
        return True

    def _wake(self) -> None:
        try:
            self.txns.put(None, block=False)
        except queue.Full:
            return  # the thread is already woken
        except OSError:
            with contextlib.suppress(queue.Empty):
                self.txns.get(block=False)  # a full queue would mean that the thread is woken
            raise

    def __del__(self) -> None:
        """As the base class, which fails when its pipe was never made."""
        with contextlib.suppress(AttributeError):
            super().__del__()

    def _take(self) -> list[Member]:
        with self._queue_lock:
            group, self._queue = distinct(self._queue)
            return group
