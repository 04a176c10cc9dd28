"""One virtqueue of a back-end between the front-end's messages and the data path: configured, started, enabled, stopped.

A ring is started by its kick, once size and addresses are known, and stopped by GET_VRING_BASE; it carries frames while it is
started and enabled. Only the thread that applies messages calls these functions. Other threads may send and receive meanwhile:
the queue is stopped before anything in it is changed, which keeps their bursts out.
"""

from __future__ import annotations

import errno
import os
from typing import Any, Final

from userspace_cni.fastpath._native import ffi, lib
from userspace_cni.fastpath.fastpath_errors import BreachReason, FastPathError, MemoryShort, PeerError, RingFault
from userspace_cni.fastpath.memory.owned import own
from userspace_cni.fastpath.rings.queue_pair import REASONS
from userspace_cni.fastpath.vhost.lent_memory import LentMemory
from userspace_cni.fastpath.vhost.vhost_messages import RING_SIZE_MAX, Feature, VringAddress

_REFUSALS: Final = {
    errno.EINVAL: (BreachReason.BAD_RING, "invalid size or base"),
    errno.EFAULT: (BreachReason.BAD_RING, "not wholly inside one region"),
    errno.EDOM: (BreachReason.BAD_RING, "not aligned"),
    errno.ESTALE: (BreachReason.BAD_RING, "an old base, whose descriptor was used: the guest has to reset its card"),
    errno.EBADMSG: (BreachReason.MEMORY_GONE, ""),
}


