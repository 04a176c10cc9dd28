"""Network namespaces: what one is, whether it still is, whether it has a link, and doing something in one.

setns(2) is per thread: a thread enters another namespace only to make sockets and taps there, or to read and write files below
/proc/sys/net, which show the namespace of the thread that opens them. A socket stays in the namespace in which it was made, and
any thread may use it afterwards.
"""
# Descriptors and single names rather than paths: pathlib cannot express them.
# ruff: noqa: PTH116, PTH120, PTH208

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from userspace_cni.base.beneath import reopen
from userspace_cni.base.errors import PASSING, BadEnvironment, ContainerGone, DirectoryRefused, Unavailable, UserspaceError
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.base.threads import start
from userspace_cni.linux import paths
from userspace_cni.linux.closing import Closing

T = TypeVar("T")

_SIOCGIFINDEX = 0x8933
_IFNAMSIZ = 16
_NS_GET_NSTYPE = 0xB703
"""ioctl_ns(2): returns the CLONE_NEW* flag of a namespace file."""

OWN = "/proc/self/ns/net"
_OWN_THREADS = "/proc/thread-self/ns/net"
_RETURNS = 100


@dataclass(frozen=True)
class NetnsFacts:
    """The identity of a network namespace as long as it lives."""

    dev: int
    inode: int


@dataclass(frozen=True)
class Naming:
    """How an error names a namespace: by what it was given, and what to look at."""

    given_by: str
    details: str


POD: Final = Naming("CNI_NETNS", "the runtime names the sandbox's network namespace there")
SWITCH: Final = Naming("setting switch_netns", "it names the network namespace in which ovs-vswitchd opens its ports")


def namespace(path: str, root: HostRoot = HERE) -> NetnsFacts:
    """The network namespace at `path` (CNI_NETNS). Raises BadEnvironment when there is none."""
    fd = _open(path, root, POD)
    try:
        facts = os.fstat(fd)
    finally:
        os.close(fd)
    return NetnsFacts(facts.st_dev, facts.st_ino)


def is_own(path: str, root: HostRoot = HERE) -> bool:
    """Whether `path` is the namespace of this process, which is the host's; False when nothing is there."""
    try:
        return os.path.samestat(os.stat(root.path(path)), os.stat(OWN))
    except (OSError, DirectoryRefused):
        return False


def is_gone(path: str, root: HostRoot = HERE) -> bool:
    """Whether `path` is absent while its directory shows another network namespace: else it may only be invisible from here."""
    try:
        seen = root.path(path)
        os.lstat(seen)
    except FileNotFoundError:
        directory = os.path.dirname(path)
        try:
            return any(_is_namespace(f"{directory}/{name}", root) for name in os.listdir(root.path(directory)))
        except (OSError, DirectoryRefused):
            return False
    except (OSError, DirectoryRefused, ValueError):
        return False
    return False


class Netns(Closing):
    """A network namespace that is held open. Close it, or use it as a context manager."""

    def __init__(self, fd: int | None, named: str) -> None:
        self._fd = fd
        self._named = named

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def fileno(self) -> int:
        """Its descriptor; that of this process's own namespace is -1."""
        return -1 if self._fd is None else self._fd

    def do(self, work: Callable[[], T]) -> T:
        """Do `work` in the namespace; it only makes sockets and taps, and reads or writes files below /proc/sys/net.

        Raises what `work` raises, OSError when the namespace cannot be entered, and Unavailable when no thread can be started.
        On the main thread, where signals raise exceptions, a new thread enters the namespace: an exception meanwhile would leave
        the main thread in the sandbox. Other threads enter it themselves, at a tenth of the cost; a thread that cannot return
        ends the process.
        """
        import threading

        if self._fd is None:
            return work()
        fd = self._fd
        if threading.current_thread() is not threading.main_thread():
            return _inside(fd, work)
        outcome: list[T] = []
        failure: list[BaseException] = []

        def enter() -> None:
            try:
                outcome.append(_inside(fd, work))
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                failure.append(error)

        thread = threading.Thread(target=enter, name="netns")
        start(thread, f"looking into {self._named}")
        thread.join()
        if failure:
            raise failure[0]
        return outcome[0]


def open_netns(path: str, root: HostRoot = HERE) -> Netns:
    """The namespace at `path` (CNI_NETNS). Raises BadEnvironment when there is none."""
    return Netns(_open(path, root, POD), path)


