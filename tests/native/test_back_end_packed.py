"""Our back-end and a front-end whose packed virtqueues are written by hand: what must work, and when (virtio 1.1, 2.8)."""

from __future__ import annotations

import os
import random
import socket
import threading

import pytest

from tests.lab.frames.lender import GUEST, NEXT, WRITE, Buffer, Lender
from tests.lab.frames.packed_lender import AVAIL, FIRST, PACKED, USED, PackedLender, packed_ends
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath._native import lib
from userspace_cni.fastpath.fastpath_errors import BreachReason, PeerError
from userspace_cni.fastpath.rings.burst import Burst
from userspace_cni.fastpath.vhost.back_end import BackEnd, BackEndOptions
from userspace_cni.fastpath.vhost.offloads import OFFLOADS
from userspace_cni.fastpath.vhost.vhost_messages import Feature, VhostRequest

NOISE = random.Random(4).randbytes(2 * 9018)
BUFFERS = GUEST + 0x10000
ANY_ORDER = PACKED & ~Feature.IN_ORDER


def _fill(lender: PackedLender, number: int, frame: bytes) -> Buffer:
    """A transmit buffer with a frame, at a place of its own."""
    at = 0x10000 + 2048 * number
    lender.memory[at : at + 12 + len(frame)] = bytes(12) + frame
    return Buffer(GUEST + at, 12 + len(frame), 0, number)


def test_each_buffer_is_used() -> None:
    """Where the driver expects no order, each buffer has a used descriptor, at its own place and with its own number."""
    with packed_ends() as (lender, back_end):
        lender.attach(ANY_ORDER)
        lender.supply(1, *(_fill(lender, number, bytes([number]) * 60) for number in (7, 3, 9)))
        assert back_end.pairs[0].receive_frames() == [bytes([number]) * 60 for number in (7, 3, 9)]
        assert lender.used(1) == [(7, 0), (3, 0), (9, 0)]
        assert lender.words(1, 0)[2] == AVAIL | USED


def test_the_last_buffer_stands_for_all() -> None:
    """With IN_ORDER one used descriptor hands a burst of read buffers back: the first one, with the number of the last."""
    with packed_ends() as (lender, back_end):
        lender.attach()
        for turn in range(2):
            lender.supply(1, *(_fill(lender, number, bytes([number]) * 60) for number in (4, 5, 6)))
            assert len(back_end.pairs[0].receive_frames()) == 3
            assert lender.used(1, 3 * turn) == [(6, 0)]


def test_frames_in_pieces() -> None:
    """A chain's number is that of its last descriptor; it goes on at the beginning of the ring, and so does the ring."""
    with packed_ends(ring=4) as (lender, back_end):
        lender.attach(ANY_ORDER)
        lender.memory[0x10000:0x10100] = bytes(range(256))
        chain = [
            Buffer(BUFFERS, 5, NEXT, 77),
            Buffer(0, 0, NEXT, 78),
            Buffer(BUFFERS + 5, 215, 0, 2),
        ]
        for turn in range(9):
            (slot, wrap), pieces = lender.at[1], chain if turn % 2 else chain[2:]
            lender.supply(1, *pieces)
            assert back_end.pairs[0].receive_frames() == [bytes(range(12 if turn % 2 else 17, 220))]
            assert lender.used(1, slot, wrap)[0] == (2, 0)


def test_frame_over_several_buffers() -> None:
    """With MRG_RXBUF a frame fills buffers one after the other; none is used before there is room for all of it."""
    with packed_ends() as (lender, back_end):
        lender.attach()
        buffers = [Buffer(BUFFERS + 256 * number, 256, WRITE, number) for number in range(5)]
        lender.supply(0, *buffers[:2])
        assert back_end.pairs[0].send_frames([NOISE[:1000]]) == 0
        assert [lender.words(0, slot) for slot in (0, 1)] == [(256, 0, WRITE | AVAIL), (256, 1, WRITE | AVAIL)]
        lender.supply(0, *buffers[2:])
        assert back_end.pairs[0].send_frames([NOISE[:1000]]) == 1
        assert lender.used(0) == [(0, 256), (1, 256), (2, 256), (3, 244)]
        assert lender.words(0, 0)[2] == WRITE | AVAIL | USED
        assert lender.memory[0x10000 : 0x10000 + 1012] == bytes(10) + b"\4\0" + NOISE[:1000]


