"""A queue pair: sends and receives frames, for a front-end and for a back-end.

One C call per burst, without the GIL; failures are exceptions of `errors`. Several threads may use a pair, and another one may
close it: the queue lets one burst in at a time, and after its owner is closed every call raises why. A pair must not know how a
connection is made, and must not end one: its owner does.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from userspace_cni.fastpath._frames import cut, lay
from userspace_cni.fastpath._native import ffi, lib
from userspace_cni.fastpath.fastpath_errors import BreachReason, Closed, Disconnected, FastPathError, FrameRefused, RingFault
from userspace_cni.fastpath.rings.burst import Burst
from userspace_cni.linux.unix_sockets import hung_up

BATCH = 32  # frames of one burst of send_frames() and receive_frames()
LONGEST_RECEIVED = 16384  # bytes: the longest frame that receive_frames() takes
FOREVER_S = 1e9  # seconds; more nanoseconds than these do not fit C's argument
REASONS = {
    lib.FP_INDEX_JUMP: BreachReason.INDEX_JUMP,
    lib.FP_BAD_ID: BreachReason.BAD_ID,
    lib.FP_LOOP: BreachReason.LOOP,
    lib.FP_BAD_ADDRESS: BreachReason.BAD_ADDRESS,
    lib.FP_BAD_LENGTH: BreachReason.BAD_LENGTH,
    lib.FP_BAD_FLAGS: BreachReason.BAD_BUFFER,
    lib.FP_MEMORY_GONE: BreachReason.MEMORY_GONE,
    lib.FP_BAD_EVENT: BreachReason.BAD_FD,
}

_send = lib.fp_send
_receive = lib.fp_receive


class RingOwner(Protocol):
    """The connection that made the pair; its two file descriptors end waits."""

    @property
    def control_fd(self) -> int:
        """The connected socket, -1 for none."""

    @property
    def wake_fd(self) -> int:
        """An eventfd that is readable once the owner is being closed, -1 for none."""

    def why_failed(self) -> FastPathError | None:
        """Why the connection cannot be used any more; None when no failure is known."""


@dataclass(frozen=True, slots=True)
class QueueCounters:
    """The counts of a pair since it was made, over all its connections. Bytes are those of frames, without virtio headers.

    `tx_refused`: frames for which a send found no room. `rx_oversize`: frames that were longer than the burst's stride, and
    dropped. `kicks`: notifications written for the other side.
    """

    tx_frames: int
    tx_bytes: int
    tx_refused: int
    rx_frames: int
    rx_bytes: int
    rx_oversize: int
    kicks: int


class QueuePair:
    """One queue to send and one to receive; `index` is its number in the connection.

    Made by a front-end or back-end, which stops and closes the two queues; they live as long as the pair does. `tx`, `rx` and
    `owner` are for modules with C code of their own (a generator, a pump), which must not stop or close them.
    """

    def __init__(self, index: int, tx: Any, rx: Any, owner: RingOwner) -> None:
        self.index = index
        self.tx = tx
        self.rx = rx
        self.owner = owner
        self._bursts: list[Burst] = []  # those that no thread uses at the moment

    @property
    def longest(self) -> int:
        """Bytes of the longest frame that can be sent, with its header if frames have one."""
        return int(self.tx.room)

    @property
    def headers(self) -> bool:
        """Whether frames begin with 12 bytes that say what is left to do: struct virtio_net_hdr_mrg_rxbuf, all zeros for nothing.

        It is so if offloads were asked for. Received headers may say anything. The number of buffers in it is to be ignored.
        """
        return bool(self.tx.headers)

    def require_bare(self) -> None:
        """Raise ValueError when frames have headers: those of a generator have none."""
        if self.headers:
            raise ValueError(f"queue pair {self.index} carries frames with headers: offloads were asked for")

    def send(self, burst: Burst, count: int, first: int = 0) -> int:
        """Send frames `first` to `first + count` of `burst`; returns how many were taken, in order: fewer when the ring is full.

        None is taken while the connection is not up. A frame longer than `longest` or shorter than 14 bytes ends the burst before
        it; FrameRefused when it is the first. ValueError for frames that the burst has no room for.
        """
        if first:
            return self._send_from(burst, count, first)
        if not 0 <= count <= burst.capacity:
            raise ValueError(f"{count} frames of a burst of {burst.capacity}")
        sent: int = _send(self.tx, burst.pointer, burst.stride, burst.lengths_pointer, count)
        if sent < 0:
            raise self.explain_failure(sent, "send", burst.lengths[0])
        return sent

    def receive(self, burst: Burst) -> int:
        """Put the frames that have arrived into `burst`, up to its capacity; returns how many, 0 for none. Never waits.

        A frame longer than the burst's stride is dropped and counted as oversize.
        """
        received: int = _receive(self.rx, burst.pointer, burst.stride, burst.lengths_pointer, burst.capacity)
        if received < 0:
            raise self.explain_failure(received, "receive")
        return received

    def send_frames(self, frames: Sequence[bytes | bytearray | memoryview]) -> int:
        """Send bytes-like frames; returns how many were taken, in order. Convenient, and slower than `send`."""
        count = len(frames)
        if not 0 < count <= BATCH:
            return self._send_batches(frames)
        burst = self._take_burst()
        stride = lay(frames, burst.address, burst.size, burst.lengths_address, count)
        sent: int = _send(self.tx, burst.pointer, stride, burst.lengths_pointer, count) if stride >= 0 else 0
        self._bursts.append(burst)
        if stride < 0:
            return self._send_other(frames)
        if sent < 0:
            raise self.explain_failure(sent, "send", len(frames[0]))
        return sent

    def receive_frames(self, limit: int = BATCH) -> list[bytes]:
        """At most `limit` frames that have arrived, of up to 16 KiB each. Never waits; slower than `receive`.

        With headers the frames may have any length.
        """
        if not 0 < limit <= BATCH:
            return self._receive_batches(limit)
        burst = self._take_burst()
        received: int = _receive(self.rx, burst.pointer, burst.stride, burst.lengths_pointer, limit)
        frames = cut(burst.address, burst.stride, burst.lengths_address, received, burst.kept) if received > 0 else []
        self._bursts.append(burst)
        if received < 0:
            raise self.explain_failure(received, "receive")
        return frames

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until frames have arrived; False when none came within `timeout_s` seconds. How: see `wait_for_frames`.

        Raises Disconnected when the other side hangs up, Closed when the owner is closed meanwhile.
        """
        return wait_for_frames((self,), timeout_s)

    @property
    def counters(self) -> QueueCounters:
        """What it has carried so far; may be read at any time, also when it is closed."""
        tx: Any = ffi.new("struct fp_counters *")
        rx: Any = ffi.new("struct fp_counters *")
        lib.fp_read_counters(self.tx, tx)
        lib.fp_read_counters(self.rx, rx)
        return QueueCounters(tx.frames, tx.bytes, tx.refused, rx.frames, rx.bytes, rx.oversize, tx.kicks + rx.kicks)

    def check(self) -> None:
        """Raise the known failure of a ring or of the connection, if there is one. Never waits."""
        for queue in (self.tx, self.rx):
            if lib.fp_fault_of(queue):
                raise self._ring_fault("look at the ring", queue)
        if known := self.owner.why_failed():
            raise known

    def forget(self) -> None:
        """Close both queues in a child after fork(2): their rings are the parent's. For the owner."""
        lib.fp_forget(self.tx)
        lib.fp_forget(self.rx)

    def explain_failure(self, code: int, step: str, length: int = 0) -> Exception:
        """The exception for a negative result of a C function on this pair; `length` is that of the frame concerned."""
        if code in (-errno.EMSGSIZE, -errno.EINVAL):
            what = f"a frame of {length} bytes, which must have {self._shortest} to {self.longest}"
            return FrameRefused(f"{step} on queue pair {self.index}", what, "the MTU of the port, and `room` of the connection")
        if code == -errno.EBADMSG and hung_up(self.owner.control_fd):
            code = -errno.ECONNRESET  # gone, it may make the rings anew for its next connection before this side has noticed
        if code == -errno.EBADMSG:
            return self._ring_fault(step, self.tx if lib.fp_fault_of(self.tx) else self.rx)
        if known := self.owner.why_failed():
            return known
        if code == -errno.ESHUTDOWN:
            return Closed(f"{step} on queue pair {self.index}", "the connection has been closed on this side")
        if code == -errno.ECONNRESET:
            what = "the other side has closed the connection"
            return Disconnected(f"{step} on queue pair {self.index}", what, "whether the switch or the pod's program still runs")
        return OSError(-code, os.strerror(-code), f"{step} on queue pair {self.index}")

    @property
    def _shortest(self) -> int:
        return int(lib.FP_SHORTEST + (lib.FP_HEADER if self.headers else 0))

    def _send_from(self, burst: Burst, count: int, first: int) -> int:
        if not 0 < first <= first + count <= burst.capacity:
            raise ValueError(f"frames {first} to {first + count} of a burst of {burst.capacity}")
        frames, lengths = burst.pointer + first * burst.stride, burst.lengths_pointer + first
        sent: int = _send(self.tx, frames, burst.stride, lengths, count)
        if sent < 0:
            raise self.explain_failure(sent, "send", lengths[0])
        return sent

    def _send_batches(self, frames: Sequence[bytes | bytearray | memoryview]) -> int:
        _require_sequence(frames)
        sent = 0
        while sent < len(frames):
            batch = frames[sent : sent + BATCH]
            taken = self.send_frames(batch)
            sent += taken
            if taken < len(batch):
                break
        return sent

    def _receive_batches(self, limit: int) -> list[bytes]:
        frames: list[bytes] = []
        while (wanted := min(limit - len(frames), BATCH)) > 0:
            received = self.receive_frames(wanted)
            frames += received
            if len(received) < wanted:
                break
        return frames

    def _send_other(self, frames: Sequence[bytes | bytearray | memoryview]) -> int:
        """Send frames that are not all bytes, or are longer than most."""
        try:
            joined, lengths = b"".join(frames), [*map(len, frames)]
        except TypeError:
            _require_sequence(frames)
            raise
        burst = self._take_burst()
        try:
            fitting = burst if max(lengths) <= burst.stride else Burst(len(lengths), max(lengths))
            fitting.put(joined, lengths)
            return self.send(fitting, len(lengths))
        finally:
            self._bursts.append(burst)

    def _take_burst(self) -> Burst:
        """One for this thread alone, until it puts it back."""
        try:
            return self._bursts.pop()
        except IndexError:
            return Burst(BATCH, lib.FP_HEADER + lib.FP_LARGEST if self.headers else LONGEST_RECEIVED)

    def _ring_fault(self, step: str, queue: Any) -> FastPathError:
        reason = REASONS.get(lib.fp_fault_of(queue), BreachReason.BAD_VALUE)
        where = f"{'transmit' if queue is self.tx else 'receive'} queue of pair {self.index}"
        return RingFault(reason, step, where, "attach again; the other side's program breaks the rules of virtio")


def wait_for_frames(pairs: Sequence[QueuePair], timeout_s: float | None = None) -> bool:
    """Wait until frames have arrived at one of `pairs` of one connection; False when none came within `timeout_s`.

    Where frames often come within 4 µs, it looks for them for so long before it sleeps, and more seldom where they do not.

    Raises Disconnected when the other side hangs up, Closed when the connection is closed meanwhile, RingFault.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    first, queues = pairs[0], ffi.new("struct fp_queue *[]", [pair.rx for pair in pairs])
    while True:
        left = -1 if deadline is None else int(max(0, min(deadline - time.monotonic(), FOREVER_S)) * 1e9)
        result: int = lib.fp_wait(queues, len(pairs), first.owner.control_fd, first.owner.wake_fd, left)
        if result >= 0:
            return bool(result)
        if result != -errno.EINTR:
            raise next((pair for pair in pairs if lib.fp_fault_of(pair.rx)), first).explain_failure(result, "wait")


def _require_sequence(frames: Sequence[bytes | bytearray | memoryview]) -> None:
    if isinstance(frames, bytes | bytearray | memoryview | str):
        raise TypeError(f"frames are sent as a sequence, [frame] for a single one, and not as {type(frames).__name__}")
