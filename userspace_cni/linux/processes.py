"""What tells one process from all others: its start time and its PID namespace beside its number."""
# ruff: noqa: PTH116, PTH123, PTH208

from __future__ import annotations

import os
from typing import Final

_PID_NAMESPACE: Final = "/proc/self/ns/pid"


def start_time(pid: int) -> int:
    """When the process began, in clock ticks since boot (proc_pid_stat(5), starttime); -1 for none, and for a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return -1 if fields[0] in "ZX" else int(fields[19])


def is_stopped(pid: int, proc: str = "/proc") -> bool:
    """Whether the process is stopped by a signal or a debugger, so that it answers nothing; False where that is not known."""
    try:
        with open(f"{proc}/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def find_daemon(rundir: str, program: str, proc: str = "/proc") -> int:
    """The process of a program that has its control socket, PROGRAM.PID.ctl, in this directory; 0 where none is seen there."""
    try:
        names = os.listdir(rundir)
    except OSError:
        return 0
    for name in names:
        pid = name.removeprefix(f"{program}.").removesuffix(".ctl")
        if name == f"{program}.{pid}.ctl" and pid.isdecimal() and _is_called(f"{proc}/{pid}/comm", program):
            return int(pid)
    return 0


def _is_called(path: str, program: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip() == program
    except OSError:
        return False


def pid_namespace() -> int:
    """The inode of the PID namespace of this process: processes of others are not seen here."""
    return os.stat(_PID_NAMESPACE).st_ino
