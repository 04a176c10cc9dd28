"""Rounds of ovs-vswitchd through all rows: it counts up Open_vSwitch.cur_cfg when it has done what next_cfg counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.values import value_of

if TYPE_CHECKING:
    from userspace_cni.ovsdb.replica import Watch
    from userspace_cni.switch.ovsdb.database import SwitchSession

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
        number: int = self._txn.selected(self._asked)[0]["next_cfg"]
        return number

    def watch(self, session: SwitchSession) -> Watch[Literal[True]]:
        number = self.configuration
        return session.watch(*SWITCH, lambda: True if value_of(session.root(), "cur_cfg") >= number else None)