def open_switch_netns(path: str, root: HostRoot = HERE) -> Netns:
    """The namespace in which ovs-vswitchd opens its ports, "" for this process's own. Raises Unavailable when there is none."""
    try:
        return Netns(_open(path, root, SWITCH) if path else None, path)
    except BadEnvironment as error:
        raise Unavailable(error.message, error.details) from error


def open_pod_netns(path: str, inode: int, root: HostRoot = HERE) -> Netns:
    """The pod's namespace, which had that inode, 0 for unknown. Raises ContainerGone when it is gone, BadEnvironment when it
    cannot be seen."""
    try:
        found = open_netns(path, root)
    except BadEnvironment as error:
        if is_gone(path, root):
            raise ContainerGone(error.message, "the sandbox was removed") from error
        raise
    if inode and os.fstat(found.fileno()).st_ino != inode:
        found.close()
        raise ContainerGone(
            f"CNI_NETNS {path!r}: it is another namespace by now", "the sandbox was removed, and its path used again"
        )
    return found


def link_exists(netns: str, name: str, root: HostRoot = HERE) -> bool:
    """Whether the namespace has a link of this name or alternative name. Raises BadEnvironment when it cannot be entered."""
    with open_netns(netns, root) as entered:
        return _has(entered, name, netns, POD)


def switch_has(switch_netns: str, name: str, root: HostRoot = HERE) -> bool:
    """The same of the namespace in which ovs-vswitchd opens its ports. Raises Unavailable or BadEnvironment."""
    with open_switch_netns(switch_netns, root) as entered:
        return _has(entered, name, switch_netns, SWITCH)


def _has(entered: Netns, name: str, path: str, naming: Naming) -> bool:
    if not 0 < len(os.fsencode(name)) < _IFNAMSIZ:
        return False
    from socket import AF_UNIX, SOCK_DGRAM, socket

    try:
        with entered.do(lambda: socket(AF_UNIX, SOCK_DGRAM)) as query:
            # netdevice(7): any type of socket works, and uses the namespace of the thread that made it
            fcntl.ioctl(query, _SIOCGIFINDEX, os.fsencode(name).ljust(40, b"\0"))
    except OSError as error:
        if error.errno == errno.ENODEV:
            return False
        raise _refusal(path, error, "it could not be read: ", naming) from error
    return True


def _is_namespace(path: str, root: HostRoot) -> bool:
    try:
        os.close(_open(path, root, POD))
    except BadEnvironment:
        return False
    return True


def _inside(fd: int, work: Callable[[], T]) -> T:
    home = os.open(_OWN_THREADS, os.O_RDONLY | os.O_CLOEXEC)
    try:
        paths.setns(fd, paths.NETWORK)
        try:
            return work()
        finally:
            _return(home)
    finally:
        os.close(home)


def _return(home: int) -> None:
    """Return to the namespace of the process. The kernel refuses this only when it has no memory."""
    for _ in range(_RETURNS):
        with suppress(OSError):
            paths.setns(home, paths.NETWORK)
            return
    os.abort()  # further calls of this thread would act in a pod; the records name what was begun


def _open(path: str, root: HostRoot, naming: Naming) -> int:
    if not path.startswith("/") or "\0" in path:
        raise _refused(path, "it is not an absolute path", naming)
    try:
        seen = root.path(path)
        looked_at = os.open(seen, os.O_PATH | os.O_CLOEXEC)
        try:
            fd = reopen(looked_at)
        finally:
            os.close(looked_at)
    except OSError as error:
        raise _refusal(path, error, "", naming) from error
    except DirectoryRefused as error:
        raise _refused(path, error.message, naming) from error
    if fd is None:
        raise _refused(path, "it is not a namespace", naming)
    try:
        if fcntl.ioctl(fd, _NS_GET_NSTYPE) == paths.NETWORK:
            return fd
        reason = "it is a namespace, but not of a network"
    except OSError:
        reason = "it is not a namespace"
    os.close(fd)
    raise _refused(path, reason, naming)


def _refusal(path: str, error: OSError, tried: str = "", naming: Naming = POD) -> UserspaceError:
    """The error for a namespace that cannot be opened or entered; `tried` says what was tried there, with a colon and a space."""
    reason = "it does not exist" if error.errno == errno.ENOENT else f"{tried}{os.strerror(error.errno or 0)}"
    if error.errno in PASSING:
        return Unavailable(f"{naming.given_by} {path!r}: {reason}", "try again later")
    return _refused(path, reason, naming)


def _refused(path: str, reason: str, naming: Naming) -> BadEnvironment:
    return BadEnvironment(f"{naming.given_by} {path!r}: {reason}", naming.details)
