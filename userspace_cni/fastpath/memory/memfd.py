"""Memory that is lent to the other side of a vhost-user socket: a sealed memfd, all of whose pages are allocated first.

The switch maps this memory and trusts it. A file that shrinks kills the switch with SIGBUS: so the file is sealed. A page that
the switch touches first is charged to the switch, and a shortage then may kill it: so all pages are allocated and mapped here,
where a shortage is an error at once.

Must not be shared before the constructor has returned, and must not be unmapped before every queue in it is closed.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import sys
from pathlib import Path
from typing import Any, Final

from userspace_cni.fastpath._native import ffi
from userspace_cni.fastpath.fastpath_errors import MemoryShort
from userspace_cni.linux.closing import Closing

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_HUGE_SHIFT: Final = 26
"""The bit of memfd_create(2)'s flags at which the logarithm of a page's size begins."""
_NAME: Final = "userspace-cni"
_ZEROS: Final = bytes(1 << 16)
"""Is never written to, so that it takes no memory."""
_WRITTEN: Final = 16 << 20
"""Most bytes of one call."""
_LARGE: Final = 64 << 20
"""Above this size the free memory is checked first: the kernel would hand out all it has, and then kill a process."""


class Memory(Closing):
    """`size` bytes of zeros at `address`, in pages of `page_bytes`; closed at the end of a `with`.

    `hugepage_bytes`: size of the huge pages to use, as 2 << 20. When that fails, pages of the usual size are used, and
    `fallback` says why; it is "" otherwise. Raises MemoryShort.
    """

    def __init__(self, size: int, hugepage_bytes: int | None = None) -> None:
        self.fallback = ""
        self.page_bytes = mmap.PAGESIZE
        self.size = 0
        self._map: mmap.mmap | None = None
        self.fd = -1
        if hugepage_bytes:
            try:
                self._allocate(size, hugepage_bytes)
            except OSError as error:
                self._free()
                self.fallback = f"no memory in pages of {hugepage_bytes >> 10} KiB: {_huge_reason(error, hugepage_bytes)}"
        if self._map is None:
            try:
                self._allocate(size, 0)
            except OSError as error:
                self._free()
                raise MemoryShort(f"making {size} bytes of shared memory", _strerror(error), _advice(error)) from error
        assert self._map is not None  # noqa: S101 - for mypy
        self._pointer: Any = ffi.from_buffer("uint8_t[]", self._map)

    @property
    def address(self) -> int:
        return int(ffi.cast("uintptr_t", self._pointer))

    def at(self, offset: int) -> Any:
        """The byte at `offset`, as `void *`."""
        return ffi.cast("void *", self._pointer + offset)

    def close(self) -> None:
        """Unmap it. The pages are freed when the other side has unmapped them too. May be called again."""
        if self._pointer is not None:
            ffi.release(self._pointer)
            self._pointer = None
        self._free()

    def _allocate(self, size: int, huge: int) -> None:
        self.page_bytes = huge or mmap.PAGESIZE
        self.size = -(-size // self.page_bytes) * self.page_bytes
        if not huge and self.size > _LARGE and self.size > _available():
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        self.fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | _huge_flags(huge))
        if huge:
            os.posix_fallocate(self.fd, 0, self.size)
        else:
            _write_zeros(self.fd, self.size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        self._map = mmap.mmap(self.fd, self.size, mmap.MAP_SHARED | mmap.MAP_POPULATE)

    def _free(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _write_zeros(fd: int, size: int) -> None:
    left = size
    while left > 0:
        whole, rest = divmod(min(left, _WRITTEN), len(_ZEROS))
        left -= os.writev(fd, [*[_ZEROS] * whole, _ZEROS[:rest]])


def _available() -> int:
    """Bytes that are available without swapping, as the kernel estimates."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return sys.maxsize


def _huge_flags(size: int) -> int:
    if not size:
        return 0
    if size & (size - 1) or size <= mmap.PAGESIZE:
        raise OSError(errno.EINVAL, "not a page size")
    return os.MFD_HUGETLB | (size.bit_length() - 1) << _HUGE_SHIFT


def _huge_reason(error: OSError, size: int) -> str:
    pool = f"/sys/kernel/mm/hugepages/hugepages-{size >> 10}kB"
    if error.errno in (errno.ENOSPC, errno.ENOMEM):
        return f"not enough pages are free; {pool}/free_hugepages"
    if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENODEV, errno.ENOSYS):
        return f"the kernel has no pages of this size; {pool}"
    return _strerror(error)


def _strerror(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _advice(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "limit of open files (ulimit -n)"
    return "memory limit of the container or service, and free memory of the node"
