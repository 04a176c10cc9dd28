"""Writes the rows of a step: takes the names that OVSDB gets by them, and has ovs-vswitchd open anew what it has to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.log import say
from userspace_cni.switch.link_names import LinkNames

if TYPE_CHECKING:
    from userspace_cni.switch.ovsdb.put import Put
    from userspace_cni.switch.ovsdb.rows.desired import DesiredRows
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession


class RowWriter:
    """Writes one set of rows. `held`: the names that it takes; `afxdp_max`: as that of Put; `why_anew`: what a warning says when
    ovs-vswitchd has to open anew what is there."""

    def __init__(self, rows: DesiredRows, held: LinkNames, afxdp_max: int, why_anew: str = "") -> None:
        self._rows = rows
        self._held = held
        self._afxdp_max = afxdp_max
        self._why_anew = why_anew

    def write(self, session: SwitchSession, deadline: Deadline) -> Put:
        """Commit the rows; the command that has written the last of them. Raises as Put and LinkNames."""
        from userspace_cni.switch.ovsdb.put import Put
        from userspace_cni.switch.ovsdb.switch_reads import find_missing

        rows, held = self._rows, self._held
        while True:
            for name in find_missing(session, rows.new_names) - held.names:
                held.hold(name, session, deadline, gets_tap=rows.new_names[name])
            command = Put(session, rows, self._afxdp_max, frozenset(held.names))
            session.transact([command], deadline)
            if command.stale:
                say("warning", self._why_anew)
                held.read_back.wait(command.done, deadline, or_dead=True)
            elif not command.unheld:  # else another process has taken the bridge away since the look
                return command
