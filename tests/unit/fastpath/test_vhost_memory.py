"""Memory for the other side is sealed, fully allocated, and freed at the end."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess
import sys

import pytest

from tests.lab.node.belongings import nothing_left
from userspace_cni.fastpath._native import ffi
from userspace_cni.fastpath.fastpath_errors import MemoryShort
from userspace_cni.fastpath.memory.memfd import Memory


def test_it_cannot_shrink_or_grow() -> None:
    """The file is sealed, seals included: no process can take pages away from under the switch."""
    with Memory(10_000) as memory:
        assert memory.size == 12288
        seals = fcntl.fcntl(memory.fd, fcntl.F_GET_SEALS)
        assert seals == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        for size in (0, 2 * memory.size):
            with pytest.raises(PermissionError):
                os.ftruncate(memory.fd, size)


@pytest.mark.parametrize("size", [4096, 1 << 20, (16 << 20) + (1 << 16) + 4096, 32 << 20])
def test_its_pages_are_there(size: int) -> None:
    """All blocks are allocated before the first access, and hold zeros."""
    with Memory(size) as memory:
        assert os.fstat(memory.fd).st_blocks * 512 == size
        assert not any(os.pread(memory.fd, size + 1, 0))
        assert len(os.pread(memory.fd, size + 1, 0)) == size


def test_it_is_what_the_file_is() -> None:
    """A byte written at an address is read from the file at the offset."""
    with Memory(8192) as memory:
        ffi.memmove(memory.at(4097), b"frame", 5)
        assert os.pread(memory.fd, 5, 4097) == b"frame"
        assert int(ffi.cast("uintptr_t", memory.at(4097))) == memory.address + 4097


def test_it_is_not_inherited() -> None:
    """Programs that are started meanwhile do not get the descriptor."""
    with Memory(4096) as memory:
        assert not os.get_inheritable(memory.fd)


def test_it_is_given_back() -> None:
    """Mapping and descriptor are gone after close, which may be called again."""
    with nothing_left():
        memory = Memory(1 << 20)
        memory.close()
        memory.close()


@pytest.mark.parametrize("page", [3 << 20, 1 << 40, 4096])
def test_pages_of_a_missing_size(page: int) -> None:
    """`fallback` names a size that the kernel does not have, and usual pages are used."""
    with nothing_left(), Memory(10_000, page) as memory:
        assert memory.page_bytes == 4096
        assert memory.size == 12288
        assert "no pages of this size" in memory.fallback


def test_more_hugepages_than_there_are() -> None:
    """`fallback` names an empty pool and where to look."""
    with nothing_left(), Memory(10_000, 1 << 30) as memory:
        assert memory.page_bytes == 4096
        assert "hugepages-1048576kB" in memory.fallback


def test_too_much() -> None:
    """Memory that the node does not have is an error before any is taken, and leaves nothing behind."""
    with nothing_left(), pytest.raises(MemoryShort, match="shared memory"):
        Memory(1 << 50)


def test_no_descriptors_left() -> None:
    """Without a descriptor for it the error names the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/", os.O_RDONLY)
    os.close(lowest)
    with nothing_left():
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            with pytest.raises(MemoryShort, match="ulimit -n") as caught:
                Memory(4096)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EMFILE


def test_without_the_right_to_lock_memory() -> None:
    """A process of the user nobody that may lock no memory gets its memory."""
    script = (
        "import resource, os; from userspace_cni.fastpath.memory.memfd import Memory; "
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0)); os.setgroups([]); os.setgid(65534); os.setuid(65534); "
        "print(Memory(1 << 20).size)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "1048576\n"
