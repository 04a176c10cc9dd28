"""The huge pages of machines of every kind are read as the kernel shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from userspace_cni.fastpath.memory.hugepages import (
    HugepagePool,
    HugePages,
    HugetlbMount,
    format_size,
    parse_mounts,
    read_hugepages,
    read_machine_pools,
    read_node_pools,
)

MIB2, GIB = 2 << 20, 1 << 30
LINE = "63 43 0:39 / /dev/huge\\040pages rw,relatime shared:5 - hugetlbfs none rw,uid=5,gid=7,mode=770,pagesize=2M,size=67108864"


def pool(directory: Path, size_kb: int, **numbers: int) -> None:
    """The files of one pool below the directory, as sysfs has them."""
    place = directory / f"hugepages-{size_kb}kB"
    place.mkdir(parents=True)
    for name, value in numbers.items():
        (place / f"{name}_hugepages").write_text(f"{value}\n")


@pytest.fixture
def sysfs(tmp_path: Path) -> str:
    """Two nodes, of which the second has pages of both sizes."""
    pool(tmp_path / "kernel/mm/hugepages", 2048, nr=96, free=64, resv=4, surplus=1)
    pool(tmp_path / "kernel/mm/hugepages", 1048576, nr=2, free=0, resv=0, surplus=0)
    nodes = tmp_path / "devices/system/node"
    pool(nodes / "node0/hugepages", 2048, nr=32, free=0, surplus=0)
    pool(nodes / "node10/hugepages", 2048, nr=64, free=64, surplus=1)
    pool(nodes / "node10/hugepages", 1048576, nr=2, free=0, surplus=0)
    (nodes / "online").write_text("0,10\n")
    return str(tmp_path)


def test_pools_of_the_machine(sysfs: str) -> None:
    """Total, free, reserved and surplus pages of each size, smallest page first."""
    assert read_machine_pools(sysfs) == (HugepagePool(MIB2, None, 96, 64, 4, 1), HugepagePool(GIB, None, 2, 0, 0, 0))


def test_pools_of_nodes(sysfs: str) -> None:
    """Each NUMA node has its own pools; promised pages are known for the machine only."""
    assert read_node_pools(sysfs) == (
        HugepagePool(MIB2, 0, 32, 0, None, 0),
        HugepagePool(MIB2, 10, 64, 64, None, 1),
        HugepagePool(GIB, 10, 2, 0, None, 0),
    )


def test_promised_pages_are_not_available(sysfs: str) -> None:
    """A page that is promised to a mapping is free, but not available to another."""
    assert read_machine_pools(sysfs)[0].available == 60


def test_finest_pools() -> None:
    """Where the kernel shows no nodes for a size, the machine's pool is used."""
    machine, node = (
        (HugepagePool(MIB2, None, 3, 3, 0, 0), HugepagePool(GIB, None, 1, 1, 0, 0)),
        (HugepagePool(MIB2, 0, 3, 3, None, 0),),
    )
    assert HugePages(machine, node, ()).list_pools() == (node[0], machine[1])


def test_kernel_without_huge_pages(tmp_path: Path) -> None:
    """No sysfs, no mountinfo: nothing there, and no error."""
    found = read_hugepages(str(tmp_path / "sys"), str(tmp_path / "mountinfo"))
    assert (found.machine, found.nodes, found.mounts, found.list_pools()) == ((), (), (), ())


def test_half_written_pools_are_left_out(tmp_path: Path) -> None:
    """Files that are missing, empty or no numbers make no pool."""
    place = tmp_path / "kernel/mm/hugepages"
    pool(place, 2048, nr=1)
    pool(place, 64, nr=1, free=1)
    (place / "hugepages-64kB" / "free_hugepages").write_text("many\n")
    (place / "other").mkdir()
    assert read_machine_pools(str(tmp_path)) == ()


def test_mount_with_options() -> None:
    """Path, page size, mode, owner and limit of a hugetlbfs mount."""
    assert parse_mounts(LINE) == (HugetlbMount("/dev/huge pages", MIB2, 0o770, 5, 7, 67108864, None, True),)


@pytest.mark.parametrize(
    ("line", "page", "writable"),
    [
        ("64 63 0:40 / /h rw,relatime - hugetlbfs none rw,pagesize=1024M", GIB, True),
        ("64 63 0:40 / /h ro,relatime master:1 shared:2 - hugetlbfs none rw,pagesize=64K,min_size=0", 64 << 10, False),
        ("64 63 0:40 / /h rw - hugetlbfs none ro", None, False),
        ("64 63 0:40 /a\x0b\u2028\r /h rw - hugetlbfs none ro", None, False),
    ],
)
def test_mounts_of_every_kind(line: str, page: int | None, writable: bool) -> None:
    """Page sizes in any unit, optional fields in any number, what is read-only by mount or file system, odd names."""
    (mount,) = parse_mounts(line)
    assert (mount.path, mount.page_bytes, mount.mode, mount.uid, mount.writable) == ("/h", page, 0o755, 0, writable)


def test_other_lines_are_no_mounts() -> None:
    """Other file systems, cut lines and an empty text are passed over, even with the word in a path."""
    text = "1 2 0:3 / / rw - ext4 /dev/sda rw\n\n64 63 0:40 / /hugetlbfs rw\n5 4 0:3 / /- rw - tmpfs hugetlbfs rw"
    assert parse_mounts(text) == ()


def test_this_machine() -> None:
    """The pools of this machine are plausible: none has more free pages than pages."""
    found = read_hugepages()
    assert all(0 <= pool.free <= pool.total for pool in found.list_pools())


@pytest.mark.parametrize(("count", "text"), [(4096, "4 KiB"), (MIB2, "2 MiB"), (GIB, "1 GiB"), (1000, "1000 B"), (0, "0 B")])
def test_sizes_in_words(count: int, text: str) -> None:
    """Bytes are written in the largest unit that divides them."""
    assert format_size(count) == text
