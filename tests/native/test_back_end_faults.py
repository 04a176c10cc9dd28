"""Rings and memory that a guest must not have: its user gets a named fault, the connection ends, and nothing is left."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.lab.frames.lender import BYTES, GUEST, INDIRECT, NEXT, USER, WRITE, Buffer, Lender, connected
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath.fastpath_errors import BreachReason, PeerError, RingFault
from userspace_cni.fastpath.vhost.back_end import BackEnd
from userspace_cni.fastpath.vhost.vhost_messages import Region, VhostRequest

MEMORY = GUEST + 0x10000
WHOLE = Region(GUEST, BYTES, USER, 0)


@pytest.fixture
def ends() -> Iterator[tuple[Lender, BackEnd]]:
    """A front-end and our back-end; nothing of them is left afterwards."""
    with connected() as made:
        yield made


def _tx(lender: Lender, *chain: Buffer) -> None:
    """Offer one chain on the guest's transmit ring."""
    for index, buffer in enumerate(chain):
        lender.describe(1, index, buffer)
    lender.offer(1, 0)


def _rx(lender: Lender, *chain: Buffer, again: bool = False) -> None:
    for index, buffer in enumerate(chain):
        lender.describe(0, index, buffer)
    lender.offer(0, *[0] * (1 + again))


RECEIVED: dict[str, tuple[BreachReason, Callable[[Lender], None]]] = {
    "index far ahead": (BreachReason.INDEX_JUMP, lambda it: it.set_index(1, 257)),
    "index backwards": (BreachReason.INDEX_JUMP, lambda it: it.set_index(1, -1)),
    "head beyond the ring": (BreachReason.BAD_ID, lambda it: it.offer(1, 256)),
    "head 65535": (BreachReason.BAD_ID, lambda it: it.offer(1, 65535)),
    "next beyond the ring": (BreachReason.BAD_ID, lambda it: _tx(it, Buffer(MEMORY, 100, NEXT, 256))),
    "chain of one in a loop": (BreachReason.LOOP, lambda it: _tx(it, Buffer(MEMORY, 100, NEXT, 0))),
    "chain of two in a loop": (BreachReason.LOOP, lambda it: _tx(it, Buffer(MEMORY, 100, NEXT, 1), Buffer(MEMORY, 0, NEXT, 0))),
    "loop without bytes": (BreachReason.LOOP, lambda it: _tx(it, Buffer(0, 0, NEXT, 0))),
    "address 0": (BreachReason.BAD_ADDRESS, lambda it: _tx(it, Buffer(0, 100))),
    "address before the memory": (BreachReason.BAD_ADDRESS, lambda it: _tx(it, Buffer(GUEST - 1, 100))),
    "user address": (BreachReason.BAD_ADDRESS, lambda it: _tx(it, Buffer(USER, 100))),
    "one byte across the end": (BreachReason.BAD_ADDRESS, lambda it: _tx(it, Buffer(GUEST + BYTES - 99, 100))),
    "4 GiB": (BreachReason.BAD_ADDRESS, lambda it: _tx(it, Buffer(MEMORY, 2**32 - 1))),
    "end of all addresses": (BreachReason.BAD_ADDRESS, lambda it: _tx(it, Buffer(2**64 - 50, 100))),
    "second part outside": (BreachReason.BAD_ADDRESS, lambda it: _tx(it, Buffer(MEMORY, 100, NEXT, 1), Buffer(0, 100))),
    "no room for the header": (BreachReason.BAD_LENGTH, lambda it: _tx(it, Buffer(MEMORY, 11))),
    "no bytes at all": (BreachReason.BAD_LENGTH, lambda it: _tx(it, Buffer(MEMORY, 0))),
    "indirect": (BreachReason.BAD_BUFFER, lambda it: _tx(it, Buffer(MEMORY, 160, INDIRECT))),
    "for writing": (BreachReason.BAD_BUFFER, lambda it: _tx(it, Buffer(MEMORY, 100, WRITE))),
    "second part for writing": (
        BreachReason.BAD_BUFFER,
        lambda it: _tx(it, Buffer(MEMORY, 100, NEXT, 1), Buffer(MEMORY, 100, WRITE)),
    ),
}

