"""The sockets of vhost-user ports: what the driver of ports is told of them, and which ports DPDK has given up.

DPDK 22.11 closes a connection for which it has no memory, and forgets the port: it does not connect again, and does not tell OVS.
OVS takes all the memory of a switch for a moment while it makes the first buffers of an MTU: it tries a number of them, and then
half as many, until they fit. An application that begins to listen in that moment would wait for ever. So a port counts as given
up when twice, some time apart, its application listens and the switch is not connected, though DPDK tries once a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.retries import Retries

APART_S: Final = 10.0
"""Least seconds between the two looks."""


class PortSockets(Protocol):
    """The node's files behind ports."""

    def free(self, name: str, deadline: Deadline) -> None:
        """Remove the dead socket of a killed ovs-vswitchd at the path that OVS gives a port of that name: it would keep the port
        from being opened."""
        ...

    def find_waiting_socket(self, path: str, netns: str) -> int:
        """The inode of the socket at `path` at which a process of that namespace listens, and to which no program is connected; 0
        where it is not so, or cannot be seen."""
        ...


class NoSockets:
    """No file is seen or removed."""

    def free(self, name: str, deadline: Deadline) -> None: ...

    def find_waiting_socket(self, path: str, netns: str) -> int:  # noqa: ARG002 - the interface
        return 0


class GivenUp:
    """Which ports DPDK has given up. A port that it gives up again waits longer each time for the next try, with any daemon."""

    def __init__(self, waiting: Callable[[str, str], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._waiting = waiting
        self._clock = clock
        self._tries = Retries(clock)
        self._suspected: dict[str, tuple[int, float]] = {}

    def keep(self, names: frozenset[str]) -> None:
        """Forget the ports but these, which the switch says are not connected."""
        self._suspected = {name: seen for name, seen in self._suspected.items() if name in names}
        self._tries.keep_recent(set(names))

    def look(self, step: OvsPort) -> bool:
        """Look at a port that is not connected: whether it has been given up, and may be made anew by now."""
        inode, now = self._waiting(step.server_path, step.marks.get("netns", "")), self._clock()
        if not inode:
            self._suspected.pop(step.name, None)
            return False
        before = self._suspected.get(step.name)
        if before is None or before[0] != inode:
            self._suspected[step.name] = inode, now
        return self._is_proven(step.name)

    def take(self, name: str) -> bool:
        """Whether the port must be made anew because DPDK has given it up; it is then no longer suspected."""
        proven = self._is_proven(name)
        if proven:
            self._tries.note_try(name)
            self._suspected.pop(name, None)
        return proven

    def _is_proven(self, name: str) -> bool:
        seen = self._suspected.get(name)
        return seen is not None and self._clock() - seen[1] >= APART_S and self._tries.is_due(name)
