"""Our back-end and a front-end whose messages and memory are written by hand: what must work, and when."""

from __future__ import annotations

import os
import random
import socket
import threading

import pytest

from tests.lab.frames.lender import GUEST, NEXT, USER, WRITE, Buffer, Lender
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath._native import lib
from userspace_cni.fastpath.fastpath_errors import Disconnected, TimedOut
from userspace_cni.fastpath.rings.burst import Burst
from userspace_cni.fastpath.vhost.back_end import BackEnd, BackEndOptions
from userspace_cni.fastpath.vhost.vhost_messages import (
    Feature,
    ProtocolFeature,
    Region,
    VhostRequest,
    VringFd,
    VringState,
    pack_u64,
)

NOISE = random.Random(4).randbytes(2 * 9018)
BUFFERS = GUEST + 0x10000


def test_wait_started_names_what_is_missing() -> None:
    """A thread that waits for a front-end that never starts its rings gets an error with the last message."""
    ours, theirs = socket.socketpair()
    with Lender(theirs) as lender, BackEnd(ours) as back_end:
        lender.ask(VhostRequest.GET_FEATURES)
        with pytest.raises(TimedOut, match="GET_FEATURES"):
            back_end.wait_started(0.01)
        lender.close()
        with pytest.raises(Disconnected):
            back_end.wait_started(10)


def test_frames_wait_for_start_and_enable() -> None:
    """Rings carry nothing before their kick, nor while they are disabled; afterwards they go on at the same index."""
    ours, theirs = socket.socketpair()
    with Lender(theirs) as lender, BackEnd(ours) as back_end:
        lender.negotiate()
        lender.share()
        lender.place(1)
        lender.describe(1, 0, Buffer(BUFFERS, 72))
        lender.offer(1, 0)
        lender.ask(VhostRequest.GET_FEATURES)
        assert back_end.pairs[0].receive_frames() == []
        lender.start(1)
        lender.ask(VhostRequest.GET_FEATURES)
        assert back_end.pairs[0].receive_frames() == [bytes(60)]
        lender.ask(VhostRequest.SET_VRING_ENABLE, VringState(1, 0).pack())
        lender.offer(1, 0)
        assert back_end.pairs[0].receive_frames() == []
        lender.ask(VhostRequest.SET_VRING_ENABLE, VringState(1, 1).pack())
        assert back_end.pairs[0].receive_frames() == [bytes(60)]
        lender.send(VhostRequest.GET_VRING_BASE, VringState(1, 0).pack())
        assert VringState(1, 2).pack() == lender.answer()[2]
        lender.offer(1, 0)
        assert back_end.pairs[0].receive_frames() == []
        assert lender.used(1) == [(0, 0)] * 2


def test_rings_without_enabling() -> None:
    """Where bit 30 is not agreed on, the kick alone starts a ring."""
    ours, theirs = socket.socketpair()
    with Lender(theirs) as lender, BackEnd(ours) as back_end:
        lender.negotiate(Feature.VERSION_1)
        lender.share()
        for vring in (0, 1):
            lender.place(vring)
            lender.send(VhostRequest.SET_VRING_KICK, VringFd(vring).pack(), [lender.kick[vring]])
        back_end.wait_started(10)


def test_memory_anew_while_running() -> None:
    """QEMU announces its memory again while rings run: they go on at their index in the new mapping, and the old one is gone."""
    ours, theirs = socket.socketpair()
    with Lender(theirs) as lender, BackEnd(ours) as back_end:
        lender.attach()
        for turn in range(20):
            lender.describe(1, 0, Buffer(BUFFERS, 72))
            lender.offer(1, 0)
            assert back_end.pairs[0].receive_frames() == [bytes(60)]
            if turn % 2:
                half = len(lender.memory) // 2
                high = Region(GUEST + half, half, USER + half, half)
                lender.share(Region(GUEST, half, USER, 0), high)
            else:
                lender.share()
            lender.ask(VhostRequest.GET_FEATURES)
            assert lib.fp_guard_count() == 1 + turn % 2
        assert lender.used(1) == [(0, 0)] * 20
    wait_until(lambda: lib.fp_guard_count() == 0)


