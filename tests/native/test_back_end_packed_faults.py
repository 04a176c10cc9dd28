"""Packed rings and memory that a guest must not have: its user gets a named fault, the connection ends, and nothing is left."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.lab.frames.lender import BYTES, GUEST, INDIRECT, NEXT, USER, WRITE, Buffer
from tests.lab.frames.packed_lender import AVAIL, USED, PackedLender, packed_ends
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath.fastpath_errors import BreachReason, PeerError, RingFault
from userspace_cni.fastpath.vhost.back_end import BackEnd
from userspace_cni.fastpath.vhost.vhost_messages import VhostRequest

MEMORY = GUEST + 0x10000


@pytest.fixture
def ends() -> Iterator[tuple[PackedLender, BackEnd]]:
    """A front-end with packed rings and our back-end; nothing of them is left afterwards."""
    with packed_ends() as made:
        yield made


def _tx(*buffers: Buffer) -> Callable[[PackedLender], None]:
    return lambda it: it.supply(1, *buffers)


def _rx(*buffers: Buffer) -> Callable[[PackedLender], None]:
    return lambda it: it.supply(0, *buffers)


def _cut(vring: int, flags: int, stale: int) -> Callable[[PackedLender], None]:
    """A chain whose second descriptor has `stale` flags: it was not made available."""

    def act(it: PackedLender) -> None:
        it.describe(vring, 1, Buffer(MEMORY, 100, flags | stale))
        it.describe(vring, 0, Buffer(MEMORY, 5, flags | NEXT | AVAIL))

    return act


def _circle(vring: int, flags: int, length: int) -> Callable[[PackedLender], None]:
    """A chain of all descriptors, none of which is the last."""
    return lambda it: it.supply(vring, *[Buffer(MEMORY, length, flags | NEXT)] * it.ring)


RECEIVED: dict[str, tuple[BreachReason, Callable[[PackedLender], None]]] = {
    "chain into what is not available": (BreachReason.BAD_ID, _cut(1, 0, 0)),
    "chain into what is used": (BreachReason.BAD_ID, _cut(1, 0, AVAIL | USED)),
    "chain into the last turn": (BreachReason.BAD_ID, _cut(1, 0, USED)),
    "chain without an end": (BreachReason.LOOP, _circle(1, 0, 100)),
    "chain without an end or bytes": (BreachReason.LOOP, _circle(1, 0, 0)),
    "address 0": (BreachReason.BAD_ADDRESS, _tx(Buffer(0, 100))),
    "address before the memory": (BreachReason.BAD_ADDRESS, _tx(Buffer(GUEST - 1, 100))),
    "user address": (BreachReason.BAD_ADDRESS, _tx(Buffer(USER, 100))),
    "one byte across the end": (BreachReason.BAD_ADDRESS, _tx(Buffer(GUEST + BYTES - 99, 100))),
    "4 GiB": (BreachReason.BAD_ADDRESS, _tx(Buffer(MEMORY, 2**32 - 1))),
    "end of all addresses": (BreachReason.BAD_ADDRESS, _tx(Buffer(2**64 - 50, 100))),
    "second buffer outside": (BreachReason.BAD_ADDRESS, _tx(Buffer(MEMORY, 100), Buffer(0, 100))),
    "second part outside": (BreachReason.BAD_ADDRESS, _tx(Buffer(MEMORY, 100, NEXT), Buffer(0, 100))),
    "no room for the header": (BreachReason.BAD_LENGTH, _tx(Buffer(MEMORY, 11))),
    "no bytes at all": (BreachReason.BAD_LENGTH, _tx(Buffer(0, 0))),
    "indirect": (BreachReason.BAD_BUFFER, _tx(Buffer(MEMORY, 160, INDIRECT))),
    "for writing": (BreachReason.BAD_BUFFER, _tx(Buffer(MEMORY, 100, WRITE))),
    "second part for writing": (BreachReason.BAD_BUFFER, _tx(Buffer(MEMORY, 100, NEXT), Buffer(MEMORY, 100, WRITE))),
}

SENT: dict[str, tuple[BreachReason, Callable[[PackedLender], None]]] = {
    "chain into what is not available": (BreachReason.BAD_ID, _cut(0, WRITE, 0)),
    "chain into the last turn": (BreachReason.BAD_ID, _cut(0, WRITE, USED)),
    "chain without an end": (BreachReason.LOOP, _circle(0, WRITE, 1)),
    "chain without an end or bytes": (BreachReason.LOOP, _circle(0, WRITE, 0)),
    "outside": (BreachReason.BAD_ADDRESS, _rx(Buffer(GUEST + BYTES, 2048, WRITE))),
    "across the end": (BreachReason.BAD_ADDRESS, _rx(Buffer(GUEST + BYTES - 2047, 2048, WRITE))),
    "no room for the header": (BreachReason.BAD_LENGTH, _rx(Buffer(MEMORY, 11, WRITE), Buffer(MEMORY, 11, WRITE))),
    "for reading": (BreachReason.BAD_BUFFER, _rx(Buffer(MEMORY, 2048))),
    "indirect": (BreachReason.BAD_BUFFER, _rx(Buffer(MEMORY, 2048, WRITE | INDIRECT))),
    "last part outside": (BreachReason.BAD_ADDRESS, _rx(Buffer(MEMORY, 2048, WRITE | NEXT), Buffer(0, 1, WRITE))),
}


@pytest.mark.parametrize("case", RECEIVED)
def test_what_cannot_be_received(ends: tuple[PackedLender, BackEnd], case: str) -> None:
    """A forbidden buffer on a guest's transmit ring is named to the polling thread; the connection closes, the reason stays."""
    lender, back_end = ends
    lender.attach()
    reason, act = RECEIVED[case]
    act(lender)
    with pytest.raises(RingFault) as caught:
        back_end.pairs[0].receive_frames()
    _is_over(lender, back_end, caught.value, reason)