class Vring:
    """Ring `index`: even ones carry frames to the guest, odd ones from it. `alarm`: an eventfd of ours, written on a fault.

    `headers`: whether callers give and get frames with their headers.
    """

    def __init__(self, index: int, alarm: int, *, headers: bool = False) -> None:
        queue: Any = lib.fp_device_new(int(index % 2 == 0), alarm)
        if not queue:
            raise MemoryShort(f"vring {index}", "no memory or descriptors for a queue", "limit of open files (ulimit -n)")
        self.index = index
        self.queue: Any = own(queue, lib.fp_device_free)
        queue.headers = headers
        self.started = False
        self.running = False
        self._enabled = False
        self._attached = False
        self._size = 0
        self._base = 0
        self._address: VringAddress | None = None
        self._fds = {"kick": -1, "call": -1, "err": -1}

    def set_size(self, size: int, features: Feature, step: str) -> None:
        """Set the number of descriptors; only a split ring needs a power of two."""
        self._require_stopped(step)
        packed = Feature.RING_PACKED in features
        if not 0 < size <= RING_SIZE_MAX or (size & (size - 1) and not packed):
            which = "be at most" if packed else "be a power of two up to"
            raise PeerError(BreachReason.BAD_VALUE, step, f"ring of {size}, which must {which} {RING_SIZE_MAX}")
        self._size = size

    def set_address(self, address: VringAddress, step: str) -> None:
        """Set where the three parts are; they are mapped when the ring is started."""
        self._require_stopped(step)
        if address.flags:
            raise PeerError(BreachReason.BAD_VALUE, step, f"flags {address.flags:#x}: logging was not offered")
        self._address = address

    def set_base(self, base: int, features: Feature, step: str) -> None:
        """Set where the ring goes on: the index of the first available buffer, or the two places of a packed ring."""
        self._require_stopped(step)
        if base >= 1 << 16 and Feature.RING_PACKED not in features:
            raise PeerError(BreachReason.BAD_VALUE, step, f"base {base}")
        self._base = base

    def set_fd(self, kind: str, fd: int, memory: LentMemory | None, features: Feature) -> None:
        """Take over the eventfd for "call" or "err", -1 for none; a started ring goes on with it."""
        self._put(kind, fd)
        if self.started and kind == "call":
            self.place(memory, features, "SET_VRING_CALL")

    def start(self, kick: int, memory: LentMemory | None, features: Feature) -> None:
        """Take over the eventfd `kick`, -1 for none, and start the ring; a started ring goes on with the new eventfd."""
        if self.started:
            self._pause()
        else:
            missing = [
                name
                for name, there in {
                    "SET_MEM_TABLE": memory is not None,
                    "SET_VRING_NUM": self._size > 0,
                    "SET_VRING_ADDR": self._address is not None,
                }.items()
                if not there
            ]
            if missing:
                if kick >= 0:
                    os.close(kick)
                raise PeerError(BreachReason.BAD_ORDER, "SET_VRING_KICK", f"vring {self.index} had no {', '.join(missing)}")
        self._put("kick", kick)
        self.started = True
        self.place(memory, features, "SET_VRING_KICK")

    def place(self, memory: LentMemory | None, features: Feature, step: str) -> None:
        """Map a started ring in `memory`, which may be new, as `features` say; the ring goes on where it was."""
        if memory is None or self._address is None:
            raise PeerError(BreachReason.BAD_ORDER, step, f"vring {self.index} without memory")
        self._pause()
        if fault := self.why_broken():  # a burst met a fault before this message came
            raise fault
        ring: Any = ffi.new("struct fp_ring *")
        ring.size, ring.base = self._size, self._base
        ring.mergeable, ring.packed, ring.in_order = (
            int(feature in features) for feature in (Feature.NET_MRG_RXBUF, Feature.RING_PACKED, Feature.IN_ORDER)
        )
        ring.descriptors, ring.available, ring.used = self._address.descriptors, self._address.available, self._address.used
        ring.kick, ring.call = self._fds["kick"], self._fds["call"]
        result = lib.fp_device_attach(self.queue, memory.pointer, ring)
        self._attached = not result
        if result:
            raise self._refusal(-result, step)
        self._go()

    def enable(self, enabled: bool) -> None:
        """Let frames pass or not, once the ring is started."""
        self._enabled = enabled
        if not enabled:
            self._pause()
        elif self.started:
            self._go()

    def stop(self) -> int:
        """Stop the ring: no frame passes until it is started again. Returns where it is to go on."""
        self._detach()
        self.started = False
        self._put("kick", -1)
        return self._base

    def why_broken(self) -> FastPathError | None:
        """How the guest broke the ring; None when it did not."""
        number = lib.fp_fault_of(self.queue)
        if not number:
            return None
        direction = "transmit" if self.index % 2 == 0 else "receive"
        where = f"vring {self.index}: {direction} queue of pair {self.index // 2}"
        return RingFault(REASONS.get(number, BreachReason.BAD_VALUE), "burst", where, "the driver in the guest or container")

    def report(self) -> None:
        """Tell the front-end by its "err" eventfd that the ring is broken."""
        if self._fds["err"] >= 0:
            lib.fp_notify(self._fds["err"])

    def close(self) -> None:
        """Close for good: when this returns no thread is in a burst, and nothing of the front-end's is in use."""
        lib.fp_close(self.queue)
        lib.fp_device_detach(self.queue)
        lib.fp_device_close(self.queue)
        self.started = self.running = self._attached = False
        for kind in self._fds:
            self._put(kind, -1)

    def _pause(self) -> None:
        lib.fp_stop(self.queue)
        self.running = False
        if self._attached:
            self._base = lib.fp_device_base(self.queue)

    def _detach(self) -> None:
        self._pause()
        lib.fp_device_detach(self.queue)
        self._attached = False

    def _go(self) -> None:
        if self._enabled:
            self.running = True
            lib.fp_start(self.queue)

    def _put(self, kind: str, fd: int) -> None:
        old, self._fds[kind] = self._fds[kind], fd
        if old >= 0:
            if kind != "err":
                self._detach()
            os.close(old)

    def _require_stopped(self, step: str) -> None:
        if self.started:
            raise PeerError(BreachReason.BAD_ORDER, step, f"vring {self.index} is started, and only GET_VRING_BASE stops it")

    def _refusal(self, number: int, step: str) -> FastPathError:
        if number not in _REFUSALS:
            return MemoryShort(step, os.strerror(number), "limits of this process: watched descriptors (fs.epoll)")
        reason, what = _REFUSALS[number]
        return PeerError(reason, step, f"vring {self.index} of {self._size}, base {self._base:#x}: {what} {self._address}")
