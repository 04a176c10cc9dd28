"""A daemon as a process of this machine: its user, limits, open files, age, and what it sees of a directory."""
# Links of proc(5) rather than pathlib's.
# ruff: noqa: PTH115, PTH116

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from userspace_cni.base.process_users import ProcessUser, read_user
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.files.mountinfo import read as read_mounts
from userspace_cni.host.machine.kernel_files import list_names, read_word

if TYPE_CHECKING:
    import psutil

_CRASHES: Final = re.compile(r"monitoring pid [0-9]+ \(([0-9]+) crash")
"""What the monitor of an Open vSwitch daemon says in the place of its command line (daemon(7), --monitor)."""
_NUMBERS: Final = re.compile(r"^NSpid:\s*(.+)$", re.MULTILINE)
_DELETED: Final = " (deleted)"
_POLLING: Final = re.compile(r"pmd-c([0-9]+)")
"""The name of a polling thread, with its processor."""
T = TypeVar("T")


@dataclass(frozen=True)
class DaemonProcess:
    """None is what cannot be seen. `files_max`, `locked_max`: RLIMIT_NOFILE and RLIMIT_MEMLOCK (bytes), -1 for no limit;
    `files_hard`: up to which the former can be raised by anyone.

    `crashes`: how often its monitor has restarted it, None without a monitor. `replaced`: its program's file was replaced or
    removed since its start. `swapped`: bytes of it. `label`: of SELinux or AppArmor. `polled`: processors of its polling threads.

    `sees`: whether it finds the same directory at the path that was asked about. `receives`: whether mounts that the host makes
    there reach it.
    """

    pid: int
    user: ProcessUser | None = None
    age_s: float | None = None
    files: int | None = None
    files_max: int | None = None
    files_hard: int | None = None
    locked_max: int | None = None
    crashes: int | None = None
    replaced: bool | None = None
    swapped: int | None = None
    label: str = ""
    sees: bool | None = None
    receives: bool | None = None
    polled: frozenset[int] = frozenset()


def look_at_daemon(pid: int, name: str, directory: str, root: HostRoot = HERE) -> DaemonProcess | None:
    """The daemon whose name begins with `name` and that calls itself `pid`; None where no such process is seen.

    In a container it has another number for this process than for itself.
    """
    import psutil

    process = _find(pid, name)
    if process is None:
        return None
    status = read_word(f"/proc/{process.pid}/status", HERE)
    swapped = re.search(r"^VmSwap:\s*([0-9]+) kB", status, re.MULTILINE)
    created = _asked(process.create_time)
    return DaemonProcess(
        process.pid,
        user=read_user(status),
        age_s=None if created is None else max(0.0, time.time() - created),
        files=_asked(process.num_fds),
        files_max=_asked(lambda: process.rlimit(psutil.RLIMIT_NOFILE)[0]),
        files_hard=_asked(lambda: process.rlimit(psutil.RLIMIT_NOFILE)[1]),
        locked_max=_asked(lambda: process.rlimit(psutil.RLIMIT_MEMLOCK)[0]),
        crashes=_crashes(process),
        replaced=_is_replaced(process.pid),
        swapped=int(swapped[1]) << 10 if swapped else None,
        label=read_word(f"/proc/{process.pid}/attr/current", HERE).rstrip("\0"),
        sees=_sees(process.pid, directory, root),
        receives=_receives(process.pid, directory, root),
        polled=_polled(process.pid),
    )


def _find(pid: int, name: str) -> psutil.Process | None:
    import psutil

    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.name().startswith(name):
            return process
    for process in psutil.process_iter(["name"]):
        numbers = _NUMBERS.search(read_word(f"/proc/{process.pid}/status", HERE))
        if (process.info["name"] or "").startswith(name) and numbers and numbers[1].split()[-1] == str(pid):
            return process
    return None


def _crashes(process: psutil.Process) -> int | None:
    """Of its monitor, which is its parent; one that counts none says nothing of crashes."""
    parent = _asked(process.parent)
    words = " ".join(_asked(parent.cmdline) or ()) if parent else ""
    if "monitoring pid" not in words:
        return None
    found = _CRASHES.search(words)
    return int(found[1]) if found else 0


def _is_replaced(pid: int) -> bool | None:
    try:
        return os.readlink(f"/proc/{pid}/exe").endswith(_DELETED)
    except OSError:
        return None


def _polled(pid: int) -> frozenset[int]:
    names = (read_word(f"/proc/{pid}/task/{tid}/comm", HERE) for tid in list_names(f"/proc/{pid}/task", HERE))
    return frozenset(int(match[1]) for name in names if (match := _POLLING.match(name)))


def _sees(pid: int, directory: str, root: HostRoot) -> bool | None:
    """Whether the process finds at the path what this one finds there."""
    try:
        mine = os.stat(root.path(directory))
    except OSError:
        return None
    try:
        return os.path.samestat(mine, os.stat(f"/proc/{pid}/root{directory}"))
    except FileNotFoundError:
        return False
    except OSError:
        return None


def _receives(pid: int, directory: str, root: HostRoot) -> bool | None:
    """Whether mounts below the directory reach the process: its mount namespace is the host's own, or is told of them."""
    try:
        hosts = root.path("/proc/1/ns/mnt") if root.elsewhere else "/proc/self/ns/mnt"
        if os.path.samestat(os.stat(f"/proc/{pid}/ns/mnt"), os.stat(hosts)):
            return True
        mounts = [each for each in read_mounts(f"/proc/{pid}/mountinfo").values() if _is_within(directory, each.point)]
    except OSError:
        return None
    return bool(max(mounts, key=lambda mount: len(mount.point)).groups) if mounts else None


def _is_within(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top.rstrip('/')}/")


def _asked(ask: Callable[[], T]) -> T | None:
    import psutil

    try:
        return ask()
    except (psutil.Error, OSError):
        return None