@pytest.mark.parametrize("case", SENT)
def test_what_cannot_be_sent_to(ends: tuple[PackedLender, BackEnd], case: str) -> None:
    """The same for its receive ring; nothing is written outside the memory that was lent."""
    lender, back_end = ends
    lender.attach()
    reason, act = SENT[case]
    act(lender)
    with pytest.raises(RingFault) as caught:
        back_end.pairs[0].send_frames([bytes(60)] * 2)
    _is_over(lender, back_end, caught.value, reason)


def test_nothing_is_used_when_a_burst_fails(ends: tuple[PackedLender, BackEnd]) -> None:
    """The good buffers before a bad one keep their flags, too: no part of such a burst is published."""
    lender, back_end = ends
    lender.attach()
    lender.supply(1, Buffer(MEMORY, 100, 0, 1), Buffer(MEMORY, 100, NEXT, 2), Buffer(MEMORY, 9, 0, 3), Buffer(0, 100, 0, 4))
    with pytest.raises(RingFault):
        back_end.pairs[0].receive_frames()
    assert [lender.words(1, slot) for slot in range(3)] == [(100, 1, AVAIL), (100, 2, NEXT | AVAIL), (9, 3, AVAIL)]


def _is_over(lender: PackedLender, back_end: BackEnd, fault: RingFault, reason: BreachReason) -> None:
    assert fault.reason == reason, fault
    assert lender.hung_up_on()
    failure = wait_until(back_end.why_failed)
    assert isinstance(failure, RingFault)
    assert failure.reason == reason
    with pytest.raises(RingFault):
        back_end.pairs[0].wait(60)
    with pytest.raises(RingFault):
        back_end.pairs[0].send_frames([bytes(60)])


