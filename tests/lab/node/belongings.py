"""Counts what this process holds, before and after a block, to show that nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OF_THE_PROCESS = ("/memfd:fastpath-nothing", "/dev/zero", "/memfd:seg_")
"""Files that our library keeps open from its first use to the end of the process, and
DPDK's huge pages, which OVS takes and frees with its mempools.
"""


def descriptors(pid: int | str = "self") -> list[str]:
    """The target of each open descriptor of a process, sorted, without those
    that the process itself opens and closes at any time.
    """
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except FileNotFoundError:
            continue  # the listing's own descriptor
    return sorted(name for name in found if not name.startswith(_OF_THE_PROCESS))


def shared_mappings() -> list[str]:
    """Lines of the memory map that are memfds of ours."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:userspace-cni" in line]


@contextmanager
def nothing_left() -> Iterator[None]:
    """AssertionError when the block leaves descriptors or shared memory behind."""
    before = len(descriptors()), len(shared_mappings())
    yield
    after = len(descriptors()), len(shared_mappings())
    # fewer: the interpreter has meanwhile closed those of an earlier test
    assert all(now <= then for now, then in zip(after, before, strict=True)), (
        f"descriptors and mappings {before} became {after}: {descriptors()}"
    )


class Holdings:
    """What this process and process `pid` hold: descriptors, shared memory, resident memory in KiB, hugepages in KiB."""

    def __init__(self, pid: int) -> None:
        self.ours = len(descriptors()), len(shared_mappings())
        self.theirs = len(descriptors(pid)), _mapped(pid)
        self.hugepages = int(Path(f"/proc/{pid}/smaps_rollup").read_text().split("Private_Hugetlb:")[1].split()[0])
        self.resident = resident("self"), resident(str(pid))


def _mapped(pid: int) -> int:
    """Memory of ours that another process has mapped: lines of its memory map."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:userspace-cni")


def resident(pid: int | str) -> int:
    """The resident memory of the process in KiB."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])
