"""Moving what is not a record out of the way, so that it harms nobody and nothing is lost.

A file that was torn, put there by a person or by another program must neither stop the node nor vanish: it may be the only trace
of what happened. This module must never delete or overwrite anything, and must never raise for a file that cannot be moved:
it then stays where it is and is complained about again.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from localdb.files import Directory
from localdb.names import LONGEST, digest

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "quarantine"
PATIENCE = 1.0  # seconds; readers wait here for writers, and a file left in place is only met again


def move_aside(root: str, source: Directory, name: str, label: str, warn: Callable[[str], None]) -> None:
    """Move `name` out of `source`, held exclusively by the caller, to `<root>/quarantine/<label>.<n>`; `warn` says why and where.

    `n` is the first free number. Gone already is fine.
    """
    raw = os.fsencode(label)
    if len(raw) > LONGEST + 40:  # a file name of up to 255 bytes that is not one of ours
        label = os.fsdecode(raw[: LONGEST - 70]) + "~" + digest(raw)
    try:
        with Directory(f"{root}/{NAME}", create=True) as target:
            # Two collections can meet here in one label: "a" with "b-c.json" and "a-b" with "c.json".
            target.hold(fcntl.LOCK_EX, PATIENCE)
            taken = set(target.names())
            number = 1
            while f"{label}.{number}" in taken:
                number += 1
            os.rename(name, f"{label}.{number}", src_dir_fd=source.fd, dst_dir_fd=target.fd)
            # The new name first: a crash in between must leave two names rather than none.
            os.fsync(target.fd)
            os.fsync(source.fd)
    except FileNotFoundError:
        return
    except OSError as error:
        warn(f"{source.path}/{name} is ignored and could not be moved aside: {error.strerror or error}")
    else:
        warn(f"{source.path}/{name} is ignored and was moved to {root}/{NAME}/{label}.{number}")
