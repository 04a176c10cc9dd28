"""A crash-safe store of small JSON records, and the locks that go with it.

It exists because a process that wires up interfaces can be killed between any two system calls, and what it had promised must
still be there afterwards: whole, or as it was before. Theory of operation: one file per record, written beside its place,
flushed, renamed over it, and the directory flushed; a file that is not a whole record is moved aside, never deleted; a lock is
a kernel lock on a file, so it dies with its holder.

It must never import anything but the standard library, nor know what the records mean. It is imported by a process that lives
for milliseconds, so pathlib, hashlib, tempfile, logging and dataclasses stay out until something needs them.
"""

from localdb.errors import LockTimeout, StoreError
from localdb.locks import Lock
from localdb.store import Store

__all__ = ["Lock", "LockTimeout", "Store", "StoreError"]
