"""Has ovs-vswitchd make its flows anew after a change of mirrors.

A flow that is in use in the datapath keeps its actions when a Mirror comes, changes or goes, until it was idle for 10 s. So a
removed mirror would still get frames, and a new one none. A purge costs each port an upcall per flow: so one purge serves all
changes that ovs-vswitchd has applied until then.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from userspace_cni.base.errors import SwitchRefused, Unavailable
from userspace_cni.base.log import say
from userspace_cni.switch.vswitchd import Daemon

if TYPE_CHECKING:
    from userspace_cni.base.deadline import Deadline
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession

_PATIENCE_S = 1.0
"""How long the configuration is awaited before ovs-vswitchd is asked whether it lives."""


class FlowRenewal:
    """Purges the flows of one ovs-vswitchd. Safe to use from several threads."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._lock = threading.Lock()
        self._session: SwitchSession | None = None
        self._done = 0

    def renew_after(self, session: SwitchSession, number: int, deadline: Deadline) -> None:
        """Wait until the configuration of this number is applied, then purge, unless that was done since.

        Flows end with their daemon, so a dead one needs nothing. A daemon that cannot be told is warned of: its flows follow when
        they were idle. Raises Unavailable when the configuration is not applied in time.
        """
        what = "waiting for ovs-vswitchd to take changed mirrors"
        if not self._lock.acquire(timeout=deadline.require(what)):
            raise Unavailable(f"{what}: out of time", "is ovs-vswitchd overloaded? see its log")
        try:
            if self._session is session and number <= self._done:
                return
            applied = self._applied(session, number, deadline)
            if applied is None:
                return
            try:
                self._daemon.run_command("revalidator/purge", deadline=deadline)
            except (Unavailable, SwitchRefused) as error:
                say("warning", "flows in use follow the changed mirrors only when they were idle for 10 s", error=error)
            self._session, self._done = session, applied
        finally:
            self._lock.release()

    def _applied(self, session: SwitchSession, number: int, deadline: Deadline) -> int | None:
        """The number of the configuration that is applied; None when ovs-vswitchd is dead."""
        from userspace_cni.ovsdb.column_values import value_of
        from userspace_cni.switch.ovsdb.rounds import SWITCH

        def look() -> int | None:
            applied: int = value_of(session.root(), "cur_cfg")
            return applied if applied >= number else None

        configured = session.watch(*SWITCH, look)
        while (applied := configured.wait(deadline.within(_PATIENCE_S).remaining())) is None:
            liveness = self._daemon.ask_shared(deadline)
            if liveness.state == "dead":
                return None
            if not deadline.remaining():
                raise Unavailable(
                    f"ovs-vswitchd has not taken the changed mirrors in time; it is {liveness.state}: {liveness.reason}",
                    "see its log",
                )
        return applied
