"""Small disks that can be filled, and directories that accept no writes."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE = 4096
PAGES = 64


@contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """A file system of 64 pages at the state directory, with a file that fills it and is no record."""
    directory.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={PAGES * PAGE},mode=700", "none", str(directory)], check=True)
    try:
        yield directory / ".filler"
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(filler: Path, free: int) -> None:
    """Leave so many pages free."""
    filler.unlink(missing_ok=True)
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(PAGE))
        except OSError:
            pass
        size = file.tell()
        file.truncate(max(0, size // PAGE - free) * PAGE)


@contextmanager
def kept_full(filler: Path) -> Iterator[None]:
    """During the block, whatever becomes free is taken at once, as by a growing log."""
    fill(filler, 0)
    ended = threading.Event()

    def eat() -> None:
        with filler.open("ab", buffering=0) as file:
            while not ended.is_set():
                try:
                    file.write(bytes(PAGE))
                except OSError:
                    ended.wait(0.0002)

    eater = threading.Thread(target=eat)
    eater.start()
    try:
        yield
    finally:
        ended.set()
        eater.join()
