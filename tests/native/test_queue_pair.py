"""Queue pairs and generators, over rings whose other side is in Python."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lab.frames.wire import Wire
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath._native import ffi, lib
from userspace_cni.fastpath.fastpath_errors import BreachReason, Closed, Disconnected, FrameRefused, RingFault
from userspace_cni.fastpath.rings.burst import Burst
from userspace_cni.fastpath.rings.generator import Load, blast, blast_both, blast_ways, bounce, echo
from userspace_cni.fastpath.rings.queue_pair import QueuePair

FRAME = bytes.fromhex("02000000000b02000000000a88b5") + bytes(46)
LONG = 60.0  # seconds: more than anything here takes


@pytest.fixture
def wire() -> Iterator[Wire]:
    with Wire() as made:
        yield made


def ends(wire: Wire) -> tuple[QueuePair, QueuePair]:
    a, b = wire.pairs
    return a, b


def test_bursts(wire: Wire) -> None:
    """A burst arrives as it was sent, `first` says from where, a full ring takes what fits."""
    a, b = wire.pairs
    burst, other = Burst(100), Burst(100)
    frames = [os.urandom(14 + 20 * index) for index in range(100)]
    assert burst.fill(frames) == 100
    assert a.receive(other) == 0
    assert a.send(burst, 10) == 10
    assert a.send(burst, 90, first=10) == 54
    wire.step()
    assert b.receive(other) == 64
    assert other.frames(64) == frames[:64]
    assert a.counters.tx_frames == b.counters.rx_frames == 64
    assert a.counters.tx_bytes == b.counters.rx_bytes == sum(map(len, frames[:64]))
    assert a.counters.tx_refused == 36
    assert a.longest == 2048


def test_convenient(wire: Wire) -> None:
    """Frames as bytes, of one length or many, more than one burst, and fewer than have arrived."""
    a, b = wire.pairs
    mixed: list[bytes | bytearray | memoryview] = [bytearray(60), memoryview(FRAME)]
    for frames in ([os.urandom(64)] * 40, [os.urandom(14 + index) for index in range(40)], mixed):
        assert a.send_frames(frames) == len(frames)
        wire.step()
        expected = [bytes(frame) for frame in frames]
        assert b.receive_frames(limit=1) == expected[:1]
        assert b.receive_frames(limit=0) == b.receive_frames(limit=-1) == []
        assert b.receive_frames(limit=64) == expected[1:]
    assert a.send_frames([]) == 0
    assert a.send_frames([FRAME] * 100) == 64
    assert b.receive_frames() == []


def test_lengths(wire: Wire) -> None:
    """A frame that is too long or too short is an error when it is the first; otherwise the burst ends before it."""
    a, b = wire.pairs
    for frame in (bytes(2049), bytes(13), b""):
        with pytest.raises(FrameRefused, match=f"{len(frame)} bytes"):
            a.send_frames([frame])
        assert a.send_frames([FRAME, frame, FRAME]) == 1
    burst = Burst(4, 4096)
    burst.lengths[0], burst.lengths[1] = 60, 2049
    assert a.send(burst, 2) == 1
    with pytest.raises(FrameRefused, match="2049"):
        a.send(burst, 1, first=1)
    for count, first in ((5, 0), (-1, 0), (-(1 << 40), 0), (1, 4), (4, 1), (1, -1), (-1, 1)):
        with pytest.raises(ValueError, match="burst of 4"):
            a.send(burst, count, first)
    wire.step()
    small = Burst(4, 59)
    assert b.receive(small) == 0
    assert b.counters.rx_oversize == 4


def test_wait(wire: Wire) -> None:
    """A wait sleeps until a frame is there, or until time is over."""
    a, b = wire.pairs
    assert not b.wait(0)
    assert not b.wait(0.01)
    for patience in (LONG, float("inf"), None):
        a.send_frames([FRAME])
        asleep = threading.Thread(target=wait_until, args=(lambda: wire.rx[1].wants_interrupt() and wire.step(),))
        asleep.start()
        assert b.wait(patience)
        asleep.join()
        assert b.receive_frames() == [FRAME]


@pytest.mark.parametrize(
    ("size", "room", "offset"), [(0, 64, 0), (1, 64, 0), (3, 64, 0), (65536, 64, 0), (64, 13, 0), (64, 65554, 0), (64, 64, 8)]
)
def test_refused_sizes(size: int, room: int, offset: int) -> None:
    """A ring size that virtio does not allow, a buffer too small for a frame, and memory off a cache line make no queue."""
    memory = ffi.from_buffer(mmap.mmap(-1, 4096))
    assert lib.fp_driver_new(ffi.cast("char *", memory) + offset, size, room, 0) == ffi.NULL
    assert ffi.errno == errno.EINVAL


def _caught(call: Callable[[], Any]) -> tuple[threading.Thread, list[BaseException]]:
    """Run `call` in a thread; the list gets what it raises."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, raised


