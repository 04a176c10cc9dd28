"""A burst: frames side by side in one buffer of the caller's, with their lengths.

A call per frame would cost more than the frame: so one call carries many, and copies between this buffer and the ring. The
pointers for C are made once, here. Also what Python does for each frame is done in calls for all of them: a step of the
interpreter for each would cost as much as the copies. A burst belongs to one thread at a time; a function that gets one never
keeps it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.fastpath._frames import cut
from userspace_cni.fastpath._native import ffi, lib

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CAPACITY = 32
STRIDE = 2048
LINE = 64  # bytes of a cache line
_KEPT_MAX: Final = 64
"""As many `bytes` of long frames as a burst keeps. Those to which there is no other reference are used again."""
_ALIKE_MAX: Final = 128
"""As many as a burst keeps: one for each length and number of frames."""


class Burst:
    """Room for `capacity` frames of at most `stride` bytes: frame `i` is `buffer[i * stride : i * stride + lengths[i]]`.

    `buffer` may be the caller's own, writable and at least `capacity * stride` bytes; it is held for as long as the burst lives.
    Frames that begin on a multiple of 64 bytes are copied faster.
    """

    def __init__(self, capacity: int = CAPACITY, stride: int = STRIDE, buffer: WriteableBuffer | None = None) -> None:
        if not (0 < capacity < 1 << 31 and 0 < stride < 1 << 32):
            raise ValueError(f"a burst of {capacity} frames of {stride} bytes")
        self.size = size = capacity * stride
        self.capacity = capacity
        self.stride = stride
        self._memory, self.pointer, self.buffer = _own(size) if buffer is None else _lent(buffer, size)
        self.lengths_pointer: Any = ffi.new("uint32_t[]", capacity)
        self._lengths = ffi.buffer(self.lengths_pointer)
        self.lengths = memoryview(self._lengths).cast("B").cast("I")
        self.address = int(ffi.cast("uintptr_t", self.pointer))
        self.lengths_address = int(ffi.cast("uintptr_t", self.lengths_pointer))
        self.kept: list[bytes | None] = [None] * min(capacity, _KEPT_MAX)
        self._alike: dict[bytes, list[slice]] = {}

    def frame(self, index: int) -> memoryview:
        """Frame `index` in place; valid until the burst is filled again."""
        if not 0 <= index < self.capacity:
            raise IndexError(f"frame {index} of a burst of {self.capacity}")
        start = index * self.stride
        return self.buffer[start : start + self.lengths[index]]

    def views(self, count: int) -> list[memoryview]:
        """The first `count` frames in place, without a copy: `for frame in burst.views(pair.receive(burst))`.

        What is written to one is what `send` sends. They are valid until the burst is filled again, and show the new bytes then.
        One that is kept keeps the buffer in memory, also when burst and port are gone.
        """
        buffer = self.buffer
        places = self._alike.get(self._lengths[: 4 * count]) if 0 <= count <= self.capacity else None
        if places := places or self._learn(count):
            return [*map(buffer.__getitem__, places)]
        starts = range(0, count * self.stride, self.stride)
        return [buffer[start : start + length] for start, length in zip(starts, self.lengths[:count].tolist(), strict=True)]

    def frames(self, count: int) -> list[bytes]:
        """Copies of the first `count` frames."""
        self._require(count)
        return cut(self.address, self.stride, self.lengths_address, count, self.kept)

    def fill(self, frames: Iterable[bytes | bytearray | memoryview]) -> int:
        """Copy `frames` in from the start, at most `capacity`; returns how many. ValueError for one longer than `stride`.

        They may be views of this burst. It is unchanged when an exception is raised.
        """
        chosen = list(islice(frames, self.capacity))
        if chosen:
            self.put(b"".join(chosen), list(map(len, chosen)))
        return len(chosen)

    def put(self, joined: bytes, lengths: list[int]) -> None:
        """Copy frames in that lie one behind the other in `joined`; `lengths` are the bytes of each, `capacity` of them at most.

        ValueError for one longer than `stride`, and when the lengths are not those of `joined`.
        """
        count = len(lengths)
        self._require(count)
        if sum(lengths) != len(joined):  # of a view, len() is not its bytes
            raise ValueError(f"frames of {sum(lengths)} bytes in {len(joined)}: they are bytes, or views whose items are bytes")
        if count and (longest := max(lengths)) > self.stride:
            raise ValueError(f"frame {lengths.index(longest)} has {longest} bytes, the burst's stride is {self.stride}")
        self.lengths[:count] = array("I", lengths)
        lib.fp_spread(self.pointer, self.stride, joined, self.lengths_pointer, count)

    def _require(self, count: int) -> None:
        if not 0 <= count <= self.capacity:
            raise ValueError(f"{count} frames of a burst of {self.capacity}")

    def _learn(self, count: int) -> list[slice] | None:
        """Where `count` frames are that have all the same length, as in most bursts; None when they have not."""
        self._require(count)
        lengths, stride = self.lengths[:count].tolist(), self.stride
        if not lengths or lengths.count(length := lengths[0]) != count or length > stride:
            return None
        if len(self._alike) >= _ALIKE_MAX:
            self._alike.clear()
        places = [slice(start, start + length) for start in range(0, count * stride, stride)]
        self._alike[self._lengths[: 4 * count]] = places
        return places


def _own(size: int) -> tuple[Any, Any, memoryview]:
    """Memory, and its part that begins on a cache line, for C and for Python. The view keeps it alive until it is released."""
    memory: Any = ffi.new("uint8_t[]", size + LINE)
    skip = -int(ffi.cast("uintptr_t", memory)) % LINE
    return memory, memory + skip, memoryview(ffi.buffer(memory)).cast("B")[skip : skip + size]


def _lent(buffer: WriteableBuffer, size: int) -> tuple[Any, Any, memoryview]:
    """What holds the caller's memory, which is the same for C, and a view. Raises ValueError when it is too small."""
    view = memoryview(buffer).cast("B")
    if view.nbytes < size:
        raise ValueError(f"a buffer of {view.nbytes} bytes has no room for {size}")
    held: Any = ffi.from_buffer("uint8_t[]", buffer, require_writable=True)
    return held, held, view[:size]
