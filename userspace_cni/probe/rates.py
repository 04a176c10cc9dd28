"""Measures how many frames per second the switch carries from one endpoint to the other."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from userspace_cni.probe import histogram
from userspace_cni.probe.cores import Cores
from userspace_cni.probe.ending import EndingSignals
from userspace_cni.probe.endpoints import HEADER_BYTES, Endpoint, Pair

SLICE_S: Final = 0.2
"""Seconds between two checks of signals and of the connections."""
WINDOW_NS: Final = 1_000_000
DRAIN_S: Final = 0.05
"""After the last frame was sent, frames are awaited until none has come for so long."""
SILENT_S: Final = 1.0
"""After so many seconds without a received frame, the way counts as cut; a slice may be much shorter than `SLICE_S`."""


@dataclass
class FrameCount:
    """Frames within `seconds`."""

    sent: int = 0
    received: int = 0
    seconds: float = 0.0

    @property
    def lost(self) -> int:
        """Frames sent, and not received (yet)."""
        return max(0, self.sent - self.received)

    @property
    def mpps(self) -> float:
        """Millions of frames received per second."""
        return self.received / self.seconds / 1e6 if self.seconds else 0.0

    def gbps(self, size: int) -> float:
        """Thousands of millions of bits received per second, for frames of `size` bytes."""
        return self.mpps * size * 8 / 1e3

    def add(self, other: FrameCount) -> None:
        self.sent += other.sent
        self.received += other.received
        self.seconds += other.seconds


@dataclass
class LoadFigures:
    """The figures so far. `windows`: frames received in each window of WINDOW_NS. `problem`: why it ended early, or ""."""

    pair: tuple[Endpoint, Endpoint] | None = None
    total: FrameCount = field(default_factory=FrameCount)
    each_second: list[FrameCount] = field(default_factory=list)
    windows: array[int] = field(default_factory=lambda: array("q"))
    interrupted: bool = False
    problem: str = ""

    def window(self, share: float) -> float:
        """The rate (Mpps) that `share` of the windows do not exceed; 0.0 without a window."""
        return histogram.percentile(sorted(self.windows), share) * 1e3 / WINDOW_NS if self.windows else 0.0


@dataclass(frozen=True)
class LoadOptions:
    """What to send: for how many seconds, bytes of a frame, frames of a burst, and whether both ends send."""

    seconds: float
    size: int
    batch: int
    both: bool


def measure(
    pair: Pair, way: LoadOptions, flow: LoadFigures, seat: Cores, report: Callable[[], None], ending: EndingSignals
) -> None:
    """Send for `way.seconds` and fill `flow`, also when it ends with an exception; calls `report` each second."""
    from userspace_cni.fastpath.fastpath_errors import FastPathError

    second, silent = FrameCount(), 0.0
    try:
        while flow.total.seconds < way.seconds and not flow.problem:
            ending.check()
            with seat.measure():
                count = _blast(pair, way, min(SLICE_S, way.seconds - flow.total.seconds), flow)
            flow.total.add(count)
            second.add(count)
            silent = 0.0 if count.received else silent + count.seconds
            flow.problem = pair.hung_up() or (pair.cut("no frame arrives any more") if silent >= SILENT_S else "")
            if second.seconds >= 1.0 - SLICE_S / 2:
                flow.each_second.append(second)
                second = FrameCount()
                report()
        late = FrameCount(received=_drain(pair, way))
        flow.total.add(late)
        (second if second.seconds else flow.each_second[-1]).add(late)
    except FastPathError as error:
        flow.problem = pair.hung_up() or str(error)
    finally:
        if second.seconds:
            flow.each_second.append(second)


def _blast(pair: Pair, way: LoadOptions, seconds: float, flow: LoadFigures) -> FrameCount:
    """Send for one slice. If one end sends, the other sends a frame too, so that the bridge does not forget where it is."""
    from userspace_cni.fastpath.rings.generator import Load, blast, blast_both

    back = pair.frame(way.size, back=True)
    load = Load(frame=pair.frame(way.size), back=back, batch=way.batch, seconds=seconds, window_ns=WINDOW_NS)
    a, b = pair.queues
    if not way.both:
        b.send_frames([back])
        while a.receive_frames():
            pass
    part = (blast_both if way.both else blast)(a, b, load)
    flow.windows.extend(part.windows)
    return FrameCount(part.sent, part.received, part.seconds)


def _drain(pair: Pair, way: LoadOptions) -> int:
    """Receive the frames that were on their way when the last one was sent; how many."""
    arrived, until = 0, time.monotonic() + DRAIN_S
    targets = [(pair.queues[1], pair.frame(way.size)), (pair.queues[0], pair.frame(way.size, back=True))]
    while time.monotonic() < until:
        found = [
            frame
            for queue, sent in (targets if way.both else targets[:1])
            for frame in queue.receive_frames()
            if frame[:HEADER_BYTES] == sent[:HEADER_BYTES]
        ]
        if found:
            arrived, until = arrived + len(found), time.monotonic() + DRAIN_S
    return arrived
