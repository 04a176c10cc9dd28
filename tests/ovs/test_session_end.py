"""A process that lives on is told when its session with OVSDB ends: it need not look for that."""

from __future__ import annotations

import threading

from tests.lab.switch.switch import Switch
from userspace_cni.base.deadline import Deadline
from userspace_cni.switch.ovsdb.changes import Listeners
from userspace_cni.switch.ovsdb.switch_database import switch_client


def test_the_end_of_a_session_is_told(own_switch: Switch) -> None:
    """Once for each session, on the end of the server."""
    ends: list[int] = []
    told = threading.Semaphore(0)

    def lost() -> None:
        ends.append(client.sessions)
        told.release()

    client = switch_client(own_switch.ovsdb, resident=True, listeners=Listeners(lost=lost))
    try:
        for session in (1, 2):
            client.connect(Deadline.after(60))
            assert ends == [*range(1, session)]
            own_switch.restart_ovsdb()
            assert told.acquire(timeout=60)
            assert not client.connected
    finally:
        client.close()
    assert ends == [1, 2]
