"""What all unit tests share: the temporary files of a run of them alone are in memory, where the system has room for them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

import pytest

MEMORY: Final = Path("/dev/shm")
ROOM: Final = 1 << 30
"""Bytes that have to be free there. In a container it is often smaller, and programs cannot be executed there."""


def _fits() -> bool:
    if not os.access(MEMORY, os.W_OK | os.X_OK):
        return False
    there = os.statvfs(MEMORY)
    return there.f_bavail * there.f_frsize >= ROOM and not there.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)


def pytest_configure(config: pytest.Config) -> None:
    """Use memory if only tests of here are asked for: others need the device of their switch, whose sockets they move."""
    # a record is flushed at each step, which takes milliseconds on a disk; what a power cut leaves is tested in tests/crash
    here, paths = Path(__file__).parent, [Path(each.partition("::")[0]).resolve() for each in config.args]
    if "TMPDIR" not in os.environ and _fits() and all(each.is_relative_to(here) for each in paths):
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