def test_close_ends_waits(wire: Wire) -> None:
    """A close ends waits in other threads with its error; later calls get it too."""
    waiters = [_caught(wire.pairs[0].wait) for _ in range(3)]
    wait_until(wire.rx[0].wants_interrupt)
    wire.close()
    for thread, raised in waiters:
        thread.join()
        assert [type(error) for error in raised] == [Closed]
    for call in (wire.pairs[1].receive_frames, lambda: wire.pairs[1].send_frames([FRAME]), wire.pairs[1].wait):
        with pytest.raises(Closed):
            call()
    assert wire.pairs[0].counters.tx_frames == 0


def test_close_amid_bursts(wire: Wire) -> None:
    """Threads that send and receive as fast as they can get the error of a close too, and do no harm."""

    def send() -> None:
        while True:
            wire.pairs[0].send_frames([FRAME] * 40)

    def receive() -> None:
        while True:
            wire.pairs[1].receive_frames()

    with wire.run():
        workers = [_caught(work) for work in (send, receive, send, receive)]
        wait_until(lambda: wire.pairs[1].counters.rx_frames > 2000)
        wire.close()
        for thread, raised in workers:
            thread.join()
            assert [type(error) for error in raised] == [Closed]


def test_stopped(wire: Wire) -> None:
    """Without a connection nothing is carried; a check raises the reason that the owner knows."""
    wire.stop()
    assert wire.pairs[0].send_frames([FRAME]) == 0
    assert wire.pairs[0].receive_frames() == []
    assert not wire.pairs[0].wait(0.01)
    wire.pairs[0].check()
    wire.problem = Disconnected("test", "gone")
    with pytest.raises(Disconnected, match="gone"):
        wire.pairs[0].check()


def test_fault(wire: Wire) -> None:
    """A fault of a ring is named, with its queue."""
    a, b = wire.pairs
    wire.rx[1].use(100, number=7)
    for call in (b.receive_frames, lambda: b.wait(LONG), b.check):
        with pytest.raises(RingFault, match="receive queue of pair 1") as caught:
            call()
        assert caught.value.reason is BreachReason.BAD_ID
    wire.tx[0].publish(30000)
    with pytest.raises(RingFault, match="transmit queue of pair 0") as caught:
        a.send_frames([FRAME] * 65)
    assert caught.value.reason is BreachReason.INDEX_JUMP


def test_signal_in_wait(wire: Wire) -> None:
    """A signal's handler runs while a thread waits, and its exception ends the wait."""

    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    def wait() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        wire.pairs[0].wait()

    former = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(Alarm):
            wait()
    finally:
        signal.signal(signal.SIGALRM, former)


@pytest.mark.parametrize("load", [Load(FRAME, copy=False), Load(FRAME), Load(FRAME, touch=True, batch=7, window_ns=10_000_000)])
def test_blast(wire: Wire, load: Load) -> None:
    """Received frames were sent, and each window has its number of them."""
    with wire.run():
        one, both = blast(*ends(wire), load), blast_both(*ends(wire), load)
        four = blast_ways([ends(wire), ends(wire)[::-1]] * 2, load)
    sent = received = 0
    for slice_ in (one, both, four):
        assert slice_.received > 0
        sent, received = sent + slice_.sent, received + slice_.received
        assert received <= sent  # of all so far: one may find what was left of the one before
        assert slice_.seconds >= load.seconds
        assert 0 < len(slice_.windows) <= load.seconds * 1e9 / load.window_ns
        assert sum(slice_.windows) <= slice_.received
    assert one.foreign == 0
    counted = [pair.counters for pair in wire.pairs]
    assert sum(each.tx_frames for each in counted) == one.sent + both.sent + four.sent


def test_the_shortest_load_takes_time(wire: Wire) -> None:
    """A load of less than a nanosecond, as is left of a longer one that is cut into slices, ends, and has taken time."""
    with wire.run():
        assert blast(*ends(wire), Load(FRAME, seconds=1e-10)).seconds > 0


