"""Which attachments have a dead socket: one that no process has, so that no application can use the interface.

An application that has not started yet has no socket, and that is no fault. The drivers decide what is dead; here they are asked.
Must change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.drift import Dead, Drift
from userspace_cni.attachment.records import Record
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError

if TYPE_CHECKING:
    from userspace_cni.attachment.node import DriverOf

LOOK_S: Final = 1.0
"""Seconds for looking at one socket."""


def dead_sockets(records: Iterable[Record], driver: DriverOf) -> Mapping[str, Drift]:
    """The drift of each dead socket, by the key of its record. What cannot be looked at is left out: `check` tells it."""
    return {record.key: drift for record in records if (drift := _dead(record, driver))}


def _dead(record: Record, driver: DriverOf) -> Drift | None:
    socket = record.socket
    if record.state != "ready" or socket is None:
        return None
    try:
        found = driver(socket).check(socket, Deadline.after(LOOK_S))
    except UserspaceError:
        return None
    return next((each for each in found if isinstance(each.found, Dead)), None)