SENT: dict[str, tuple[BreachReason, Callable[[Lender], None]]] = {
    "index far ahead": (BreachReason.INDEX_JUMP, lambda it: it.set_index(0, 1000)),
    "head beyond the ring": (BreachReason.BAD_ID, lambda it: it.offer(0, 999)),
    "next beyond the ring": (BreachReason.BAD_ID, lambda it: _rx(it, Buffer(MEMORY, 20, WRITE | NEXT, 9999))),
    "loop without bytes": (BreachReason.LOOP, lambda it: _rx(it, Buffer(0, 0, WRITE | NEXT, 0))),
    "outside": (BreachReason.BAD_ADDRESS, lambda it: _rx(it, Buffer(GUEST + BYTES, 2048, WRITE))),
    "across the end": (BreachReason.BAD_ADDRESS, lambda it: _rx(it, Buffer(GUEST + BYTES - 2047, 2048, WRITE))),
    "no room for the header": (BreachReason.BAD_LENGTH, lambda it: _rx(it, Buffer(MEMORY, 11, WRITE), again=True)),
    "for reading": (BreachReason.BAD_BUFFER, lambda it: _rx(it, Buffer(MEMORY, 2048))),
    "indirect": (BreachReason.BAD_BUFFER, lambda it: _rx(it, Buffer(MEMORY, 2048, WRITE | INDIRECT))),
}


@pytest.mark.parametrize("case", RECEIVED)
def test_what_cannot_be_received(ends: tuple[Lender, BackEnd], case: str) -> None:
    """A forbidden buffer on a guest's transmit ring is named to the polling thread; the connection closes, the reason stays."""
    lender, back_end = ends
    lender.attach()
    reason, act = RECEIVED[case]
    act(lender)
    with pytest.raises(RingFault) as caught:
        back_end.pairs[0].receive_frames()
    _is_over(lender, back_end, caught.value, reason)


@pytest.mark.parametrize("case", SENT)
def test_what_cannot_be_sent_to(ends: tuple[Lender, BackEnd], case: str) -> None:
    """The same for its receive ring; nothing is written outside the memory that was lent."""
    lender, back_end = ends
    lender.attach()
    reason, act = SENT[case]
    act(lender)
    with pytest.raises(RingFault) as caught:
        back_end.pairs[0].send_frames([bytes(60)])
    _is_over(lender, back_end, caught.value, reason)


def _is_over(lender: Lender, back_end: BackEnd, fault: RingFault, reason: BreachReason) -> None:
    assert fault.reason == reason, fault
    assert lender.hung_up_on()
    failure = wait_until(back_end.why_failed)
    assert isinstance(failure, RingFault)
    assert failure.reason == reason
    with pytest.raises(RingFault):
        back_end.pairs[0].wait(60)
    with pytest.raises(RingFault):
        back_end.pairs[0].send_frames([bytes(60)])


def test_fault_while_a_thread_sleeps(ends: tuple[Lender, BackEnd]) -> None:
    """A thread that sleeps until frames come is woken by the kick of a guest that has broken its ring, and gets the fault."""
    lender, back_end = ends
    lender.attach()
    seen: list[BaseException] = []

    def sleep() -> None:
        try:
            while back_end.pairs[0].wait(60):
                back_end.pairs[0].receive_frames()
        except BaseException as error:
            seen.append(error)

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    wait_until(lambda: lender.wants_kicks(1))
    lender.offer(1, 300)
    os.eventfd_write(lender.kick[1], 1)
    sleeper.join(60)
    assert [getattr(error, "reason", error) for error in seen] == [BreachReason.BAD_ID]


