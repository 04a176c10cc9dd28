"""The session with OVN's northbound database through which a controller writes, and whether it may.

Two things keep two controllers from writing at once. The Lease says who acts. The database's lock fences: it belongs to a
session, and the server itself refuses the transactions of any other. So all loops of a controller share one session. One without
the Lease does not ask for the lock: it would keep it from the leader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from userspace_cni.base.deadline import Deadline
from userspace_cni.ovn.northbound import NorthboundClient, NorthboundSession, OnChange, northbound_of_leader
from userspace_cni.ovsdb.client import Client
from userspace_cni.ovsdb.database import DatabaseLock, Tls

LOCK: Final = "userspace_cni"
T = TypeVar("T")


class NorthboundHold:
    """Safe to use from any thread. `remote`: the database's; `leading`: whether this process is to act."""

    def __init__(self, remote: str, tls: Tls | None, leading: Callable[[], bool]) -> None:
        self._leading = leading
        self._followers: list[OnChange] = []
        self._asked: list[Callable[[], None]] = []
        database = northbound_of_leader(self._tell, DatabaseLock(LOCK, lambda _: self._tell_lock()))
        self.client: NorthboundClient = Client(remote, database, resident=True, tls=tls)

    def follow(self, told: OnChange, on_lock: Callable[[], None]) -> None:
        """Have `told` called for each row that changes, and `on_lock` when the lock comes or goes, on the session's thread and
        with its lock: they may not wait. Before the first `open`."""
        self._followers.append(told)
        self._asked.append(on_lock)

    def open(self, deadline: Deadline) -> NorthboundSession | None:
        """The session, made where there is none; it asks for the lock, or gives it up, as this process is to act or not.

        None while it cannot do that: a transaction is under way. Raises Unavailable.
        """
        self.client.connect(deadline)
        session = self.client.require_session()
        return session if session.ask_lock(wanted=self._leading()) else None

    @property
    def may_write(self) -> bool:
        """Whether this process is the one that writes: it has the Lease and the lock of the database."""
        return self._leading() and self.has_lock

    @property
    def has_lock(self) -> bool:
        return self.client.connected and self.client.require_session().holds_lock

    @property
    def was_open(self) -> bool:
        """Whether there was a session."""
        return bool(self.client.sessions)

    def look(self, look: Callable[[NorthboundSession], T]) -> T | None:
        """The result of `look` on the replica now; None while there is no session."""
        return self.client.require_session().look(look) if self.client.connected else None

    def close(self) -> None:
        """End the session."""
        self.client.close()

    def _tell(self, table: str, event: str, row: Any, former: Any) -> None:
        for told in self._followers:
            told(table, event, row, former)

    def _tell_lock(self) -> None:
        for on_lock in self._asked:
            on_lock()
