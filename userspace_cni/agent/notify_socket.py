"""Tells what started the agent, if that is systemd, when it serves and when it ends (sd_notify(3), the unit's `Type=notify`).

A failure is no reason to stop the agent: systemd waits for the unit's time, and says that it has heard nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
_VARIABLE: Final = "NOTIFY_SOCKET"


def notify(state: str, environ: Mapping[str, str]) -> None:
    """Send the state to the socket that the environment names; nothing where it names none."""
    address = environ.get(_VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    if address[0] == "@":
        address = f"\0{address[1:]}"
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifying:
        notifying.setblocking(False)
        notifying.sendto(state.encode(), address)
