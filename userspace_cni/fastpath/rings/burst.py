"""A burst: frames side by side in one buffer of the caller's, with their lengths.

A call per frame would cost more than the frame: so one call carries many, and copies between this buffer and the ring. The
pointers for C are made once, here. A burst belongs to one thread at a time; a function that gets one never keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from userspace_cni.fastpath._native import ffi

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CAPACITY = 32
STRIDE = 2048
LINE = 64  # bytes of a cache line


class Burst:
    """Room for `capacity` frames of at most `stride` bytes: frame `i` is `buffer[i * stride : i * stride + lengths[i]]`.

    `buffer` may be the caller's own, writable and at least `capacity * stride` bytes; it is held for as long as the burst lives.
    Frames that begin on a multiple of 64 bytes are copied faster.
    """

    def __init__(self, capacity: int = CAPACITY, stride: int = STRIDE, buffer: WriteableBuffer | None = None) -> None:
        if not (0 < capacity < 1 << 31 and 0 < stride < 1 << 32):
            raise ValueError(f"a burst of {capacity} frames of {stride} bytes")
        size = capacity * stride
        self.capacity = capacity
        self.stride = stride
        self.pointer, self.buffer = _own(size) if buffer is None else _lent(buffer, size)
        self.lengths_pointer: Any = ffi.new("uint32_t[]", capacity)
        self.lengths = memoryview(ffi.buffer(self.lengths_pointer)).cast("B").cast("I")

    def frame(self, index: int) -> memoryview:
        """Frame `index` in place; valid until the burst is filled again."""
        if not 0 <= index < self.capacity:
            raise IndexError(f"frame {index} of a burst of {self.capacity}")
        start = index * self.stride
        return self.buffer[start : start + self.lengths[index]]

    def fill(self, frames: Iterable[bytes]) -> int:
        """Copy `frames` in from the start, at most `capacity`; returns how many. ValueError for one longer than `stride`."""
        count = 0
        for count, frame in enumerate(islice(frames, self.capacity), 1):
            length = len(frame)
            if length > self.stride:
                raise ValueError(f"frame {count - 1} has {length} bytes, the burst's stride is {self.stride}")
            start = (count - 1) * self.stride
            self.buffer[start : start + length] = frame
            self.lengths[count - 1] = length
        return count

    def frames(self, count: int) -> list[bytes]:
        """Copies of the first `count` frames."""
        if not 0 <= count <= self.capacity:
            raise ValueError(f"{count} frames of a burst of {self.capacity}")
        buffer, stride = self.buffer, self.stride
        starts = range(0, count * stride, stride)
        return [buffer[start : start + length].tobytes() for start, length in zip(starts, self.lengths[:count], strict=True)]


def _own(size: int) -> tuple[Any, memoryview]:
    """Memory that begins on a cache line, for C and for Python. The view keeps it alive."""
    memory: Any = ffi.new("uint8_t[]", size + LINE)
    skip = -int(ffi.cast("uintptr_t", memory)) % LINE
    return memory + skip, memoryview(ffi.buffer(memory)).cast("B")[skip : skip + size]


def _lent(buffer: WriteableBuffer, size: int) -> tuple[Any, memoryview]:
    """The caller's memory, for C and for Python. Raises ValueError when it is too small."""
    view = memoryview(buffer).cast("B")
    if view.nbytes < size:
        raise ValueError(f"a buffer of {view.nbytes} bytes has no room for {size}")
    return ffi.from_buffer("uint8_t[]", buffer, require_writable=True), view[:size]
