"""Queue pairs without a connection: driver rings of this process, and a device's side of them in Python.

With `Wire(2)` the frames of each of two pairs arrive at the other; with `Wire(1)` those of one pair come back. Frames move when
`step` is called, or all the time between `run` and the end of its `with`. Through `Side` a test can corrupt what the device
writes.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from userspace_cni.fastpath._native import ffi, lib
from userspace_cni.fastpath.fastpath_errors import FastPathError
from userspace_cni.fastpath.memory.owned import own
from userspace_cni.fastpath.rings.queue_pair import QueuePair
from userspace_cni.linux.closing import Closing

HEADER = 12
RECEIVED = struct.pack("<10xH", 1)


class Side:
    """The device's half of one ring; indices are not reduced modulo its size."""

    def __init__(self, queue: Any, memory: memoryview, size: int) -> None:
        rings: Any = ffi.new("uint64_t[3]")
        lib.fp_driver_rings(queue, rings)
        base = int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))
        self.memory = memory
        self.base = base
        self.size = size
        self.desc, self.avail, self.used = (int(ring) - base for ring in rings)
        self.index = 0
        self._avail_index: Any = ffi.cast("uint16_t *", rings[1] + 2)  # read and written in one access, unlike with `struct`
        self._used_index: Any = ffi.cast("uint16_t *", rings[2] + 2)

    def available(self) -> bool:
        return bool(self._avail_index[0] != self.index)

    def descriptor(self) -> tuple[int, int]:
        """Where the next buffer is in `memory`, and its length."""
        address, length = struct.unpack_from("<QI", self.memory, self.desc + 16 * (self.index % self.size))
        return address - self.base, length

    def use(self, length: int, number: int | None = None) -> None:
        slot = self.index % self.size
        struct.pack_into("<II", self.memory, self.used + 4 + 8 * slot, slot if number is None else number, length)
        self.index = (self.index + 1) & 0xFFFF
        self.publish(self.index)

    def publish(self, index: int) -> None:
        """Write used.idx."""
        self._used_index[0] = index

    def wants_interrupt(self) -> bool:
        """Whether the driver sleeps, or is about to."""
        return not self.memory[self.avail]


class Wire(Closing):
    """Owner of the pairs, like a FrontEnd; it cannot hang up, because there is no connection."""

    control_fd = -1

    def __init__(self, count: int = 2, size: int = 64, room: int = 2048) -> None:
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.problem: FastPathError | None = None
        self.pairs: list[QueuePair] = []
        self.tx: list[Side] = []
        self.rx: list[Side] = []
        self._calls: list[int] = []
        self._queues: list[Any] = []
        for index in range(count):
            self._calls.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            rx, far_rx = self._queue(size, room, 0)
            tx, far_tx = self._queue(size, room, 1)
            self.rx.append(far_rx)
            self.tx.append(far_tx)
            self.pairs.append(QueuePair(index, tx, rx, self))

    def why_failed(self) -> FastPathError | None:
        """The failure that a test has set."""
        return self.problem

    def step(self) -> int:
        """Carry the frames that are there, both ways; how many."""
        return sum(self._carry(side, self.rx[-1 - index], self._calls[-1 - index]) for index, side in enumerate(self.tx))

    @contextmanager
    def run(self) -> Iterator[None]:
        ending = threading.Event()

        def carry() -> None:
            while not ending.is_set():
                if not self.step():
                    os.sched_yield()

        thread = threading.Thread(target=carry, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()

    def close(self) -> None:
        """Wake the waiting threads, close the queues, then what they used, as an owner does."""
        if self.wake_fd < 0:
            return
        os.eventfd_write(self.wake_fd, 1)
        for queue in self._queues:
            lib.fp_close(queue)
        for fd in (*self._calls, self.wake_fd):
            os.close(fd)
        self.wake_fd = -1

    def stop(self) -> None:
        for queue in self._queues:
            lib.fp_stop(queue)

    def _queue(self, size: int, room: int, transmit: int) -> tuple[Any, Side]:
        memory = memoryview(mmap.mmap(-1, lib.fp_driver_bytes(size, room)))
        queue = own(lib.fp_driver_new(ffi.from_buffer(memory), size, room, transmit), lib.fp_driver_free)
        lib.fp_driver_attach(queue, 0, 1, 0, -1, -1 if transmit else self._calls[-1])
        lib.fp_start(queue)
        self._queues.append(queue)
        return queue, Side(queue, memory, size)

    def _carry(self, source: Side, sink: Side, call: int) -> int:
        count = 0
        while source.available() and sink.available():
            start, length = source.descriptor()
            to, _ = sink.descriptor()
            frame = bytes(source.memory[start + HEADER : start + length])
            source.use(0)
            sink.memory[to : to + length] = RECEIVED + frame
            sink.use(length)
            count += 1
        if count and sink.wants_interrupt():
            os.eventfd_write(call, 1)
        return count
