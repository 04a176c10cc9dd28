"""Helpers for the tests of directories, mounts and sockets, which look at real ones without the code under test."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from userspace_cni.base.deadline import Deadline
from userspace_cni.linux import paths

UNUSED_ID = 54321
"""A user and group ID that this machine has not given to any user or group."""
CHILD_S = 60
"""Seconds that a forked child may take."""


def soon() -> Deadline:
    """A deadline that only a hang exceeds."""
    return Deadline.after(60)


def mounts_at(path: Path) -> list[set[str]]:
    """The options of each mount on exactly `path`, from mountinfo."""
    lines = (line.split() for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines())
    return [set(fields[5].split(",")) for fields in lines if fields[4] == str(path)]


def bind(source: Path, target: Path) -> None:
    """Make a plain bind mount of a directory, as other programs do."""
    target.mkdir(parents=True, exist_ok=True)
    bind_over(source, target)


def bind_over(source: Path, target: Path) -> None:
    """Make a plain bind mount of a directory or file over another."""
    fds = [os.open(source, os.O_PATH), os.open(target, os.O_PATH)]
    fds.append(paths.open_tree(fds[0]))
    paths.move_mount(fds[2], fds[1])
    for fd in fds:
        os.close(fd)


def tree(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}


def mode(path: Path) -> int:
    """Permission bits, of a link itself."""
    return stat.S_IMODE(path.lstat().st_mode)


def descriptors() -> frozenset[tuple[str, str]]:
    """The open descriptors of this process, by number and target; after a test without leaks they are a subset of the earlier
    ones.

    (Earlier tests may close some meanwhile; a comparison of numbers would hide as many leaks.)
    """
    gc.collect()
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            found.add((entry.name, str(entry.readlink())))
    return frozenset(found)


def drop_privileges(ident: int = UNUSED_ID) -> None:
    """Become an unprivileged user, in a forked child."""
    os.setgroups([])
    os.setgid(ident)
    os.setuid(ident)


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A listening stream socket bound to `path`, like the one of a vhost-user server."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen(8)
        server.settimeout(60)
        yield server


def connects(path: Path) -> bool:
    """Whether a program accepts connections at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return False
        return True


def answers(path: Path, server: socket.socket) -> bool:
    """Whether `server`, and no other socket, accepts at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))
        accepted, _ = server.accept()
        with accepted:
            client.sendall(b"vhost")
            return accepted.recv(5) == b"vhost"


def in_child(work: Callable[[], object]) -> int:
    """The wait status of a forked child that does `work`: exit code 0, 1 after an exception, or the signal that ended it.

    One that takes longer than CHILD_S shows where it is, and ends with 1.
    """
    child = os.fork()
    if child == 0:
        code = 1
        faulthandler.dump_traceback_later(CHILD_S, exit=True, file=2)
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


@contextmanager
def looping(work: Callable[[], object]) -> Iterator[None]:
    """A forked child that does `work` over and over, killed at the end."""
    child = os.fork()
    if child == 0:
        try:
            while True:
                work()
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the racing process ended by itself"


def eventually(fact: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until `fact` is true; AssertionError if it takes too long."""
    end = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < end, "it did not become true in time"
        time.sleep(0.005)
