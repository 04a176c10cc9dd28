"""The errors of the store, and the one place where an `OSError` becomes one of them.

    StoreError        an operation did not happen, or cannot be proven to be on disk
      LockTimeout     another holder kept a lock for the whole of the allowed time
    Foreign           (internal) a file is not a record of ours: the store moves it aside and goes on
    Newer             (internal) a file is a record in a format this version does not know

It must never let an `OSError` leave the package, nor hide one: it stays reachable as `__cause__`.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

ADVICE = {
    errno.ENOSPC: "free space on that filesystem",
    errno.EDQUOT: "raise the quota on that filesystem",
    errno.EROFS: "that filesystem is mounted read-only",
    errno.EACCES: "look at its owner and mode and at the security module's log",
    errno.EPERM: "look at its owner, mode and attributes (lsattr)",
    errno.EIO: "the disk failed: look at the kernel log",
    errno.ENOTDIR: "something that is not a directory stands in the way",
    errno.ELOOP: "a symbolic link stands in the way",
    errno.EMFILE: "this process has too many open files",
    errno.ENOLCK: "the kernel or the file server has no more locks: try again later",
}


class StoreError(Exception):
    """What was tried, on which path, what happened and what to look at. The `OSError`, if there was one, is `__cause__`."""


class LockTimeout(StoreError):
    """Another holder kept the lock all the time; the message names the lock and, when known, the process that holds it."""


class Foreign(Exception):
    """The file is torn, or not ours; the text says in which way and follows "the file" in a sentence."""


class Newer(Exception):
    """The file is a record of a newer version of the store; the text is its schema number."""


class Attempt:
    """Turn an `OSError` raised inside the `with` block into a `StoreError` that says what was being tried.

    `outcome` is what a failure leaves behind, for the message.
    """

    __slots__ = ("outcome", "path", "what")

    def __init__(self, what: str, path: str, outcome: str = "") -> None:
        self.what = what
        self.path = path
        self.outcome = outcome

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Translate an `OSError`; let everything else pass."""
        if isinstance(error, OSError):
            happened = error.strerror or str(error)
            notes = [note for note in (ADVICE.get(error.errno or 0), self.outcome) if note]
            raise StoreError(": ".join([f"{self.what} {self.path}", happened, *notes])) from error