def test_eventfds_anew_while_running() -> None:
    """Another call or kick may come at any time; a thread that sleeps is woken by the new one."""
    ours, theirs = socket.socketpair()
    with Lender(theirs) as lender, BackEnd(ours) as back_end:
        lender.attach()
        woken: list[bool] = []
        sleeper = threading.Thread(target=lambda: woken.append(back_end.pairs[0].wait(60)))
        sleeper.start()
        wait_until(lambda: lender.wants_kicks(1))
        kick = os.eventfd(0)
        lender.ask(VhostRequest.SET_VRING_KICK, VringFd(1).pack(), [kick])
        lender.ask(VhostRequest.SET_VRING_CALL, VringFd(1).pack(), [lender.call[0]])
        lender.describe(1, 0, Buffer(BUFFERS, 72))
        lender.offer(1, 0)
        os.eventfd_write(kick, 1)
        sleeper.join(60)
        assert woken == [True]
        assert back_end.pairs[0].receive_frames() == [bytes(60)]
        assert os.eventfd_read(lender.call[0]) == 1
        os.close(kick)


def test_interrupts_only_where_they_are_wanted() -> None:
    """A guest is notified once per burst, and not at all when it has set NO_INTERRUPT."""
    ours, theirs = socket.socketpair()
    with Lender(theirs) as lender, BackEnd(ours) as back_end:
        lender.attach()
        for index in range(4):
            lender.describe(0, index, Buffer(BUFFERS + 2048 * index, 2048, WRITE))
        lender.offer(0, 0, 1)
        assert back_end.pairs[0].send_frames([bytes(60)] * 2) == 2
        assert os.eventfd_read(lender.call[0]) == 1
        lender.silence(0)
        lender.offer(0, 2, 3)
        assert back_end.pairs[0].send_frames([bytes(60)] * 2) == 2
        with pytest.raises(BlockingIOError):
            os.eventfd_read(lender.call[0])
        assert back_end.pairs[0].counters.kicks == 1


def test_header_over_several_descriptors() -> None:
    """A header may be cut anywhere, on both ways: here into single bytes."""
    ours, theirs = socket.socketpair()
    with Lender(theirs) as lender, BackEnd(ours) as back_end:
        lender.attach()
        lender.memory[0x10000:0x10100] = bytes(range(256))
        for vring, flags in ((0, WRITE), (1, 0)):
            for index in range(20):
                lender.describe(vring, index, Buffer(BUFFERS + index, 1, flags | NEXT, index + 1))
            lender.describe(vring, 20, Buffer(BUFFERS + 20, 200, flags))
        lender.offer(1, 0)
        assert back_end.pairs[0].receive_frames() == [bytes(range(12, 220))]
        lender.offer(0, 0)
        assert back_end.pairs[0].send_frames([bytes(range(100, 200))]) == 1
        assert lender.memory[0x10000:0x10070] == bytes(10) + b"\1\0" + bytes(range(100, 200))
        assert lender.used(0) == [(0, 112)]


def test_frame_over_several_buffers() -> None:
    """With MRG_RXBUF a frame fills buffers one after the other, and their number is in the first one's header."""
    ours, theirs = socket.socketpair()
    with Lender(theirs) as lender, BackEnd(ours) as back_end:
        lender.attach()
        for index in range(8):
            lender.describe(0, index, Buffer(BUFFERS + 256 * index, 256, WRITE))
        lender.offer(0, 0, 1)
        assert back_end.pairs[0].send_frames([NOISE[:1000]]) == 0  # nothing is used until there is room for all of it
        assert lender.used(0) == []
        lender.offer(0, 2, 3, 4)
        assert back_end.pairs[0].send_frames([NOISE[:1000]]) == 1
        assert lender.used(0) == [(0, 256), (1, 256), (2, 256), (3, 244)]
        assert lender.memory[0x10000 : 0x10000 + 1012] == bytes(10) + b"\4\0" + NOISE[:1000]


@pytest.mark.parametrize("features", [Feature.VERSION_1, Feature.VERSION_1 | Feature.NET_MRG_RXBUF])
def test_frame_that_never_fits(features: Feature) -> None:
    """A frame for which the guest never has room is dropped and counted, and the frames behind it go on."""
    ours, theirs = socket.socketpair()
    with Lender(theirs) as lender, BackEnd(ours) as back_end:
        lender.attach(features | Feature.PROTOCOL_FEATURES)
        for index in range(256):
            lender.describe(0, index, Buffer(BUFFERS, 200, WRITE))
        lender.offer(0, *range(256))
        assert back_end.pairs[0].send_frames([NOISE * 3 + bytes(11000), bytes(60)]) == 2
        assert lender.used(0) == [(0, 72)]
        assert back_end.pairs[0].counters.tx_refused == 1


