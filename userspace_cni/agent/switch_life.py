"""Whether ovs-vswitchd lives, as the last look at it showed, and the lines of the log about its end.

OVSDB does not show its end, and when the next one has started nothing else tells of the time between them.
"""

from __future__ import annotations

import threading

from userspace_cni.attachment.node import Ports
from userspace_cni.base.log import say


class SwitchLife:
    """What is known of the node's ovs-vswitchd. Methods may be called from any thread."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._lock = threading.Lock()
        self._state = "unknown"
        self._process = ""

    @property
    def is_alive(self) -> bool | None:
        """Whether it lives and answers; None while that is not known, as before the first look and of a switch elsewhere."""
        return None if self._state == "unknown" else self._state == "alive"

    def look(self) -> str:
        """Ask it, for up to 2 s, and tell the log what has changed since the last look; its process, "" unless it lives."""
        with self._lock:
            seen = self._ports.watch_liveness()
            former, before = self._process, self._state
            if seen.state == "dead" and before != "dead":
                say(
                    "warning", "ovs-vswitchd has ended" if former else "ovs-vswitchd does not run", was=former, reason=seen.reason
                )
            elif seen.state == "silent" and before != "silent":
                say("warning", "ovs-vswitchd does not answer", reason=seen.reason)
            elif seen.state == "unknown" and before != "unknown":
                say("warning", "whether ovs-vswitchd lives cannot be known", was=former, reason=seen.reason)
            elif seen.state == "alive" and former not in ("", seen.process):
                if before == "alive":
                    say("warning", "ovs-vswitchd has ended", was=former)
                say("info", "ovs-vswitchd was restarted", now=seen.process)
            elif seen.state == "alive" and before in ("dead", "silent"):
                say("info", "ovs-vswitchd answers", now=seen.process)
            self._state, self._process = seen.state, seen.process or former
            return seen.process
