"""The one client of a database in a process, and its session: one connection with a replica and transactions that end by their
deadline.

Every read and write of the database goes through the Client. It opens a Session when one is first needed, and another when that
one broke. ovsdbapp has a connection and transactions, too, for a service that lives as long as its database: they reconnect for
ever, wait for a daemon on the thread that serves all callers, and never notice a hung server on a unix socket. A verb has a
deadline instead. So here
- a Session is one connection. When it breaks it is lost (SessionLost), and the Client opens another one and reads again;
- every transaction asks the server for something, so that the server and not only the replica confirms its success;
- the outcome of a transaction that is out of time is unknown; when all callers have run out of time, the Session is lost;
- transactions that queue while one is under way share the next one (`groups`), and wait a moment for those that are announced.

It must never wait without a deadline, log anything by itself, or let an exception of ovs out.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

import ovs.poller
from ovs.db import idl as ovs_idl

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Interrupted, Unavailable
from userspace_cni.base.threads import start
from userspace_cni.ovsdb.database import Clause, Database, I, Tls, split_remote
from userspace_cni.ovsdb.groups import Command, Commit, Member, RefusedCommand, split_by_target
from userspace_cni.ovsdb.reads import Read
from userspace_cni.ovsdb.replica import CLOSED, PATIENCE, SILENT, SLACK_SECONDS, NoLeader, Replica, SessionLost, Watch
from userspace_cni.ovsdb.streams import trust

T = TypeVar("T")

_ELECTION_S: Final = 0.1
"""Between two questions to a cluster which of its servers leads."""
_HELD_S: Final = 0.1
"""How long a transaction waits at most for those that are announced: 40 calls take so long from there to their transactions."""
_ALONE_S: Final = 0.02
"""How long it waits after the last that came: others may be held up by a disk or a lock."""
_CLOSING_S: Final = 0.05
"""How long closing waits for a thread that is still connecting."""


class SilentServer(Unavailable):
    """A server that is one of several has said nothing for longer than was waited for it."""


class Client(Generic[I]):
    """`remote`: where the database is, `unix:PATH`, `tcp:HOST:PORT` or, with `tls`, `ssl:HOST:PORT`; or several of these, between
    commas: they are tried in turn, the last one that served first, and of a cluster the leader serves. Safe to use from several
    threads.

    `resident`, for a process that lives long: keep a replica of all rows, and read from it. `on_group` gets the number of callers
    that write in each transaction, and must not wait.
    """

    def __init__(
        self,
        remote: str,
        database: Database[I],
        *,
        resident: bool = False,
        on_group: Callable[[int], None] = lambda _: None,
        tls: Tls | None = None,
    ) -> None:
        self.remote = remote
        self.resident = resident
        self._addresses = split_remote(remote)
        self._patience_s = PATIENCE.first_s
        self._database = database
        self._on_group = on_group
        self._tls = tls
        self._lock = threading.Lock()
        self._session: Session[I] | None = None
        self._sessions = 0
        self._reason = "this process has not connected yet"
        self._closed = False
        self._announced: set[str] = set()

    def connect(self, deadline: Deadline) -> None:
        """Open a session unless one is open. Raises Unavailable."""
        with self.describe_attempt("connecting"):
            self._open(frozenset(), deadline)

    @property
    def connected(self) -> bool:
        session = self._session
        return session is not None and not session.lost

    @property
    def sessions(self) -> int:
        """The number of sessions opened so far."""
        return self._sessions

    def require_session(self) -> Session[I]:
        """The open session. Raises Unavailable when there is none."""
        session = self._session
        if session is None or session.lost:
            reason = session.lost if session is not None else self._reason
            raise Unavailable(f"no session with OVSDB at {self.remote}: {reason}", "is ovsdb-server running?")
        return session

    def use(self, use: Callable[[Session[I]], T], needs: frozenset[Clause], what: str, deadline: Deadline) -> T:
        """Call `use` with an open session, and once more with a new one when that breaks: so `use` must read before it writes.

        `needs`: rows that a new session replicates from its start. `what`: what is tried, for errors. Raises Unavailable,
        `Database.refused` with the words of ovsdb-server, and the errors of `use`.
        """
        with self.describe_attempt(what):
            session = self._open(needs, deadline)
            try:
                return use(session)
            except SessionLost:
                deadline.require(what)
                return use(self._open(needs, deadline))

    def read(
        self,
        look: Callable[[Session[I]], T],
        needs: frozenset[Clause],
        what: str,
        deadline: Deadline,
        *,
        enough: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """The result of `look` after an answer of the server; a resident client asks only if its replica's is not `enough`."""

        def read(session: Session[I]) -> T:
            command = Read(session, needs, look)
            session.transact([command], deadline)
            result: T = command.result
            return result

        if self.resident:
            found = self.use(lambda session: session.look(look), needs, what, deadline)
            if enough(found):
                return found
        return self.use(read, needs, what, deadline)

    @contextlib.contextmanager
    def announce(self, target: str) -> Iterator[None]:
        """Within the block a transaction with this target (`Command.target`) is about to come.

        Those that queue before it wait for it, for a moment at most, to share one transaction with it: a daemon that goes through
        all of its rows after each does that once.
        """
        self._announced.add(target)
        try:
            yield
        finally:
            self._announced.discard(target)
            session = self._session
            if session is not None and not self._announced:
                session.release()

    @contextlib.contextmanager
    def describe_attempt(self, what: str) -> Iterator[None]:
        """Put `what` was tried before the text of errors."""
        try:
            yield
        except Unavailable as error:
            raise type(error)(f"{what}: {error.message}", error.details) from None
        except RefusedCommand as error:
            raise self._database.refused(f"{what}: ovsdb-server rejected it: {error.error}", error.details) from None

    def close(self) -> None:
        """End the session; calls that wait for it fail. The next call opens another; a resident client's call fails."""
        self._closed = self.resident
        if not self._lock.acquire(timeout=_CLOSING_S):
            return  # another thread is still connecting: it will see `_closed`
        session, self._session = self._session, None
        self._reason = "it was closed"
        self._lock.release()
        if session is not None:
            session.close()

    def _open(self, needs: frozenset[Clause], deadline: Deadline) -> Session[I]:
        if not self._lock.acquire(timeout=deadline.require("opening a session with OVSDB")):
            raise Unavailable("another thread is still connecting to OVSDB", f"does ovsdb-server at {self.remote} answer?")
        try:
            if self._closed:
                raise Unavailable("the session with OVSDB was closed", "this process is about to end")
            if self._session is not None and self._session.lost:
                self._reason = self._session.lost
                self._session.close()
                if self._session.served:
                    self._patience_s = PATIENCE.first_s
                if self._session.lost == SILENT:
                    self._ask_last(self._session.remote)
                self._session = None
            if self._session is None:
                session = self._connected(needs, deadline)
                if self._closed:
                    session.close()
                    raise Unavailable("the session with OVSDB was closed", "this process is about to end")
                self._session = session
                self._sessions += 1
            return self._session
        finally:
            self._lock.release()

    def _connected(self, needs: frozenset[Clause], deadline: Deadline) -> Session[I]:
        """A new session. A cluster without a leader elects one: it is asked until the deadline."""
        found: NoLeader | None = None
        silent: set[str] = set()
        while True:
            try:
                return self._try_addresses(needs, deadline, silent)
            except NoLeader as error:
                found = error
            except Unavailable:
                if found is None or deadline.remaining():
                    raise
            if self._closed or len(self._addresses) < 2 or deadline.remaining() <= _ELECTION_S:
                raise found
            time.sleep(_ELECTION_S)

    def _ask_last(self, address: str) -> None:
        """A server that has said nothing is tried after the others, and waited for longer."""
        self._patience_s = PATIENCE.after(self._patience_s)
        self._addresses = (*(each for each in self._addresses if each != address), address)

    def _try_addresses(self, needs: frozenset[Clause], deadline: Deadline, silent: set[str]) -> Session[I]:
        """A session with the first that serves. `silent`: those that have not answered; others come to it."""
        errors: list[Unavailable] = []
        for tried, address in enumerate(known := self._addresses):
            if address in silent and any(isinstance(error, NoLeader) for error in errors):
                continue  # the others are electing: their leader is not to wait for it
            trust(address, self._tls)
            share = deadline.within(deadline.remaining() / (len(known) - tried))
            patience_s = self._patience_s if len(known) > 1 else None
            try:
                session = Session(address, self._database, needs, share, everything=self.resident, patience_s=patience_s)
            except Interrupted:
                raise
            except SilentServer as error:
                errors.append(error)
                silent.add(address)
                self._ask_last(address)
            except Unavailable as error:
                errors.append(error)
            else:
                self._addresses = (*known[tried:], *known[:tried])
                session.on_group, session.announced = self._on_group, self._announced
                return session
        self._reason = "; ".join(error.message for error in errors)
        last = next((error for error in errors if isinstance(error, NoLeader)), errors[-1])
        raise type(last)(self._reason, last.details)


