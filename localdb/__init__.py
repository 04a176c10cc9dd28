"""A crash-safe store of small JSON records, and the locks that go with it.

It exists because a process that wires up interfaces can be killed between any two system calls. A record must be whole
afterwards, either the new one or the old one. Theory of operation: each record is one file. It is written beside its place,
flushed, renamed over the old file, and the directory is flushed. A file that is not a whole record is moved aside, never
deleted. A lock is a kernel lock on a file, so it dies with its holder.

It must never import anything but the standard library, nor know what the records mean. It is imported by a process that lives
for milliseconds, so pathlib, hashlib, tempfile, logging and dataclasses stay out until something needs them.
"""

from localdb.locks import Lock
from localdb.store import Store
from localdb.store_errors import LockTimeout, StoreError

__all__ = ["Lock", "LockTimeout", "Store", "StoreError"]
