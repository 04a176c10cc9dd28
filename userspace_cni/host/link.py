"""Reads facts of network namespaces, their links and this boot; and sets up a tap of our own.

The plugin's interfaces have no kernel link, so a pod's namespace is only read: nothing changes it. setns(2) is per thread: a
thread enters another namespace only to make one socket there, and makes no other call in it. `set_up` is for a link that its
caller has made in its own namespace, and touches no other.
"""
# Descriptors and single names rather than paths: pathlib cannot express them.
# ruff: noqa: PTH116, PTH120, PTH123, PTH208

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from userspace_cni.base.beneath import reopen
from userspace_cni.base.errors import PASSING, BadEnvironment, DirectoryRefused, Unavailable, UserspaceError
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.base.threads import start
from userspace_cni.fastpath.sys import paths

if TYPE_CHECKING:
    from socket import socket

_NS_GET_NSTYPE = 0xB703
"""ioctl_ns(2): returns the CLONE_NEW* flag of a namespace file."""

_SIOCGIFINDEX = 0x8933
_IFNAMSIZ = 16
_OWN = "/proc/self/ns/net"
_OWN_THREADS = "/proc/thread-self/ns/net"
_RETURNS = 100


@dataclass(frozen=True)
class NetnsFacts:
    """The identity of a network namespace as long as it lives."""

    dev: int
    inode: int


@dataclass(frozen=True)
class LinkSettings:
    """The settings of a link. `mac` "" and `mtu` None keep the kernel's own; `addresses` with prefix length, as 10.1.1.2/24."""

    mac: str = ""
    mtu: int | None = None
    addresses: tuple[str, ...] = ()


def boot_id() -> str:
    """The id of this boot (random(4))."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def boottime_ns() -> int:
    """Nanoseconds since this boot, with the time in suspend."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def namespace(path: str, root: HostRoot = HERE) -> NetnsFacts:
    """The network namespace at `path` (CNI_NETNS). Raises BadEnvironment when there is none."""
    fd = _open(path, root)
    try:
        facts = os.fstat(fd)
    finally:
        os.close(fd)
    return NetnsFacts(facts.st_dev, facts.st_ino)


def is_own(path: str, root: HostRoot = HERE) -> bool:
    """Whether `path` is the namespace of this process, which is the host's; False when nothing is there."""
    try:
        return os.path.samestat(os.stat(root.path(path)), os.stat(_OWN))
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


def _is_namespace(path: str, root: HostRoot) -> bool:
    try:
        os.close(_open(path, root))
    except BadEnvironment:
        return False
    return True


def link_exists(netns: str, name: str, root: HostRoot = HERE) -> bool:
    """Whether the namespace has a link of this name or alternative name. Raises BadEnvironment when it cannot be entered."""
    if not 0 < len(os.fsencode(name)) < _IFNAMSIZ:
        return False
    fd = _open(netns, root)
    try:
        with _socket_in(fd, netns) as query:
            # netdevice(7): any type of socket works, and uses the namespace of the thread that made it
            fcntl.ioctl(query, _SIOCGIFINDEX, os.fsencode(name).ljust(40, b"\0"))
    except OSError as error:
        if error.errno == errno.ENODEV:
            return False
        raise _refusal(netns, error, "it could not be read: ") from error
    finally:
        os.close(fd)
    return True


def set_up(name: str, settings: LinkSettings) -> None:
    """Set MAC address, MTU and addresses of the link `name` in the namespace of this process, and set it up.

    Raises UserspaceError with the refused setting and the kernel's reason. Source: rtnetlink(7).
    """
    from ipaddress import ip_interface

    from pyroute2 import IPRoute

    with _translated(f"link {name}: finding it"), IPRoute() as kernel:
        index = next(iter(kernel.link_lookup(ifname=name)), None)
        if index is None:
            raise UserspaceError(f"link {name}: it is not there any more", "another process has deleted or renamed it: ip link")
        if settings.mac:
            with _translated(f"link {name}: setting the MAC address {settings.mac}"):
                kernel.link("set", index=index, address=settings.mac)
        if settings.mtu is not None:
            with _translated(f"link {name}: setting the MTU {settings.mtu}"):
                kernel.link("set", index=index, mtu=settings.mtu)
        for text in settings.addresses:
            with _translated(f"link {name}: adding the address {text}"):
                address = ip_interface(text)
                kernel.addr("add", index=index, address=str(address.ip), prefixlen=address.network.prefixlen)
        with _translated(f"link {name}: setting it up"):
            kernel.link("set", index=index, state="up")


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn errors of netlink, of sockets and of addresses into ours."""
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        yield
    except NetlinkError as error:
        raise UserspaceError(f"{what}: {os.strerror(error.code)}") from error
    except OSError as error:
        raise UserspaceError(f"{what}: {error.strerror or error}") from error
    except ValueError as error:
        raise UserspaceError(f"{what}: {error}") from error


def _socket_in(fd: int, netns: str) -> socket:
    """Make a socket in the namespace. Raises OSError, and Unavailable when it cannot start a thread.

    On the main thread, where signals raise exceptions, a new thread enters the namespace: an exception meanwhile would leave the
    main thread in the sandbox. Other threads enter it themselves, at a tenth of the cost; a thread that cannot return ends the
    process.
    """
    import threading

    if threading.current_thread() is not threading.main_thread():
        return _made_inside(fd)
    outcome: list[socket | OSError] = []

    def make() -> None:
        try:
            outcome.append(_made_inside(fd))
        except OSError as error:
            outcome.append(error)

    thread = threading.Thread(target=make, name="netns")
    start(thread, f"looking into {netns}")
    thread.join()
    made = outcome[0]
    if isinstance(made, OSError):
        raise made
    return made


def _made_inside(fd: int) -> socket:
    from socket import AF_UNIX, SOCK_DGRAM, socket

    home = os.open(_OWN_THREADS, os.O_RDONLY | os.O_CLOEXEC)
    try:
        paths.setns(fd, paths.NETWORK)
        try:
            return socket(AF_UNIX, SOCK_DGRAM)
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


def _open(path: str, root: HostRoot) -> int:
    if not path.startswith("/") or "\0" in path:
        raise _refused(path, "it is not an absolute path")
    try:
        seen = root.path(path)
        looked_at = os.open(seen, os.O_PATH | os.O_CLOEXEC)
        try:
            fd = reopen(looked_at)
        finally:
            os.close(looked_at)
    except OSError as error:
        raise _refusal(path, error) from error
    except DirectoryRefused as error:
        raise _refused(path, error.message) from error
    if fd is None:
        raise _refused(path, "it is not a namespace")
    try:
        if fcntl.ioctl(fd, _NS_GET_NSTYPE) == paths.NETWORK:
            return fd
        reason = "it is a namespace, but not of a network"
    except OSError:
        reason = "it is not a namespace"
    os.close(fd)
    raise _refused(path, reason)


def _refusal(path: str, error: OSError, tried: str = "") -> UserspaceError:
    reason = "it does not exist" if error.errno == errno.ENOENT else f"{tried}{os.strerror(error.errno or 0)}"
    if error.errno in PASSING:
        return Unavailable(f"CNI_NETNS {path!r}: {reason}", "try again later")
    return _refused(path, reason)


def _refused(path: str, reason: str) -> BadEnvironment:
    return BadEnvironment(f"CNI_NETNS {path!r}: {reason}", "the runtime names the sandbox's network namespace there")
