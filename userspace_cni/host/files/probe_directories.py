"""Runs of the commands that make probes: their names, whether they still live, and the directory of their sockets.

A run that is killed cannot remove what it made. So everything that it makes carries the run's name, from which any later process
can see whether the run lives: process, its start time, boot and PID namespace. A process of another PID namespace is invisible
here, and so never taken for dead.

Root makes the run's directory `<short_dir>/probe-<name>` where no pod can write; OVS's group may enter it and connect to its
sockets. It is also the record of the run: made before the first row in the switch, and removed after the last. Paths of sockets
in it have at most 107 bytes, because `settings` limits short_dir.
"""
# Single names in a directory of ours rather than pathlib's.
# ruff: noqa: PTH101, PTH102, PTH106, PTH108, PTH116, PTH123, PTH208

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from userspace_cni.base.beneath import translated
from userspace_cni.base.errors import DirectoryRefused
from userspace_cni.base.log import say
from userspace_cni.base.root import HostRoot
from userspace_cni.host.files.mounts import make_short_dir
from userspace_cni.linux.boot import boot_id

PREFIX = "probe-"
"""The prefix of the names of directories, ports and temporary bridges."""
_MODE = 0o2750
"""Set-group-id: a socket made in it gets OVS's group."""
_NAME = re.compile(r"([0-9a-f]{1,7})\.([0-9a-f]{1,12})\.([0-9a-f]{6})\.([0-9a-f]{4})\.([0-9a-f]{8})")
_PID_NAMESPACE = "/proc/self/ns/pid"


@dataclass(frozen=True)
class Run:
    """One run of a command. `started`: in clock ticks since boot, of process `pid`. `boot` and `namespace`: the beginning of the
    boot's id, the end of the PID namespace's inode. `number`: random, 8 hex digits."""

    pid: int
    started: int
    boot: str
    namespace: str
    number: str

    @classmethod
    def new(cls) -> Self:
        """A run of this process."""
        pid = os.getpid()
        return cls(pid, _started(pid), _boot(), _namespace(), secrets.token_hex(4))

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """The run of that name; None when `name` is not a run's."""
        match = _NAME.fullmatch(name)
        return cls(int(match[1], 16), int(match[2], 16), match[3], match[4], match[5]) if match else None

    @property
    def name(self) -> str:
        """The run's name, in the marks of its ports and in its directory's name."""
        return f"{self.pid:x}.{self.started:x}.{self.boot}.{self.namespace}.{self.number}"

    @property
    def is_dead(self) -> bool:
        """Whether its process is proven to have ended."""
        if self.boot != _boot():
            return True
        return self.namespace == _namespace() and _started(self.pid) != self.started


def directory_of(run: Run, short_dir: str) -> str:
    """The path of the run's directory below `short_dir`."""
    return f"{short_dir}/{PREFIX}{run.name}"


def make_directory(run: Run, short_dir: str, ovs_rundir: str, root: HostRoot) -> None:
    """Make the run's directory, which OVS's group may enter. Raises DirectoryRefused, Unavailable."""
    with translated(f"directory {directory_of(run, short_dir)}"):
        parent = root.path(short_dir)
        make_short_dir(parent, root.path(ovs_rundir))
        path = directory_of(run, parent)
        os.mkdir(path, 0o700)
        with suppress(FileNotFoundError):
            os.chown(path, -1, os.stat(root.path(ovs_rundir)).st_gid)
        os.chmod(path, _MODE)


def remove_directory(run: Run, short_dir: str, root: HostRoot) -> None:
    """Remove the run's directory with its sockets. It may be gone; another file in it stays, with a warning."""
    path = directory_of(run, root.path(short_dir))
    with translated(f"directory {directory_of(run, short_dir)}"), suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(path):
            if stat.S_ISSOCK(os.stat(f"{path}/{name}", follow_symlinks=False).st_mode):
                os.unlink(f"{path}/{name}")
            else:
                say("warning", f"directory {path}: {name} is no socket of ours; left there")
                return
        os.rmdir(path)


def runs_with_directory(short_dir: str, root: HostRoot) -> list[Run]:
    """Every run that has a directory, living or dead; none when that cannot be read."""
    try:
        names = os.listdir(root.path(short_dir))
    except (OSError, DirectoryRefused):
        return []
    found = (Run.parse(name.removeprefix(PREFIX)) for name in names if name.startswith(PREFIX))
    return [run for run in found if run is not None]


def _started(pid: int) -> int:
    """The start time of the process (proc_pid_stat(5), starttime); -1 when there is no process, or it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return -1 if fields[0] in "ZX" else int(fields[19])


def _boot() -> str:
    return boot_id()[:6]


def _namespace() -> str:
    return f"{os.stat(_PID_NAMESPACE).st_ino & 0xFFFF:04x}"