def test_blast_foreign(wire: Wire) -> None:
    """Frames without the mark do not count as received."""
    wire.pairs[0].send_frames([FRAME] * 20)
    with wire.run():
        found = blast(*ends(wire), Load(FRAME, touch=True))
    assert found.foreign == 20
    assert found.received <= found.sent


@pytest.mark.parametrize("sleep", [False, True], ids=["polling", "sleeping"])
def test_bounce(wire: Wire, sleep: bool) -> None:
    """Every frame comes back, once there and once back, with its addresses exchanged; foreign frames are counted."""
    wire.pairs[1].send_frames([FRAME] * 3)
    wire.step()
    with wire.run():
        found = bounce(*ends(wire), 50, frame=FRAME, sleep=sleep, timeout_s=LONG)
    assert (len(found.nanoseconds), found.lost, found.foreign) == (50, 0, 3)
    assert min(found.nanoseconds) > 0
    assert wire.pairs[1].counters.tx_frames == 53


def test_echo() -> None:
    """One pair whose frames come back."""
    with Wire(1) as wire, wire.run():
        found = echo(wire.pairs[0], 20, frame=FRAME, sleep=True, timeout_s=LONG)
    assert (len(found.nanoseconds), found.lost, found.foreign) == (20, 0, 0)


@pytest.mark.parametrize("sleep", [False, True], ids=["polling", "sleeping"])
def test_lost(wire: Wire, sleep: bool) -> None:
    """Frames that do not come back in time are lost."""
    found = bounce(*ends(wire), 4, frame=FRAME, sleep=sleep, timeout_s=0.01)
    assert (found.nanoseconds, found.lost) == ([], 4)


def test_generator_failures(wire: Wire) -> None:
    """An impossible load is refused; a known loss and a close are raised."""
    for load in (
        Load(bytes(13)),
        Load(bytes(21), touch=True),
        Load(FRAME, batch=0),
        Load(FRAME, batch=257),
        Load(FRAME, seconds=0),
    ):
        with pytest.raises(ValueError, match="load needs"):
            blast(*ends(wire), load)
    for ways in ([], [ends(wire)] * 5):
        with pytest.raises(ValueError, match=f"{len(ways)} ways: 1 to 4 are possible"):
            blast_ways(ways, Load(FRAME))
    with pytest.raises(ValueError, match="30 bytes"):
        echo(wire.pairs[0], 1, frame=bytes(29))
    with pytest.raises(FrameRefused):
        blast(*ends(wire), Load(bytes(4000)))
    wire.problem = Disconnected("test", "gone")
    for call in (lambda: blast(*ends(wire), Load(FRAME)), lambda: echo(wire.pairs[0], 2, frame=FRAME, timeout_s=0.01)):
        with pytest.raises(Disconnected):
            call()
    wire.problem = None
    wire.close()
    for call in (lambda: blast(*ends(wire), Load(FRAME)), lambda: echo(wire.pairs[0], 2, frame=FRAME)):
        with pytest.raises(Closed):
            call()


def test_views_of_other_items(wire: Wire) -> None:
    """A view whose items are not bytes is refused, and not sent cut short."""
    with pytest.raises(ValueError, match="bytes"):
        ends(wire)[0].send_frames([memoryview(bytes(64)).cast("I")])
    with pytest.raises(ValueError, match="bytes"):
        ends(wire)[0].send_frames([FRAME, memoryview(bytes(120)).cast("I")])


def test_views_outlive_the_queue() -> None:
    """Views of received frames are read and written after the rings, their memory and the burst are gone."""
    with Wire() as wire:
        a, b = wire.pairs
        burst = Burst(4)
        a.send_frames([FRAME] * 4)
        wire.step()
        views = burst.views(b.receive(burst))
    del a, b, wire, burst
    gc.collect()
    views[0][:6] = b"abcdef"
    assert [bytes(view) for view in views] == [b"abcdef" + FRAME[6:], FRAME, FRAME, FRAME]


def test_several_threads_take_frames(wire: Wire) -> None:
    """What threads take at the same time are whole frames, each for one of them."""
    a, b = wire.pairs
    frames = [bytes([index]) * (60 + index % 3) for index in range(64)]
    took: list[bytes] = []
    for _ in range(50):
        assert a.send_frames(frames) == 64
        wire.step()
        threads = [threading.Thread(target=lambda: took.extend(b.receive_frames(limit=16))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(took) == sorted(frames * 50)