PLACES: dict[str, tuple[int, int, int]] = {
    "descriptors across the end": (BYTES - 4096 + 16, 0, 0),
    "descriptors not aligned": (8, 0, 0),
    "driver area across the end": (0, BYTES - 0x1000 - 3, 0),
    "driver area outside": (0, BYTES, 0),
    "driver area not aligned": (0, 2, 0),
    "device area across the end": (0, 0, BYTES - 0x2000 - 2),
    "device area outside": (0, 0, -0x2001),
    "device area not aligned": (0, 0, 1),
}


@pytest.mark.parametrize("case", PLACES)
def test_rings_and_areas_that_cannot_be(ends: tuple[PackedLender, BackEnd], case: str) -> None:
    """Descriptors and both event areas have to lie in the memory that was lent, and be aligned."""
    lender, back_end = ends
    lender.negotiate(0x5_4000_0000)
    lender.share()
    lender.place(0, base=0x8000, shift=PLACES[case])
    lender.start(0)
    assert lender.hung_up_on()
    failure = wait_until(back_end.why_failed)
    assert isinstance(failure, PeerError)
    assert failure.reason == BreachReason.BAD_RING


@pytest.mark.parametrize("receives", [True, False])
def test_memory_shrunk_before_the_first_burst(ends: tuple[PackedLender, BackEnd], receives: bool) -> None:
    """A file that is truncated after it was mapped ends the connection with a named fault, whichever direction meets it first."""
    lender, back_end = ends
    lender.attach()
    os.ftruncate(lender.memfd, 0)
    with pytest.raises(RingFault) as caught:
        _ = back_end.pairs[0].receive_frames() if receives else back_end.pairs[0].send_frames([bytes(60)])
    _is_over(lender, back_end, caught.value, BreachReason.MEMORY_GONE)


def test_memory_shrunk_behind_the_rings(ends: tuple[PackedLender, BackEnd]) -> None:
    """When only the buffers are gone, no frame of zeros is returned in place of their frames."""
    lender, back_end = ends
    lender.attach()
    lender.supply(1, Buffer(MEMORY + 4096, 112))
    os.ftruncate(lender.memfd, 0x10000)
    with pytest.raises(RingFault) as caught:
        back_end.pairs[0].receive_frames()
    _is_over(lender, back_end, caught.value, BreachReason.MEMORY_GONE)


def test_memory_shrunk_while_a_thread_sleeps(ends: tuple[PackedLender, BackEnd]) -> None:
    """A thread that wakes up and tells the driver so finds the memory gone, and gets that fault."""
    lender, back_end = ends
    lender.attach()
    seen: list[BaseException] = []

    def sleep() -> None:
        try:
            while True:
                back_end.pairs[0].wait(60)
                back_end.pairs[0].receive_frames()
        except BaseException as error:
            seen.append(error)

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    wait_until(lambda: lender.wants_kicks(1))
    os.ftruncate(lender.memfd, 0)
    os.eventfd_write(lender.kick[1], 1)
    sleeper.join(60)
    assert [getattr(error, "reason", error) for error in seen] == [BreachReason.MEMORY_GONE]


def test_memory_shrunk_during_bursts(ends: tuple[PackedLender, BackEnd]) -> None:
    """Memory may go at any moment of a burst: here while another thread polls as fast as it can."""
    lender, back_end = ends
    lender.attach()
    seen: list[BaseException] = []
    polls = [0]

    def poll() -> None:
        try:
            while True:
                back_end.pairs[0].receive_frames()
                polls[0] += 1
        except BaseException as error:
            seen.append(error)

    poller = threading.Thread(target=poll)
    poller.start()
    for _ in range(20):
        lender.supply(1, *[Buffer(MEMORY, 0x8000)] * 128)
        wait_until(lambda: lender.ask(VhostRequest.GET_FEATURES))
    wait_until(lambda: polls[0] > 50)
    os.ftruncate(lender.memfd, 0)
    poller.join(60)
    assert [getattr(error, "reason", error) for error in seen] == [BreachReason.MEMORY_GONE]