@pytest.mark.parametrize("receives", [True, False])
def test_memory_shrunk_before_the_first_burst(ends: tuple[Lender, BackEnd], receives: bool) -> None:
    """A file that is truncated after it was mapped ends the connection with a named fault, whichever direction meets it first."""
    lender, back_end = ends
    lender.attach()
    os.ftruncate(lender.memfd, 0)
    with pytest.raises(RingFault) as caught:
        _ = back_end.pairs[0].receive_frames() if receives else back_end.pairs[0].send_frames([bytes(60)])
    _is_over(lender, back_end, caught.value, BreachReason.MEMORY_GONE)


def test_memory_shrunk_behind_the_rings(ends: tuple[Lender, BackEnd]) -> None:
    """When only the buffers are gone, no frame of zeros is returned in place of their frames."""
    lender, back_end = ends
    lender.attach()
    _tx(lender, Buffer(MEMORY + 4096, 112))
    os.ftruncate(lender.memfd, 0x10000)
    with pytest.raises(RingFault) as caught:
        back_end.pairs[0].receive_frames()
    _is_over(lender, back_end, caught.value, BreachReason.MEMORY_GONE)


def test_memory_shrunk_before_the_rings_start(ends: tuple[Lender, BackEnd]) -> None:
    """The thread that applies messages survives truncated memory as well."""
    lender, back_end = ends
    lender.negotiate()
    lender.share()
    lender.place(0)
    lender.ask(VhostRequest.GET_FEATURES)
    os.ftruncate(lender.memfd, 0)
    lender.start(0)
    assert lender.hung_up_on()
    failure = wait_until(back_end.why_failed)
    assert isinstance(failure, PeerError)
    assert failure.reason == BreachReason.MEMORY_GONE


def test_memory_shrunk_during_bursts(ends: tuple[Lender, BackEnd]) -> None:
    """Memory may go at any moment of a burst: here while another thread polls as fast as it can."""
    lender, back_end = ends
    lender.attach()
    for index in range(256):
        lender.describe(1, index, Buffer(MEMORY, 0x8000))
    lender.offer(1, *range(256))
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
    wait_until(lambda: polls[0] > 50)
    os.ftruncate(lender.memfd, 0)
    poller.join(60)
    assert [getattr(error, "reason", error) for error in seen] == [BreachReason.MEMORY_GONE]


def test_one_front_end_dies_alone(ends: tuple[Lender, BackEnd]) -> None:
    """When the memory of one connection goes, other connections of the process go on."""
    lender, back_end = ends
    ours, theirs = socket.socketpair()
    with Lender(theirs) as other, BackEnd(ours) as healthy:
        lender.attach()
        other.attach()
        os.ftruncate(lender.memfd, 0)
        with pytest.raises(RingFault):
            back_end.pairs[0].receive_frames()
        _tx(other, Buffer(MEMORY, 112))
        assert healthy.pairs[0].receive_frames() == [bytes(100)]
        assert healthy.is_alive()


@pytest.mark.parametrize("which", ["call", "kick"])
def test_full_and_blocking_eventfd_blocks_no_burst(ends: tuple[Lender, BackEnd], which: str) -> None:
    """An eventfd that the front-end has filled and made blocking, after we took it, does not block a burst."""
    lender, back_end = ends
    lender.attach()
    fds = lender.call if which == "call" else lender.kick
    for fd in fds:
        os.eventfd_write(fd, 2**64 - 2)
        os.set_blocking(fd, True)
    for turn in range(3):
        _tx(lender, Buffer(MEMORY, 112))
        assert back_end.pairs[0].wait(60)
        assert back_end.pairs[0].receive_frames() == [bytes(100)], turn
    for fd in fds:
        with suppress(BlockingIOError):
            os.set_blocking(fd, False)
            os.eventfd_read(fd)
