"""What all unit tests share: their temporary files are in memory, where the system has room for them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
ROOM: Final = 1 << 30
"""Bytes that have to be free there. In a container it is often smaller, and programs cannot be executed there."""


def _fits() -> bool:
    if not os.access(MEMORY, os.W_OK | os.X_OK):
        return False
    there = os.statvfs(MEMORY)
    return there.f_bavail * there.f_frsize >= ROOM and not there.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)


# A record is flushed at each step, which takes milliseconds on a disk. What a power cut leaves is tested in tests/crash.
if "TMPDIR" not in os.environ and _fits():
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