def test_frames_with_headers() -> None:
    """Where offloads are offered a frame comes and goes with its header, in one buffer or in several."""
    header, frame = bytes(range(1, 11)), NOISE[:500]
    ours, theirs = socket.socketpair()
    with PackedLender(theirs) as lender, BackEnd(ours, BackEndOptions(offloads=OFFLOADS)) as back_end:
        lender.attach(ANY_ORDER)
        lender.memory[0x10000 : 0x10000 + 512] = header + bytes(2) + frame
        lender.supply(1, Buffer(BUFFERS, 512, 0, 1), Buffer(BUFFERS, 7, NEXT, 0), Buffer(BUFFERS + 7, 505, 0, 2))
        lender.supply(1, Buffer(BUFFERS, 12, 0, 3))
        assert back_end.pairs[0].receive_frames() == [header + bytes(2) + frame] * 2
        assert [number for number, _ in lender.used(1)[:1]] == [1]
        for room in (1024, 256):
            lender.memory[0x20000:0x21000] = bytes(0x1000)
            lender.supply(0, *(Buffer(GUEST + 0x20000 + room * part, room, WRITE, part) for part in range(1 + 512 // room)))
            assert back_end.pairs[0].send_frames([header + b"\x77\x88" + frame]) == 1
            count = 1 if room == 1024 else 2
            assert lender.memory[0x20000 : 0x20000 + 512] == header + bytes([count, 0]) + frame
            assert back_end.pairs[0].send_frames([header + bytes(2) + frame] * (count == 1)) == 0


def test_frame_into_pieces() -> None:
    """A receive buffer may be a chain of any cut, and is used as one; the header is written although it was there before."""
    with packed_ends(ring=32) as (lender, back_end):
        lender.attach()
        for turn in range(3):
            (slot, wrap) = lender.at[0]
            pieces = [Buffer(BUFFERS + index, 1, WRITE | NEXT, 9) for index in range(20)]
            lender.supply(0, *pieces, Buffer(BUFFERS + 20, 200, WRITE, turn), Buffer(BUFFERS, 300, WRITE, 5))
            assert back_end.pairs[0].send_frames([bytes(range(100, 200))]) == 1
            assert lender.memory[0x10000:0x10070] == bytes(10) + b"\1\0" + bytes(range(100, 200))
            assert lender.words(0, slot)[:2] == (112, turn)
            lender.memory[0x10000:0x10100] = bytes([0xFF]) * 256
            assert back_end.pairs[0].send_frames([bytes(range(100, 200))]) == 1
            assert lender.memory[0x10000:0x10070] == bytes(10) + b"\1\0" + bytes(range(100, 200))
            assert wrap == 1 or lender.words(0, slot)[2] == WRITE


@pytest.mark.parametrize("features", [PACKED, PACKED & ~Feature.NET_MRG_RXBUF])
def test_frame_that_never_fits(features: Feature) -> None:
    """A frame for which the guest never has room is dropped and counted, and the frames behind it go on."""
    with packed_ends(ring=8) as (lender, back_end):
        lender.attach(features)
        lender.supply(0, *(Buffer(BUFFERS, 200, WRITE, number) for number in range(8)))
        assert back_end.pairs[0].send_frames([NOISE[:2000], bytes(60)]) == 2
        assert lender.used(0) == [(0, 72)]
        assert back_end.pairs[0].counters.tx_refused == 1


def test_frame_longer_than_the_stride() -> None:
    """A frame for which the caller has no room is dropped and counted, as is one without bytes; their buffers go back."""
    with packed_ends() as (lender, back_end):
        lender.attach(ANY_ORDER)
        long = [Buffer(BUFFERS, 2012, NEXT, 0), Buffer(BUFFERS, 2000, 0, 1)]
        lender.supply(1, *long, Buffer(BUFFERS, 12, 0, 2), Buffer(BUFFERS, 4000, 0, 3), Buffer(BUFFERS, 72, 0, 4))
        burst = Burst(8, 2048)
        assert (back_end.pairs[0].receive(burst), burst.lengths[0]) == (1, 60)
        assert back_end.pairs[0].counters.rx_oversize == 2
        assert [lender.words(1, slot)[:2] for slot in (0, 2, 3, 4)] == [(0, 1), (0, 2), (0, 3), (0, 4)]


@pytest.mark.parametrize("ring", [1, 2, 3, 100, 256])
def test_rings_of_any_size(ring: int) -> None:
    """A packed ring need not have a power of two; both directions go round it, a full ring at a time."""
    with packed_ends(ring=ring) as (lender, back_end):
        lender.attach(ANY_ORDER)
        pair, several = back_end.pairs[0], min(ring, 32)
        for turn in range(8):
            frames = [bytes([turn * 16 + number % 16]) * 60 for number in range(several)]
            lender.supply(1, *(_fill(lender, number, frame) for number, frame in enumerate(frames)))
            assert pair.receive_frames() == frames
            lender.supply(0, *(Buffer(BUFFERS + 2048 * number, 72, WRITE, number) for number in range(several)))
            assert pair.send_frames([*frames, bytes(60)]) == several
            assert lender.memory[0x10000 + 12 : 0x10000 + 72] == frames[0]


def test_stop_and_start() -> None:
    """GET_VRING_BASE names the place for SET_VRING_BASE, in both halves; buffers that were available meanwhile are not lost."""
    with packed_ends(ring=3) as (lender, back_end):
        lender.attach()
        for turn in range(7):
            slot, wrap = lender.at[1]
            half = slot | wrap << 15
            assert lender.stop(1) == half | half << 16
            lender.supply(1, _fill(lender, turn, bytes([turn]) * 60))
            assert back_end.pairs[0].receive_frames() == []
            lender.place(1, size=3, base=half if turn % 2 else half | half << 16)
            lender.start(1)
            lender.ask(VhostRequest.GET_FEATURES)
            assert back_end.pairs[0].receive_frames() == [bytes([turn]) * 60]


def test_buffers_read_but_not_used() -> None:
    """What an earlier back-end had read and not used is read again; a place where nothing is available is not believed."""
    with packed_ends() as (lender, back_end):
        lender.attach(ANY_ORDER)
        lender.supply(1, *(_fill(lender, number, bytes([number]) * 60) for number in range(4)))
        lender.stop(1)
        lender.place(1, base=0x8000_8002)
        lender.start(1)
        lender.ask(VhostRequest.GET_FEATURES)
        assert back_end.pairs[0].receive_frames() == [bytes([number]) * 60 for number in range(4)]
        lender.stop(1)
        lender.supply(1, _fill(lender, 9, bytes([9]) * 60))
        lender.place(1, base=0x8002_8004)
        lender.start(1)
        lender.ask(VhostRequest.GET_FEATURES)
        assert back_end.pairs[0].receive_frames() == [bytes([9]) * 60]


@pytest.mark.parametrize("base", [0x8000_8100, 0x8100_8000, 0x0000_7FFF])
def test_base_beyond_the_ring(base: int) -> None:
    """A base whose halves are not in the ring is refused when the ring starts."""
    with packed_ends() as (lender, back_end):
        lender.negotiate(PACKED)
        lender.share()
        lender.place(1, base=base)
        lender.start(1)
        assert lender.hung_up_on()
        failure = wait_until(back_end.why_failed)
        assert isinstance(failure, PeerError)
        assert failure.reason == BreachReason.BAD_RING


def test_base_of_the_past() -> None:
    """A base whose descriptor was used already, as QEMU names it after a back-end's death, is refused by name, not waited at."""
    with packed_ends() as (lender, back_end):
        lender.attach(ANY_ORDER)
        lender.supply(1, _fill(lender, 0, bytes(60)))
        assert back_end.pairs[0].receive_frames() == [bytes(60)]
        lender.stop(1)
        lender.place(1, base=FIRST)
        lender.start(1)
        assert lender.hung_up_on()
        failure = wait_until(back_end.why_failed)
        assert isinstance(failure, PeerError)
        assert failure.reason == BreachReason.BAD_RING
        assert "reset its card" in failure.what


@pytest.mark.parametrize(("flags", "notified"), [(0, True), (1, False), (2, True), (3, True), (0xFFFD, False)])
def test_notified_as_the_driver_wants(flags: int, notified: bool) -> None:
    """One notification for a burst, none when the driver disables them; values that were not agreed on count as all."""
    with packed_ends() as (lender, back_end):
        lender.attach()
        lender.set_event(0, flags, place=0x8003)
        lender.supply(0, *(Buffer(BUFFERS + 2048 * number, 2048, WRITE, number) for number in range(4)))
        assert back_end.pairs[0].send_frames([bytes(60)] * 2) == 2
        if notified:
            assert os.eventfd_read(lender.call[0]) == 1
        with pytest.raises(BlockingIOError):
            os.eventfd_read(lender.call[0])


def test_sleeping_until_a_kick() -> None:
    """A thread that sleeps asks for kicks and is woken by one; while no thread sleeps, or frames are there, none are wanted."""
    with packed_ends() as (lender, back_end):
        lender.attach()
        pair = back_end.pairs[0]
        assert not lender.wants_kicks(1)
        woken: list[bool] = []
        sleeper = threading.Thread(target=lambda: woken.append(pair.wait(60)))
        sleeper.start()
        wait_until(lambda: lender.wants_kicks(1))
        lender.supply(1, _fill(lender, 0, bytes(60)))
        os.eventfd_write(lender.kick[1], 1)
        sleeper.join(60)
        assert woken == [True]
        assert not lender.wants_kicks(1)
        assert pair.wait(60)
        assert pair.receive_frames() == [bytes(60)]
        assert pair.wait(0.01) is False


def test_memory_anew_while_running() -> None:
    """QEMU announces its memory again while rings run: they go on at their place in the new mapping, and the old one is gone."""
    with packed_ends(ring=5) as (lender, back_end):
        lender.attach()
        for turn in range(12):
            lender.supply(1, _fill(lender, turn, bytes([turn]) * 60))
            assert back_end.pairs[0].receive_frames() == [bytes([turn]) * 60]
            lender.share()
            lender.ask(VhostRequest.GET_FEATURES)
            assert lib.fp_guard_count() == 1


def test_split_after_packed() -> None:
    """Firmware with split rings and a kernel with packed ones may follow each other on one connection."""
    with packed_ends() as (lender, back_end):
        for turn in range(4):
            if turn % 2:
                lender.negotiate(PACKED)
                lender.at = [(0, 1), (0, 1)]
                lender.place(1, base=FIRST)
                lender.supply(1, _fill(lender, 0, bytes(60)))
            else:
                lender.negotiate(PACKED & ~Feature.RING_PACKED)
                lender.share()
                lender.memory[0:0x10000] = bytes(0x10000)
                lender.place(1)
                lender.describe(1, 0, _fill(lender, 0, bytes(60)))
                lender.set_index(1, 1)
            lender.start(1)
            lender.ask(VhostRequest.GET_FEATURES)
            assert back_end.pairs[0].receive_frames() == [bytes(60)]
            lender.stop(1)
            lender.memory[0:0x10000] = bytes(0x10000)


def test_not_offered() -> None:
    """A back-end may offer split rings only; a front-end that takes packed ones is refused."""
    ours, theirs = socket.socketpair()
    with Lender(theirs) as lender, BackEnd(ours, BackEndOptions(packed=False)) as back_end:
        assert not lender.ask(VhostRequest.GET_FEATURES) & Feature.RING_PACKED
        lender.negotiate(PACKED)
        assert lender.hung_up_on()
        failure = wait_until(back_end.why_failed)
        assert isinstance(failure, PeerError)
        assert failure.reason == BreachReason.BAD_FEATURES
