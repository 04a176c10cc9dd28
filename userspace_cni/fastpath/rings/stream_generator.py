"""A traffic generator at one port: sends frames at a rate, and counts and times what comes back.

The loop is in C, without the GIL, in slices of a tenth of a second: a signal's handler runs between two of them, and figures so
far are there at any time. It must not judge a figure, and sends no lost frame again.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

from userspace_cni.fastpath._native import ffi, lib
from userspace_cni.fastpath.fastpath_errors import FastPathError
from userspace_cni.fastpath.rings.burst import LINE, Burst
from userspace_cni.fastpath.rings.queue_pair import LONGEST_RECEIVED, QueuePair

SLICE_S: Final = 0.1
BURST_MAX: Final = 256
STAMP_BYTES: int = lib.FP_STAMP_BYTES
_BURST: Final = 32
_TOGETHER: Final = 50e6
"""Picoseconds."""
_RECEIVED: Final = 64
_FOREVER: Final = (1 << 64) - 1
_PICO: Final = 1e12
_NANO: Final = 1e9
_GAP_MAX: Final = 1e16
"""Picoseconds, nearly three hours: the slowest rate."""
_FINE: Final = 32
"""Slots of the histogram of times for each power of two; see stream.c."""


@dataclass(frozen=True, slots=True)
class FrameStream:
    """What a `Generator` sends: `frames`, one after the other and from the start again, at a rate.

    The rate is `frames_per_s`, or `bits_per_s` of the frames themselves (without checksum, preamble and gap of a wire); with
    neither, as many as the queue takes. `burst`: frames that are sent together, 1 to 256; the rate holds between bursts. None: as
    many as fall due in 50 µs, 1 to 32, so that slow streams are even and fast ones cheap.
    `stamp_at`: where in each frame 16 bytes are replaced by a mark of the run and the time of sending, so that only frames of
    this stream count as received, and are timed; None: no stamp, all frames count. ValueError for what cannot be.
    """

    frames: Sequence[bytes]
    frames_per_s: float | None = None
    bits_per_s: float | None = None
    burst: int | None = None
    stamp_at: int | None = None

    def __post_init__(self) -> None:
        shortest = max(lib.FP_SHORTEST, (self.stamp_at or 0) + STAMP_BYTES if self.stamp_at is not None else 0)
        if not self.frames or min(map(len, self.frames)) < shortest:
            raise ValueError(f"a stream needs frames of {shortest} bytes or more")
        if self.stamp_at is not None and self.stamp_at < lib.FP_SHORTEST:
            raise ValueError(f"stamp_at={self.stamp_at}: {lib.FP_SHORTEST} or more is possible, behind the Ethernet header")
        if self.burst is not None and not 1 <= self.burst <= BURST_MAX:
            raise ValueError(f"burst={self.burst}: 1 to {BURST_MAX} are possible")
        if self.frames_per_s is not None and self.bits_per_s is not None:
            raise ValueError("a stream has one rate: frames_per_s or bits_per_s")
        for name in ("frames_per_s", "bits_per_s"):
            rate = getattr(self, name)
            if rate is not None and not (rate > 0 and math.isfinite(rate)):
                raise ValueError(f"{name}={rate}: a number above 0 is possible")
        if max(self.gaps()) > _GAP_MAX:
            raise ValueError(
                f"{self.frames_per_s or self.bits_per_s} is too slow: a frame in {_GAP_MAX / _PICO:.0f} s is the least"
            )

    def frames_together(self) -> int:
        """Frames of a burst: `burst`, or what None stands for."""
        if self.burst is not None:
            return self.burst
        mean = sum(self.gaps()) / len(self.frames)
        return max(1, min(_BURST, int(_TOGETHER / mean))) if mean else _BURST

    def gaps(self) -> list[float]:
        """Picoseconds from each frame to the next; 0 without a rate."""
        if self.bits_per_s is not None:
            return [len(frame) * 8 * _PICO / self.bits_per_s for frame in self.frames]
        return [_PICO / self.frames_per_s if self.frames_per_s else 0.0] * len(self.frames)


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """Times from sending a frame to finding it, of `count` frames, ns. Percentiles are exact to 3 %.

    They have in them what the sending thread did meanwhile: at most a burst while it has a core of its own.
    """

    count: int
    min_ns: int
    p50_ns: int
    p90_ns: int
    p99_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """What a stream has brought. Bytes are of frames, without checksum.

    `foreign`: frames that came and are not of this stream. `seconds`: how long frames were sent. `behind_s`: time by which the
    stream was late, for want of room or of a core, and did not make up for: the rate holds for the rest of the time. `latency`:
    None without stamps.
    """

    sent: int
    sent_bytes: int
    received: int
    received_bytes: int
    foreign: int
    seconds: float
    behind_s: float
    latency: LatencyFigures | None

    @property
    def lost(self) -> int:
        """Frames sent and not received (yet)."""
        return max(0, self.sent - self.received)

    @property
    def frames_per_s(self) -> float:
        """The rate of sending."""
        return self.sent / self.seconds if self.seconds else 0.0

    @property
    def bits_per_s(self) -> float:
        """The rate of sending, of frames without checksum."""
        return self.sent_bytes * 8 / self.seconds if self.seconds else 0.0


class Generator:
    """Sends `stream` on a queue pair and receives what comes back on it. One thread at a time runs it; any may read its figures.

    It holds its core busy while bursts follow each other within 70 µs, and sleeps between them otherwise.
    """

    def __init__(self, pair: QueuePair, stream: FrameStream) -> None:
        pair.require_bare()
        self._pair = pair
        self._longest = max(map(len, stream.frames))
        self._frames = Burst(len(stream.frames), -(-self._longest // LINE) * LINE)
        self._frames.fill(stream.frames)
        self._arrived = Burst(_RECEIVED, LONGEST_RECEIVED)
        self._gaps: Any = ffi.new("uint64_t[]", _whole(stream.gaps()))
        order: Any = ffi.new("struct fp_stream *")
        order.frames, order.stride, order.lengths = self._frames.pointer, self._frames.stride, self._frames.lengths_pointer
        order.gaps, order.count, order.batch = self._gaps, len(stream.frames), stream.frames_together()
        order.stamp_at, order.mark = stream.stamp_at or 0, secrets.randbits(64)
        order.arrived, order.arrived_stride = self._arrived.pointer, self._arrived.stride
        order.arrived_lengths, order.arrived_capacity = self._arrived.lengths_pointer, self._arrived.capacity
        self._order = order
        self._running = threading.Lock()
        self._stamped = stream.stamp_at is not None

    def run(self, seconds: float | None = None, count: int | None = None) -> StreamFigures:
        """Send for `seconds`, or `count` frames, whichever ends first; without both until an exception, as KeyboardInterrupt.

        The figures are of all runs so far; after an exception `figures` has them. Raises FrameRefused for a frame that is too
        long for the pair, and what `receive` of a pair raises.
        """
        if not (seconds is None or seconds > 0) or not (count is None or count > 0):
            raise ValueError(f"a run of {seconds} s and {count} frames: more than 0 is possible, or None")
        with self._alone():
            order = self._order
            order.behind_ns += self._late_ns()
            order.start_ns = order.due_ps = order.pending = 0
            before, order.left = order.elapsed_ns, _FOREVER if count is None else count
            end = math.inf if seconds is None else before + seconds * _NANO
            while order.left and (rest := end - order.elapsed_ns) > 0:
                self._slice(rest)
            return self.figures

    def collect(self, seconds: float) -> StreamFigures:
        """Receive for `seconds` without sending: frames that were still on their way."""
        with self._alone():
            self._order.left = self._order.pending = 0
            for part in [SLICE_S] * int(seconds / SLICE_S) + [seconds % SLICE_S]:
                self._slice(part * _NANO)
            return self.figures

    @property
    def figures(self) -> StreamFigures:
        """What the stream has brought so far."""
        order = self._order
        return StreamFigures(
            order.sent,
            order.sent_bytes,
            order.received,
            order.received_bytes,
            order.foreign,
            order.elapsed_ns / _NANO,
            (order.behind_ns + self._late_ns()) / _NANO,
            self._latency() if self._stamped else None,
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._running.acquire(blocking=False):
            raise FastPathError("running the generator", "it runs already, in another thread", "a generator for each thread")
        try:
            yield
        finally:
            self._running.release()

    def _slice(self, rest_ns: float) -> None:
        pair, order = self._pair, self._order
        order.budget_ns = math.ceil(min(rest_ns, SLICE_S * _NANO))
        result: int = lib.fp_stream_run(pair.tx, pair.rx, pair.owner.control_fd, pair.owner.wake_fd, order)
        if result < 0:
            raise pair.explain_failure(result, "stream", self._longest)
        pair.check()

    def _late_ns(self) -> int:
        """How late the next frame was when the last run ended."""
        order = self._order
        return max(0, order.elapsed_ns - order.earlier_ns - order.due_ps // 1000) if self._gaps[0] and order.start_ns else 0

    def _latency(self) -> LatencyFigures | None:
        slots: list[int] = list(self._order.latencies)
        total = sum(slots)
        if not total:
            return None
        least, most = int(self._order.least_ns), int(self._order.most_ns)
        p50, p90, p99 = (min(max(_percentile(slots, total * share), least), most) for share in (0.5, 0.9, 0.99))
        return LatencyFigures(total, least, p50, p90, p99, most)


def _whole(gaps: list[float]) -> list[int]:
    """The gaps in whole picoseconds; what rounding takes from one it gives to the next, so that the rate is exact."""
    ends = [0, *map(round, accumulate(gaps))]
    return [after - before for before, after in pairwise(ends)]


def _percentile(slots: list[int], wanted: float) -> int:
    """The middle of the slot in which the `wanted`-th time is."""
    seen, slot = 0, -1
    while seen < wanted:
        slot += 1
        seen += slots[slot]
    if slot < _FINE:
        return slot
    power = slot // _FINE - 1
    return ((_FINE + slot % _FINE) << power) + (1 << power) // 2
