"""The loads of our own library beside those of DPDK: the loop in C, Python by bursts and by frames, and frames at a rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tests.bench.frame_runs import WINDOW_NS, Case, Run, percentile
from tests.bench.loss_free import Trial
from userspace_cni.fastpath.rings.burst import Burst
from userspace_cni.fastpath.rings.generator import MARK_AT, Load, blast, blast_both, blast_ways, bounce
from userspace_cni.fastpath.rings.queue_pair import QueuePair
from userspace_cni.fastpath.rings.stream_generator import FrameStream, Generator
from userspace_cni.fastpath.vhost.front_end import FrontEndOptions

RINGS: Final = {"ours, packed": FrontEndOptions(packed=True), "ours, split": FrontEndOptions(packed=False)}
"""What is compared with DPDK's paths, and the options that make it; first what OVS-DPDK gets without options."""
_HEADER: Final = bytes.fromhex("02000000000b02000000000a88b5")
_TURNS: Final = 4
"""Bursts between looks at the clock."""
SHORTEST: Final = 64
_ECHOES: Final = 1001
_LOST_S: Final = 0.02
_LAST_S: Final = 0.01
"""For frames on their way."""


class Ends(NamedTuple):
    """The queue pairs of both ports."""

    a: Sequence[QueuePair]
    b: Sequence[QueuePair]


def frame_of(length: int) -> bytes:
    return _HEADER + bytes(length - len(_HEADER))


class OurLoop:
    """Our front-ends at both ports, with the same methods as `DpdkLoop`."""

    def __init__(self, ends: Ends) -> None:
        self.ends = ends

    def run(self, case: Case, seconds: float, *, copy: bool = True) -> Run:
        """As many frames as are taken; without `copy` each buffer is filled once."""
        a, b = self.ends
        load = Load(frame_of(case.length), case.batch, seconds, copy, case.touch, WINDOW_NS)
        match case.ways, case.queues:
            case 1, 1:
                found = blast(a[0], b[0], load)
            case 2, 1:
                found = blast_both(a[0], b[0], load)
            case (1 | 2) as ways, 2:
                there, back = list(zip(a, b, strict=True)), list(zip(b, a, strict=True))
                found = blast_ways(there + (back if ways == 2 else []), load)
            case _:
                raise ValueError(f"no loop for {case}")
        return Run(found.windows, found.received / found.seconds)

    def trial(self, case: Case, seconds: float, rate: float) -> Trial:
        """So many frames a second, copied in; the mark of each received frame is compared, and its time is noted."""
        frames = [frame_of(case.length)] * case.batch
        stream = FrameStream(frames, frames_per_s=rate, burst=case.batch, stamp_at=MARK_AT if case.touch else None)
        generator = Generator(_crossed(self.ends.a[0], self.ends.b[0]), stream)
        generator.collect(_LAST_S)  # what an earlier trial left
        before = generator.figures.received
        took = generator.run(count=int(rate * seconds)).seconds
        found = generator.collect(_LAST_S)
        return Trial(rate, seconds, found.sent, found.received - before, took)

    def round_trip(self) -> float:
        """Microseconds of a single frame there and back, polling, on the queue that the switch chooses."""
        a, b = self.ends
        for near, far in zip(a, b, strict=True):
            sides = _crossed(a[0], near), _crossed(b[0], far)
            found = bounce(*sides, _ECHOES, frame=frame_of(SHORTEST), timeout_s=_LOST_S)
            if found.nanoseconds:
                return round(percentile(found.nanoseconds, 0.5) / 1000, 2)
        raise RuntimeError("no frame came back, on no queue")


def _crossed(source: QueuePair, sink: QueuePair) -> QueuePair:
    """The transmit queue of one pair with the receive queue of another."""
    return QueuePair(0, source.tx, sink.rx, source.owner)


def python_bursts(ends: Ends, case: Case, seconds: float) -> Run:
    """One call per burst out, one in; copied each time."""
    source, sink = ends.a[0], ends.b[0]
    out, back = Burst(case.batch), Burst(case.batch)
    out.fill([frame_of(case.length)] * case.batch)

    def turn() -> int:
        source.send(out, case.batch)
        return sink.receive(back)

    return _timed(turn, seconds)


def python_frames(ends: Ends, case: Case, seconds: float) -> Run:
    """Lists of bytes out and in."""
    source, sink = ends.a[0], ends.b[0]
    frames = [bytes(bytearray(frame_of(case.length))) for _ in range(case.batch)]

    def turn() -> int:
        source.send_frames(frames)
        return len(sink.receive_frames(case.batch))

    return _timed(turn, seconds)


def _timed(turn: Callable[[], int], seconds: float) -> Run:
    """`turn` again and again; it answers how many frames were received."""
    windows: list[int] = []
    received = before = 0
    clock = time.perf_counter_ns
    start = window = now = clock()
    end = start + int(seconds * 1e9)
    while now < end:
        for _ in range(_TURNS):
            received += turn()
        now = clock()
        if now - window >= WINDOW_NS:
            windows.append((received - before) * WINDOW_NS // (now - window))
            window, before = now, received
    return Run(windows, received / (now - start) * 1e9)
