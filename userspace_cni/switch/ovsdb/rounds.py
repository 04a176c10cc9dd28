"""Rounds of ovs-vswitchd through all rows: it counts up Open_vSwitch.cur_cfg when it has done what next_cfg counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from userspace_cni.ovsdb.column_values import value_of
from userspace_cni.ovsdb.database import Clause, named
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command
from userspace_cni.ovsdb.replica import Watch
from userspace_cni.switch.ovsdb.switch_database import SwitchSession
from userspace_cni.switch.ovsdb.switch_reads import is_open

SWITCH: Final = ("Open_vSwitch", "")
"""Table and name of the row that a Watch waits for."""


class Round:
    """The round after a transaction, which asks for it. But for that nothing of it may be called before the commit."""

    def __init__(self, txn: Draft) -> None:
        txn.increment(txn.idl.root(), "next_cfg")
        self._txn = txn
        self._asked = txn.select("Open_vSwitch", [], ["next_cfg"])

    @property
    def configuration(self) -> int:
        number: int = self._txn.read_selected(self._asked)[0]["next_cfg"]
        return number

    def watch(self, session: SwitchSession) -> Watch[Literal[True]]:
        number = self.configuration
        return session.watch(*SWITCH, lambda: True if value_of(session.root(), "cur_cfg") >= number else None)


class AnotherRound(Command[SwitchSession]):
    """Has ovs-vswitchd go through all rows, and try again to open those of the interfaces `closed` that are. `done`: it has."""

    done: Watch[Literal[True]]

    def __init__(self, session: SwitchSession, closed: Iterable[str] = ()) -> None:
        super().__init__(session)
        self._closed = tuple(closed)

    def needs(self) -> frozenset[Clause]:
        return named(*self._closed)

    def run_idl(self, txn: Draft) -> None:
        """Forget what it has said of them, and ask for the round."""
        for row in (self.api.row("Interface", name) for name in self._closed):
            if row is not None and not is_open(row):
                txn.update(row, {"ofport": [], "error": []})
        self._round = Round(txn)

    def post_commit(self, txn: Draft) -> None:  # noqa: ARG002 - the interface
        """Watch for ovs-vswitchd's answer."""
        self.done = self._round.watch(self.api)
