"""The huge pages of this machine: pools per page size and NUMA node, and the hugetlbfs mounts through which they are used.

Why it exists: a switch, a VM or a DPDK application without huge pages fails late and with poor messages, and so does our own
request for huge memory; this module shows the cause. It only reads: it takes no page, resizes no pool and mounts nothing. Pages
that are free now may be taken before they are mapped, so no decision may rest on these numbers: only an allocation proves that
there are pages.

Source: the kernel's admin-guide/mm/hugetlbpage (sysfs), proc_pid_mountinfo(5), and what hugetlbfs shows of its own options.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_POOL = re.compile(r"hugepages-([0-9]+)kB")
_NODE = re.compile(r"node([0-9]+)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_DEFAULT_MODE = 0o755


@dataclass(frozen=True)
class HugepagePool:
    """Pages of one size, of one NUMA node or (`node` None) of the whole machine.

    `page_bytes`: size of a page. `total`, `free`: pages. `reserved`: free pages promised to mappings, known for the whole machine
    only (None for a node). `surplus`: pages above the configured number, by overcommit.
    """

    page_bytes: int
    node: int | None
    total: int
    free: int
    reserved: int | None
    surplus: int

    @property
    def available(self) -> int:
        """Pages that a new mapping can get: the free ones that are not promised to another mapping."""
        return max(0, self.free - (self.reserved or 0))


@dataclass(frozen=True)
class HugetlbMount:
    """A mount of hugetlbfs. `page_bytes` as the kernel shows it; `limit_bytes` and `least_bytes`: options size and min_size."""

    path: str
    page_bytes: int | None
    mode: int
    uid: int
    gid: int
    limit_bytes: int | None
    least_bytes: int | None
    writable: bool


@dataclass(frozen=True)
class HugePages:
    """The machine's pools by page size, those of each node, and the mounts. Empty on a kernel without them."""

    machine: tuple[HugepagePool, ...]
    nodes: tuple[HugepagePool, ...]
    mounts: tuple[HugetlbMount, ...]

    def list_pools(self) -> tuple[HugepagePool, ...]:
        """The pools per node, or of the whole machine where the kernel shows no nodes."""
        known = {pool.page_bytes for pool in self.nodes}
        return tuple(sorted((*self.nodes, *(pool for pool in self.machine if pool.page_bytes not in known)), key=_order))


def read_hugepages(sys: str = "/sys", mountinfo: str = "/proc/self/mountinfo") -> HugePages:
    """Read the pools and mounts of the machine. What cannot be read (no sysfs, no such kernel option) counts as absent."""
    return HugePages(read_machine_pools(sys), read_node_pools(sys), parse_mounts(_text(Path(mountinfo))))


def read_machine_pools(sys: str = "/sys") -> tuple[HugepagePool, ...]:
    """The pools of the whole machine, smallest page first."""
    return tuple(sorted(_pools(Path(sys, "kernel/mm/hugepages"), None), key=_order))


def read_node_pools(sys: str = "/sys") -> tuple[HugepagePool, ...]:
    """The pools of every NUMA node, smallest page first, then by node."""
    found = ((_NODE.fullmatch(path.name), path) for path in _entries(Path(sys, "devices/system/node")))
    pools = (pool for name, path in found if name for pool in _pools(path / "hugepages", int(name[1])))
    return tuple(sorted(pools, key=_order))


def parse_mounts(text: str) -> tuple[HugetlbMount, ...]:
    """The hugetlbfs mounts in the text of a mountinfo file, in its order; also those that another mount covers."""
    found = []
    for line in text.split("\n"):
        fields = line.split(" ")
        if "-" not in fields[6:]:
            continue
        after = fields.index("-", 6)
        if fields[after + 1] == "hugetlbfs":
            found.append(_mount(fields[4], fields[5], fields[after + 3] if len(fields) > after + 3 else ""))
    return tuple(found)


def format_size(count: int) -> str:
    """`2 MiB`, `1 GiB`: bytes in the largest unit that divides them."""
    for name, unit in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} B"


def read_socket_mem(text: str) -> list[int]:
    """Bytes for which other_config:dpdk-socket-mem (`1024,1024`, in MiB) asks on each NUMA node; 0 for what is no number."""
    parts = text.split(",")
    return [int(part) << 20 if part.isdecimal() and len(part) < 10 else 0 for part in parts]


def _order(pool: HugepagePool) -> tuple[int, int]:
    return pool.page_bytes, -1 if pool.node is None else pool.node


def _pools(directory: Path, node: int | None) -> Iterator[HugepagePool]:
    for path in _entries(directory):
        name = _POOL.fullmatch(path.name)
        total, free = _number(path / "nr_hugepages"), _number(path / "free_hugepages")
        if name and total is not None and free is not None:
            surplus = _number(path / "surplus_hugepages") or 0
            yield HugepagePool(int(name[1]) << 10, node, total, free, _number(path / "resv_hugepages"), surplus)


def _mount(point: str, flags: str, options: str) -> HugetlbMount:
    values = dict(option.partition("=")[::2] for option in options.split(","))
    writable = "ro" not in flags.split(",") and "ro" not in values
    return HugetlbMount(
        path=re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point),
        page_bytes=_size(values.get("pagesize", "")),
        mode=_parsed(values.get("mode", ""), 8, _DEFAULT_MODE),
        uid=_parsed(values.get("uid", ""), 10, 0),
        gid=_parsed(values.get("gid", ""), 10, 0),
        limit_bytes=_size(values.get("size", "")),
        least_bytes=_size(values.get("min_size", "")),
        writable=writable,
    )


def _size(text: str) -> int | None:
    found = re.fullmatch(r"([0-9]+)([KMG]?)", text)
    return int(found[1]) * _UNITS[found[2]] if found else None


def _parsed(text: str, base: int, default: int) -> int:
    try:
        return int(text, base)
    except ValueError:
        return default


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return ""
