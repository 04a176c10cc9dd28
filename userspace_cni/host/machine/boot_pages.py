"""Which huge pages the machine reserves at its next boot: by the kernel's command line, sysctl.d(5) and tmpfiles.d(5).

Other programs can do it, too (a unit of systemd, tuned, hugeadm): that none of these files does is no proof that no program does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.machine.kernel_files import list_names, read_text, read_word

BootPages: TypeAlias = dict[tuple[int | None, int], int]
"""Numbers of pages by NUMA node (None: the kernel spreads them) and size of page in bytes; each with the last word about it."""
_SYSCTL_DIRECTORIES: Final = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")
_TMPFILES_DIRECTORIES: Final = ("/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/lib/tmpfiles.d")
_SYSCTL: Final = re.compile(r"^\s*-?vm[./]nr_hugepages\s*=\s*([0-9]+)\s*$", re.MULTILINE)
_POOL: Final = re.compile(
    r"^w!?\s+(?:/sys/devices/system/node/node([0-9]+)/hugepages|/sys/kernel/mm/hugepages)/hugepages-([0-9]+)kB/nr_hugepages"
    r"(?:\s+\S+){4}\s+([0-9]+)\s*$",
    re.MULTILINE,
)
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE: Final = re.compile(r"([0-9]+)([KMG]?)")


def read_boot_pages(default_bytes: int, root: HostRoot = HERE) -> BootPages:
    """What the files of this machine ask for. `default_bytes`: size of a page of vm.nr_hugepages. Raises Unavailable."""
    found = _read_command_line(read_word("/proc/cmdline", root), default_bytes)
    for path in (*_list_files(_SYSCTL_DIRECTORIES, root), "/etc/sysctl.conf"):
        for number in _SYSCTL.findall(read_text(path, root) or ""):
            found[None, default_bytes] = int(number)
    for path in _list_files(_TMPFILES_DIRECTORIES, root):
        for node, kib, number in _POOL.findall(read_text(path, root) or ""):
            found[int(node) if node else None, int(kib) << 10] = int(number)
    return found


def _list_files(directories: Iterable[str], root: HostRoot) -> Iterator[str]:
    """The files in the order in which they count; one of a directory hides those of the same name in later ones."""
    found: dict[str, str] = {}
    for directory in directories:
        for name in list_names(directory, root):
            if name.endswith(".conf"):
                found.setdefault(name, f"{directory}/{name}")
    return (found[name] for name in sorted(found))


def _read_command_line(words: str, default_bytes: int) -> BootPages:
    """`hugepagesz=` names the size of the `hugepages=` behind it (the kernel's hugetlbpage.rst)."""
    found: BootPages = {}
    size = default_bytes
    for word in words.split():
        name, _, value = word.partition("=")
        if name == "hugepagesz" and (parsed := _SIZE.fullmatch(value)):
            size = int(parsed[1]) * _UNITS[parsed[2]]
        elif name == "hugepages":
            for part in value.split(","):
                node, _, number = part.rpartition(":")
                if number.isdecimal() and (node.isdecimal() or not node):
                    found[int(node) if node else None, size] = int(number)
    return found
