"""The one client of a database in a process: it opens a session when one is first needed, and another when that one broke.

Every read and write of it goes through it. It must never wait without a deadline, and raises only errors of
`userspace_cni.base.errors`. Importing it is cheap: ovs and ovsdbapp are loaded with the first session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import SwitchRefused, Unavailable
from userspace_cni.ovsdb.database import Clause, Database, I, Tls

if TYPE_CHECKING:
    from userspace_cni.ovsdb.session import Session

T = TypeVar("T")

_CLOSING_S: Final = 0.05
"""How long closing waits for a thread that is still connecting."""


class Client(Generic[I]):
    """`remote`: where the database is, `unix:PATH`, `tcp:HOST:PORT` or, with `tls`, `ssl:HOST:PORT`. Safe to use from several
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
        self._database = database
        self._on_group = on_group
        self._tls = tls
        self._lock = threading.Lock()
        self._session: Session[I] | None = None
        self._sessions = 0
        self._reason = "this process has not connected yet"
        self._closed = False

    def connect(self, deadline: Deadline) -> None:
        """Open a session unless one is open. Raises Unavailable."""
        with self.attempting("connecting"):
            self._open(frozenset(), deadline)

    @property
    def connected(self) -> bool:
        """Whether a session is open."""
        session = self._session
        return session is not None and not session.lost

    @property
    def sessions(self) -> int:
        """The number of sessions opened so far."""
        return self._sessions

    def status(self) -> Session[I]:
        """The open session. Raises Unavailable when there is none."""
        session = self._session
        if session is None or session.lost:
            reason = session.lost if session is not None else self._reason
            raise Unavailable(f"no session with OVSDB at {self.remote}: {reason}", "is ovsdb-server running?")
        return session

    def use(self, use: Callable[[Session[I]], T], needs: frozenset[Clause], what: str, deadline: Deadline) -> T:
        """Call `use` with an open session, and once more with a new one when that breaks: so `use` must read before it writes.

        `needs`: rows that a new session replicates from its start. `what`: what is tried, for errors. Raises Unavailable,
        SwitchRefused with the words of ovsdb-server, and the errors of `use`.
        """
        from userspace_cni.ovsdb.replica import SessionLost

        with self.attempting(what):
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
        from userspace_cni.ovsdb.reads import Read

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

    @contextmanager
    def attempting(self, what: str) -> Iterator[None]:
        """Put `what` was tried before the text of errors."""
        from userspace_cni.ovsdb.groups import Refused

        try:
            yield
        except Unavailable as error:
            raise type(error)(f"{what}: {error.message}", error.details) from None
        except Refused as error:
            raise SwitchRefused(f"{what}: ovsdb-server rejected it: {error.error}", error.details) from None

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
        from userspace_cni.ovsdb.session import Session
        from userspace_cni.ovsdb.streams import trust

        trust(self.remote, self._tls)
        try:
            return Session(self.remote, self._database, needs, deadline, everything=self.resident, on_group=self._on_group)
        except Unavailable as error:
            self._reason = error.message
            raise
