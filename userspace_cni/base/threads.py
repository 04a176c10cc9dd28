"""Starts threads; the kernel may refuse one (pids cgroup, RLIMIT_NPROC).

That passes: it is "try again later" for the caller, and must never be reported as a bug.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from userspace_cni.base.errors import Unavailable

if TYPE_CHECKING:
    from threading import Thread


def start(thread: Thread, what: str) -> None:
    """Start the thread; `what` says in the error what it is for. Raises Unavailable when the kernel refuses it."""
    try:
        thread.start()
    except RuntimeError as error:
        raise refused(what) from error


def refused(what: str) -> Unavailable:
    """The error for work for which no thread could be started."""
    return Unavailable(f"{what}: no thread can be started", "see the limits on processes: ulimit -u, pids.max")
