"""The DPDK EAL arguments with which an application opens its interfaces.

DPDK takes a device as `name,key=value,…` without quoting (rte_kvargs), and cuts the socket's path to the size of a sockaddr_un;
applications pass the text from an annotation through a shell. A value that one of them would understand in another way must never
be passed on: it is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .document import DocumentError, Entry
from .interface import Interface, interfaces
from .socket_path import SUN_PATH_MAX

COMMON = ("--in-memory", "--single-file-segments")
"""vhost-user shares the application's memory by file descriptor: one file per segment, and no files left in hugetlbfs."""

_PATH = re.compile(r"[A-Za-z0-9._/:@%+~-]+")
_MAC = re.compile(r"(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}")


def arguments(entries: Iterable[Entry], mapped_dir: str) -> list[str]:
    """The arguments, one per list element: the common ones, then a `--vdev` per interface in the order of `entries`."""
    return for_interfaces(interfaces(entries, mapped_dir))


def for_interfaces(found: Iterable[Interface]) -> list[str]:
    """As `arguments`, for interfaces that were read already."""
    return [*COMMON, *(_vdev(number, interface) for number, interface in enumerate(found))]


def joined(args: Iterable[str]) -> str:
    """The text of the annotation userspace/dpdk-args: one line, which a reader splits at blanks."""
    return " ".join(args)


def _vdev(number: int, interface: Interface) -> str:
    if not _PATH.fullmatch(interface.path):
        raise DocumentError(f"interface {interface.ifname}: DPDK cannot be given the path {interface.path!r}")
    if len(interface.path) > SUN_PATH_MAX:
        raise DocumentError(f"interface {interface.ifname}: {interface.path} is longer than {SUN_PATH_MAX} bytes")
    if interface.mac and not _MAC.fullmatch(interface.mac):
        raise DocumentError(f"interface {interface.ifname}: {interface.mac!r} is not a MAC address")
    queues = interface.queues or (1 if interface.mode == "client" else None)
    pairs = [
        ("path", interface.path),
        ("server", "1" if interface.mode == "server" else None),
        ("mac", interface.mac or None),
        ("queues", queues),
        ("queue_size", interface.queue_size),
    ]
    return ",".join([f"--vdev=virtio_user{number}", *(f"{key}={value}" for key, value in pairs if value is not None)])
