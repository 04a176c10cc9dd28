"""What the kernel says of a process that a test has started."""

from __future__ import annotations

from pathlib import Path


def runs(pid: int) -> bool:
    """Whether the process runs; a zombie that its parent has not reaped has ended.

    Who has to reap a daemon of ours is the first process, and in a container that may be one that does not.
    """
    return _state(Path(f"/proc/{pid}/stat")) not in "ZX"


def is_stopped(pid: int) -> bool:
    """Whether each of its threads is stopped by a signal."""
    return all(_state(each) == "T" for each in Path(f"/proc/{pid}/task").glob("*/stat"))


def _state(stat: Path) -> str:
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