class Session(Generic[I]):
    """An open connection with its replica, and its thread, which commits all that has queued at once. Safe to use from several
    threads.

    `everything`: replicate all rows from the start instead of those that commands need, and notice a hung server; for a process
    that lives long. `patience_s`: how long the server may say nothing to a question, None for as long as the question may take.
    `on_group` gets the number of callers that write in each transaction, on the connection's thread. `served`: there was one.
    `announced`: targets of transactions that are about to come, for which those that have queued wait a moment.
    """

    def __init__(
        self,
        remote: str,
        database: Database[I],
        needs: frozenset[Clause],
        deadline: Deadline,
        *,
        everything: bool = False,
        patience_s: float | None = None,
    ) -> None:
        self.remote = remote
        self.patience_s = patience_s
        self.served = False
        self.replica: Replica[I] = Replica(remote, database, everything=everything)
        """The rows; without the lock only `lost` may be read."""
        self.on_group: Callable[[int], None] = lambda _: None
        self.announced: set[str] = set()
        self.is_running = False
        self._lock = threading.RLock()
        self._queue: list[Member] = []
        self._queued = self._queued_last = 0.0
        self._queue_lock = threading.Lock()
        try:
            self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"a session with OVSDB at {remote}: {error.strerror}", "see the limits of this process") from error
        self._thread = threading.Thread(target=self._run, daemon=True, name="ovsdb")
        try:
            self._open(needs, deadline)
        except BaseException:
            self._abandon()
            raise

    @property
    def lost(self) -> str:
        """Why the connection is lost; "" while it is not."""
        return self.replica.lost

    @property
    def holds_lock(self) -> bool:
        """Whether this session may write: it has the database's lock, or there is none to have."""
        return self.replica.holds_lock

    def ask_lock(self, *, wanted: bool) -> bool:
        """Ask for the database's lock, or give it up, which passes it on. It is asked for at each session's begin.

        Whether that was done: while a transaction of this session is under way it is not. Raises SessionLost.
        """
        with self.held():
            return self.replica.ask_lock(wanted=wanted)

    @property
    def index(self) -> I:
        """What is kept of the rows; without the lock only what it allows may be read."""
        return self.replica.index

    @property
    def tables(self) -> Any:
        """The replica's tables, as ovs.db.idl has them. Only within a command, `look` or `watch`."""
        return self.replica.tables

    def transact(self, commands: Iterable[Command[Any]], deadline: Deadline) -> None:
        """Run the commands in one transaction, together with those that other callers queue at the same time.

        Raises SessionLost; Unavailable at the deadline, and then the outcome is unknown, or when the thread cannot be woken;
        Refused; and the errors of the commands.
        """
        deadline.require("a transaction with OVSDB")
        member = Member(commands, deadline)
        with self._queue_lock:
            if not self.is_running:
                raise SessionLost(CLOSED)
            self.announced -= member.targets
            if not (self._queue and self.announced):  # else the thread knows that some are held, and until when
                try:
                    os.eventfd_write(self._woken, 1)
                except OSError as error:
                    what = f"waking the session with OVSDB at {self.remote}: {error.strerror}"
                    raise Unavailable(what, "nothing was sent; try again later") from error
            self._queued_last = time.monotonic()
            if not self._queue:
                self._queued = self._queued_last
            self._queue.append(member)
        member.wait(self.remote)

    def release(self) -> None:
        """Send what was held for announced transactions: none will come."""
        with self._queue_lock, contextlib.suppress(OSError):  # then it is sent a moment later
            if self._queue and self.is_running:
                os.eventfd_write(self._woken, 1)

    def look(self, look: Callable[[Session[I]], T]) -> T:
        """The result of `look` on the replica now; the server is not asked."""
        with self.held():
            return look(self)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The replica as it is now, for as long as the block takes: it may not wait."""
        with self._lock:
            self.replica.require()
            yield

    def watch(self, table: str, name: str, look: Callable[[], T | None]) -> Watch[T]:
        """Call `look` now, and again when the row of that name has changed; the name of the root table's row is ""."""
        with self._lock:
            return Watch(self.replica, (table, name), look)

    def row(self, table: str, name: str) -> Any:
        """The row of that name of a table of `Database.named`, or None. Only within a command, `look` or `watch`."""
        return self.replica.names(table).get(name)

    def rows(self, table: str) -> list[Any]:
        """All rows of a table in the replica, which has those of that table. Only within a command or `look`."""
        return list(self.tables[table].rows.values())

    def root(self) -> Any:
        """The one row of the root table. Only within a command or `look`."""
        return self.replica.root()

    def close(self) -> None:
        """End the connection and its thread. Transactions that are queued or under way, and other waits, raise SessionLost."""
        with self._queue_lock:
            if not self.is_running:
                return
            self.is_running = False
            waiting, self._queue = self._queue, []
            with contextlib.suppress(OSError):  # then the thread ends at the server's next message
                os.eventfd_write(self._woken, 1)
        for member in waiting:
            member.answer(SessionLost(CLOSED))
        self._thread.join(2 * SLACK_SECONDS)

    def await_message(self, seconds: float) -> None:
        """Release the lock, and wait until the connection has something to read or write, `seconds` at most."""
        poller = ovs.poller.Poller()
        self.replica.wait(poller)
        poller.timer_wait(math.ceil(seconds * 1000))
        self._lock.release()
        try:
            poller.block()
        finally:
            self._lock.acquire()

    def _open(self, needs: frozenset[Clause], deadline: Deadline) -> None:
        """Connect, fetch the rows and start the thread. Raises Unavailable."""
        with self._lock:
            self.replica.choose(needs)
            while True:
                self.replica.run()
                self.replica.require()
                if self.replica.state == ovs_idl.Idl.IDL_S_MONITORING:
                    break
                is_silent = self.patience_s is not None and self.replica.is_silent(0, self.patience_s)
                if is_silent or not deadline.remaining():
                    self.replica.lose(SILENT)
                    kind = SilentServer if is_silent else Unavailable
                    raise kind(f"OVSDB at {self.remote} does not answer", "is ovsdb-server stopped or overloaded?")
                self.await_message(deadline.remaining() if self.patience_s is None else min(deadline.remaining(), SLACK_SECONDS))
            self.is_running = True
            start(self._thread, f"the session with OVSDB at {self.remote}")

    def _abandon(self) -> None:
        """End what `_open` began. The thread may already run, when a signal's exception interrupted `_open`."""
        if self._thread.is_alive():
            self.close()
        else:
            self.is_running = False
            self.replica.close()
            with contextlib.suppress(OSError):
                os.close(self._woken)

    def _run(self) -> None:
        """The thread: whatever ends it, the session is lost then, or its rows would be taken for true for ever."""
        reason = CLOSED
        try:
            self._serve()
        except Exception as error:  # noqa: BLE001 - the next session may do better
            reason = f"a bug here: {error!r}"
        with self._lock:
            self.replica.lose(reason)
        with self._queue_lock:  # who writes to it holds this lock, and has seen that the session runs
            self.is_running = False
            waiting, self._queue = self._queue, []
            os.close(self._woken)
        for member in waiting:
            member.answer(SessionLost(reason))

    def _serve(self) -> None:
        """Read the server's messages, and commit what has queued."""
        poller = ovs.poller.Poller()
        while self.is_running:
            self.replica.wait(poller)
            poller.fd_wait(self._woken, ovs.poller.POLLIN)
            with self._queue_lock:
                if self._queue:
                    poller.timer_wait(math.ceil(self._held_s() * 1000))
            poller.block()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._woken)
            with self._lock:
                self.replica.run()
                while self.is_running and (group := self._take()):
                    Commit(self, group).run()

    def _take(self) -> list[Member]:
        with self._queue_lock:
            if self._held_s():
                return []
            group, self._queue = split_by_target(self._queue)
            return group

    def _held_s(self) -> float:
        """How long what has queued still waits for announced transactions; reads do not. The caller has the queue's lock."""
        if not self.announced or not any(each.targets for each in self._queue):
            return 0.0
        return max(0.0, min(self._queued + _HELD_S, self._queued_last + _ALONE_S) - time.monotonic())
