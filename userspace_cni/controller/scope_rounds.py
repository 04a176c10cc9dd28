"""Loops that keep the rows which follow from objects of the API, one scope for each object: as from a Service, or from a policy.

A subclass says what the rows of a scope are to be, and which scopes may have others now. A round compares those scopes alone; all
of them where the session with the database is new, where this process has begun to act, and every ten minutes. Rows are written
in groups, many scopes in one transaction. A scope whose rows cannot be written is told, and tried again by itself.

No row is removed before two lists have told which objects there are. A death at any point leaves some scopes as they were: the
next full look finishes it.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.base.loops import Loop
from userspace_cni.controller.northbound_hold import NorthboundHold
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.row_view import RowView
from userspace_cni.ovn.scope_writing import DesiredScope, ScopeCommand, WriteScopes

BATCH: Final = 100
"""Scopes in one transaction: the server checks all rows of a table at each commit, and others wait for a long one."""
_SYNC_S: Final = 1.0
"""Between looks whether there were first lists, where one of them may never be."""
_REFUSED_S: Final = 5.0
"""Until a scope that cannot be written is tried again, where nothing of it changes; so much longer as there are more of them."""


@dataclass(frozen=True)
class ScopeTimes:
    """Seconds. Everything is compared each `full_s`; a transaction may take `write_s`; rounds are `rounds_s` apart."""

    full_s: float = 600.0
    write_s: float = 30.0
    rounds_s: float = 0.02
    back_off: BackOff = BackOff(0.5, 8.0, spread=0.3)


class MarkedRounds(Loop):
    """The thread; `ask` it for a round. Its scopes begin with `prefix`. `hold`: the session; its owner closes it."""

    end_s = 2.0

    def __init__(self, hold: NorthboundHold, prefix: str, does: str, times: ScopeTimes | None = None) -> None:
        super().__init__(does, does)
        self._times = times or ScopeTimes()
        self.apart_s, self.back_off = self._times.rounds_s, self._times.back_off
        self._hold = hold
        self._view = RowView(prefix, self.ask)
        hold.follow(self._view.told, self.ask)
        self.on_write: Callable[[str], None] = lambda _: None
        """Told of each row that was written: "insert", "update" or "delete"."""
        self.full_s: float | None = None
        """Seconds of the last look at everything; None before the first."""
        self.refused: Mapping[str, str] = {}
        """The scopes that cannot be written now, and why."""
        # only the thread uses these
        self._acts = self._certain = False
        self._full_due = self._refused_due = 0.0
        self._pending: set[str] = set()

    # -- what a subclass says; `_take` is called with the session's lock --------------------------------------------------------

    @abstractmethod
    def _listed(self) -> bool:
        """Whether there was a first list of each kind of object, or it is known that there is none to have."""

    @abstractmethod
    def _are_certain(self) -> bool:
        """Whether a scope for which there is no object is one that is not to be: two lists have said so."""

    @abstractmethod
    def _take(self, session: NorthboundSession, *, everything: bool) -> Collection[str]:
        """Read what has changed of objects and of others' rows: the scopes whose rows may have to be others; or all there are."""

    @abstractmethod
    def _command(self, session: NorthboundSession, scopes: Sequence[str], *, may_remove: bool) -> ScopeCommand:
        """What writes the rows of these scopes. `may_remove`: it may remove some, too."""

    def _told(self, refused: Mapping[str, str], settled: Collection[str]) -> None:
        """Called after a round: which scopes are refused now, and which were compared. It may not wait."""

    @property
    def pending(self) -> str:
        """What has to be done before it could act; "" when that was done."""
        if self.full_s is None and self._hold.may_write:
            return f"the thread that {self.does} has not compared everything yet"
        return ""

    @property
    def scopes(self) -> int:
        """How many scopes have rows."""
        return len(self._view.scopes)

    # -- a round ---------------------------------------------------------------------------------------------------------------

    def _round(self) -> float | None:
        session = self._hold.open(Deadline.after(self._times.write_s))
        if session is None or not self._listed():
            return _SYNC_S
        began = time.monotonic()
        if not self._hold.may_write:
            self._acts, self._full_due = False, 0.0
            self._pending.clear()
            session.look(lambda _: self._view.forget())
            return None  # Lease and lock ask for a round when they are ours
        certain = self._are_certain()
        is_full = not self._acts or began >= self._full_due or certain != self._certain
        self._acts, self._certain, due = True, certain, self._full_due
        self._full_due = 0.0  # what was taken here is compared again, unless all of it succeeds
        is_full |= session.look(lambda _: self._take_changed(session, is_full, began))
        self._write(session)
        self._full_due = due
        if is_full:
            self._full_due = began + self._times.full_s
            self.full_s = time.monotonic() - began
        again = self._refused_due if self.refused else math.inf
        sync = time.monotonic() + _SYNC_S if not certain else math.inf
        return max(0.0, min(self._full_due, again, sync) - time.monotonic())

    def _take_changed(self, session: NorthboundSession, is_full: bool, now: float) -> bool:
        """Add the scopes that are to be compared to the pending ones; whether those are all."""
        is_new, scopes = self._view.take(session)
        everything = is_new or is_full
        self._pending |= scopes | set(self._take(session, everything=everything))
        if everything:
            self._pending |= set(self._view.scopes)
        if now >= self._refused_due:
            self._pending |= self.refused.keys()
        return everything

    def _write(self, session: NorthboundSession) -> None:
        """Raises Unavailable; what was not written stays pending."""
        refused = {scope: why for scope, why in self.refused.items() if scope not in self._pending}
        order = sorted(self._pending)
        for first in range(0, len(order), BATCH):
            batch = order[first : first + BATCH]
            refused |= self._commit(session, batch)
            self._pending.difference_update(batch)
        self.refused = refused
        self._refused_due = time.monotonic() + _REFUSED_S * max(1.0, len(refused) / BATCH)
        self._told(refused, order)

    def _commit(self, session: NorthboundSession, scopes: Sequence[str]) -> Mapping[str, str]:
        """Write the difference of these scopes; those that may not be, and why."""
        command = self._command(session, scopes, may_remove=self._certain)
        try:
            with self._hold.client.describe_attempt("writing rows of objects"):
                session.transact([command], Deadline.after(self._times.write_s))
        except Unavailable:
            raise
        except UserspaceError as error:
            if len(scopes) == 1:
                return {scopes[0]: str(error)}
            half = len(scopes) // 2  # one of them is refused by the server: the others are not to wait for it
            return {**self._commit(session, scopes[:half]), **self._commit(session, scopes[half:])}
        for kind in command.written:
            self.on_write(kind)
        self.beat = time.monotonic()
        return command.refused


class ScopeRounds(MarkedRounds):
    """Where the rows of a scope follow from it alone."""

    @abstractmethod
    def _desired(self, scope: str) -> DesiredScope:
        """The rows of a scope, none for one that is not to be. Called with the session's lock."""

    def _command(self, session: NorthboundSession, scopes: Sequence[str], *, may_remove: bool) -> WriteScopes:
        return WriteScopes(session, scopes, self._desired, self._view, may_remove=may_remove)
