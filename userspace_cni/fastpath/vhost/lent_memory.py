"""Checks and maps the memory that a front-end lends to a back-end, and checks the descriptors that come with it.

A front-end is a virtual machine or a container, and may send anything. Each region must be part of a file that is in memory or on
a local disk, must be within the file, and must not overlap another; each descriptor for notifications must be an eventfd. The
mappings survive that the file is truncated later (guard.c). No page is touched before a frame is in it, because a page that this
process touches first is charged to it. Must not know of messages beyond their regions, nor close descriptors.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any, Final

from userspace_cni.fastpath._native import ffi, lib
from userspace_cni.fastpath.fastpath_errors import BreachReason, FastPathError, MemoryShort, PeerError
from userspace_cni.fastpath.vhost.vhost_messages import Region

_EVENTFD: Final = "anon_inode:[eventfd]"
_REFUSALS: Final = {
    errno.EOVERFLOW: (BreachReason.BAD_REGION, f"empty, longer than {lib.FP_GUARD_MAX >> 30} GiB or beyond the end of addresses"),
    errno.EEXIST: (BreachReason.BAD_REGION, "overlaps another"),
    errno.E2BIG: (BreachReason.BAD_REGION, f"more than {lib.FP_REGIONS}"),
    errno.ENODATA: (BreachReason.BAD_REGION, "the file is shorter"),
    errno.EMEDIUMTYPE: (BreachReason.BAD_FD, "no file in memory or on a local disk"),
    errno.EACCES: (BreachReason.BAD_FD, "the file is not open for reading and writing"),
    errno.EPERM: (BreachReason.BAD_FD, "the file is sealed against writing"),
    errno.ENODEV: (BreachReason.BAD_FD, "the file cannot be mapped"),
    errno.EINVAL: (BreachReason.BAD_REGION, "its offset is no multiple of the file's pages"),
}


class LentMemory:
    """The regions of one SET_MEM_TABLE, mapped until `release`. `fds` stay the caller's. Raises PeerError, MemoryShort."""

    def __init__(self, regions: Sequence[Region], fds: Sequence[int], step: str) -> None:
        self.pointer: Any = lib.fp_memory_new()
        if not self.pointer:
            raise MemoryShort(step, "no memory for a table of regions", "memory of this process")
        try:
            for number, (region, fd) in enumerate(zip(regions, fds, strict=True)):
                self._add(region, fd, f"{step}, region {number}")
        except BaseException:
            self.release()
            raise

    @property
    def gone(self) -> bool:
        """Whether the file of any region was truncated."""
        return bool(lib.fp_memory_gone(self.pointer))

    def release(self) -> None:
        """Unmap it; no queue may use it any more. May be called again."""
        pointer, self.pointer = self.pointer, ffi.NULL
        lib.fp_memory_free(pointer)

    def _add(self, region: Region, fd: int, step: str) -> None:
        wanted: Any = ffi.new("struct fp_region *")
        wanted.guest, wanted.user, wanted.size = region.guest, region.user, region.size
        result = lib.fp_memory_add(self.pointer, wanted, fd, region.offset)
        if result:
            raise _refusal(-result, region, step)


def require_eventfd(fd: int, step: str) -> None:
    """Make the eventfd `fd` non-blocking. PeerError for anything else: a write to a pipe, a socket or a file could block."""
    try:
        kind = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - no path of ours
    except OSError as error:
        kind = os.strerror(error.errno or 0)
    if kind != _EVENTFD:
        raise PeerError(BreachReason.BAD_FD, step, f"{kind} instead of an eventfd")
    os.set_blocking(fd, False)


def _refusal(number: int, region: Region, step: str) -> FastPathError:
    if number in (errno.ENFILE, errno.ENOMEM, errno.EBUSY):
        return MemoryShort(step, os.strerror(number), "limits of this process: mappings (vm.max_map_count), address space")
    reason, what = _REFUSALS.get(number, (BreachReason.BAD_REGION, os.strerror(number)))
    where = f"{region.size:#x} bytes at {region.guest:#x}, user {region.user:#x}, offset {region.offset:#x}"
    return PeerError(reason, step, f"{what}: {where}", "the front-end's memory backend, which must be shared (share=on)")
