"""Starting a thread where the kernel may have none left for us (pids cgroup, RLIMIT_NPROC).

That passes: it is "try again later" for the caller, and never a bug.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from userspace_cni.base.errors import Unavailable

if TYPE_CHECKING:
    from threading import Thread


def start(thread: Thread, what: str) -> None:
    """Start it; `what` says for what it was wanted. Raises Unavailable when there is none to be had."""
    try:
        thread.start()
    except RuntimeError as error:
        raise refused(what) from error


def refused(what: str) -> Unavailable:
    """The error for work that could not have a thread."""
    return Unavailable(f"{what}: no thread can be started", "see the limits on processes: ulimit -u, pids.max")
