"""Move files that are not records aside, so that they stop no process and no data is lost.

A file that is torn, or that a person or another program put there, must neither stop the node nor vanish: it may be the only
trace of what happened. This module must never delete or overwrite anything, and must never raise for a file that cannot be
moved: that file stays where it is, and the next reader warns about it again.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from localdb.atomic_files import StoreDirectory
from localdb.names import LONGEST, digest

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "quarantine"
PATIENCE = 1.0  # seconds that a reader waits for writers; a file that is left in place is tried again by the next reader


def move_aside(root: str, source: StoreDirectory, name: str, label: str, warn: Callable[[str], object]) -> None:
    """Move `name` out of `source`, held exclusively by the caller, to `<root>/quarantine/<label>.<n>`; `warn` says why and where.

    `n` is the first free number. A file that is gone already is no error.
    """
    raw = os.fsencode(label)
    if len(raw) > LONGEST + 40:  # a foreign file's name, of up to 255 bytes
        label = os.fsdecode(raw[: LONGEST - 70]) + "~" + digest(raw)
    try:
        with StoreDirectory(f"{root}/{NAME}", create=True) as target:
            # Files of two collections can have one label: "a" with "b-c.json" and "a-b" with "c.json".
            target.lock(fcntl.LOCK_EX, PATIENCE)
            taken = set(target.names())
            number = 1
            while f"{label}.{number}" in taken:
                number += 1
            os.rename(name, f"{label}.{number}", src_dir_fd=source.fd, dst_dir_fd=target.fd)
            # Flush the new name first: after a crash between the two the file must have two names, not none.
            os.fsync(target.fd)
            os.fsync(source.fd)
    except FileNotFoundError:
        return
    except OSError as error:
        warn(f"{source.path}/{name} is ignored and could not be moved aside: {error.strerror or error}")
    else:
        warn(f"{source.path}/{name} is ignored and was moved to {root}/{NAME}/{label}.{number}")
