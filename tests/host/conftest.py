"""Directories on two devices, in which no mount may be left."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from userspace_cni.linux import paths


@pytest.fixture(autouse=True, scope="session")
def _root() -> None:
    assert os.geteuid() == 0, "mounts, owners and namespaces need root"


@pytest.fixture
def room() -> Iterator[Path]:
    """A directory on a disk that every user may enter (tmp_path is root's alone)."""
    with _made_in("/tmp") as path:
        yield path


@pytest.fixture
def shm() -> Iterator[Path]:
    """A directory on another device, in memory."""
    with _made_in("/dev/shm") as path:
        yield path


@contextmanager
def _made_in(where: str) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="uc-", dir=where))
    path.chmod(0o755)
    try:
        yield path
    finally:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        for point in reversed([line.split()[4] for line in lines]):
            if point.startswith(f"{path}/"):
                with suppress(OSError):  # taken off with the one that it was propagated from
                    paths.umount2(point, paths.DETACH)
        shutil.rmtree(path)