def test_frame_longer_than_the_stride() -> None:
    """A frame for which the caller has no room is dropped and counted; its buffer goes back to the guest."""
    ours, theirs = socket.socketpair()
    with Lender(theirs) as lender, BackEnd(ours) as back_end:
        lender.attach()
        lender.describe(1, 0, Buffer(BUFFERS, 2012, NEXT, 1))
        lender.describe(1, 1, Buffer(BUFFERS, 2000))
        lender.describe(1, 2, Buffer(BUFFERS, 72))
        lender.describe(1, 3, Buffer(BUFFERS, 12))
        lender.offer(1, 0, 3, 2)
        burst = Burst(8, 2048)
        assert (back_end.pairs[0].receive(burst), burst.lengths[0]) == (1, 60)
        assert back_end.pairs[0].counters.rx_oversize == 1
        assert [number for number, _ in lender.used(1)] == [0, 3, 2]


def test_indexes_wrap() -> None:
    """Rings go on beyond index 65535, from any base."""
    ours, theirs = socket.socketpair()
    with Lender(theirs) as lender, BackEnd(ours) as back_end:
        lender.attach()
        lender.send(VhostRequest.GET_VRING_BASE, VringState(1, 0).pack())
        lender.answer()
        lender.set_index(1, 65535)
        lender.memory[0x4000 + 0x2000 + 2 : 0x4000 + 0x2000 + 4] = b"\xff\xff"  # used.idx
        lender.place(1, base=65535)
        lender.start(1)
        lender.ask(VhostRequest.GET_FEATURES)
        lender.describe(1, 0, Buffer(BUFFERS, 72))
        lender.set_index(1, 65537)
        assert back_end.pairs[0].receive_frames() == [bytes(60)] * 2
        lender.send(VhostRequest.GET_VRING_BASE, VringState(1, 0).pack())
        assert VringState(1, 1).pack() == lender.answer()[2]


def test_base_of_a_front_end_that_does_not_know() -> None:
    """A front-end whose last back-end has died may name index 0: the ring goes on behind the last buffer that was used."""
    ours, theirs = socket.socketpair()
    with Lender(theirs) as lender, BackEnd(ours) as back_end:
        lender.attach()
        lender.describe(1, 0, Buffer(BUFFERS, 72))
        lender.offer(1, 0, 0, 0)
        assert back_end.pairs[0].receive_frames() == [bytes(60)] * 3
        lender.send(VhostRequest.GET_VRING_BASE, VringState(1, 0).pack())
        lender.answer()
        lender.place(1, base=0)
        lender.start(1)
        lender.offer(1, 0)
        lender.ask(VhostRequest.GET_FEATURES)
        assert back_end.pairs[0].receive_frames() == [bytes(60)]
        assert len(lender.used(1)) == 4


def test_questions_and_relics() -> None:
    """Questions are answered, settings are kept, and old messages do what the protocol recommends."""
    ours, theirs = socket.socketpair()
    with Lender(theirs) as lender, BackEnd(ours, BackEndOptions(queue_pairs=3)) as back_end:
        assert lender.ask(VhostRequest.GET_QUEUE_NUM) == 3
        assert lender.ask(VhostRequest.GET_PROTOCOL_FEATURES) & 0x9 == 0x9  # MQ, REPLY_ACK
        assert lender.ask(VhostRequest.NET_SET_MTU, pack_u64(9000)) == 0
        assert lender.ask(VhostRequest.SEND_RARP, pack_u64(0x112233445566)) == 0
        assert lender.ask(VhostRequest.SET_STATUS, pack_u64(0xB)) == 0
        assert lender.ask(VhostRequest.GET_STATUS) == 0xB
        assert back_end.mtu == 9000
        lender.attach()
        back_end.wait_started(10)
        assert lender.ask(VhostRequest.RESET_OWNER) == 0
        assert back_end.list_started() == ()
        lender.attach_again()
        assert back_end.list_started() == (0,)
        assert lender.ask(VhostRequest.SET_STATUS, pack_u64(0)) == 0
        assert back_end.list_started() == ()


def test_one_pair_has_no_mq() -> None:
    """A device with one pair has MQ neither among virtio's features nor the protocol's: not all front-ends count pairs."""
    ours, theirs = socket.socketpair()
    with Lender(theirs) as lender, BackEnd(ours):
        assert not lender.ask(VhostRequest.GET_FEATURES) & Feature.NET_MQ
        assert not lender.ask(VhostRequest.GET_PROTOCOL_FEATURES) & ProtocolFeature.MQ
