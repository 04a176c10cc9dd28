"""Our front-end against our back-end: no switch, no root, no hugepages."""

from __future__ import annotations

import gc
import os
import random
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.frames.lender import GUEST
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath._native import lib
from userspace_cni.fastpath.fastpath_errors import Closed, Disconnected, MemoryShort, NegotiationFailed, TimedOut
from userspace_cni.fastpath.rings.burst import Burst
from userspace_cni.fastpath.rings.queue_pair import QueuePair
from userspace_cni.fastpath.vhost.back_end import BackEnd, BackEndListener, BackEndOptions
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener, FrontEndOptions
from userspace_cni.fastpath.vhost.vhost_messages import Feature

NOISE = random.Random(4).randbytes(2 * 9018)
BUFFERS = GUEST + 0x10000
KINDS = {
    "in order, merged": FrontEndOptions(room=9018, receive_room=2048, mergeable=True),
    "in order, whole": FrontEndOptions(room=9018),
    "free list, merged": FrontEndOptions(room=9018, receive_room=1536, mergeable=True, in_order=False),
    "free list, whole": FrontEndOptions(room=9018, in_order=False),
    "ring of 8": FrontEndOptions(room=9018, queue_size=8, receive_room=4096, mergeable=True),
}


@pytest.fixture
def place() -> Iterator[str]:
    with TemporaryDirectory(prefix="uc-") as directory:
        yield f"{directory}/socket"


Attach = Callable[..., tuple[FrontEnd, BackEnd]]


@pytest.fixture
def attach(place: str) -> Iterator[Attach]:
    """Make a front-end that is attached to a back-end; both are closed at the end, and nothing stays mapped."""
    with ExitStack() as stack:

        def make(options: FrontEndOptions | None = None, offered: BackEndOptions | None = None) -> tuple[FrontEnd, BackEnd]:
            options = options or FrontEndOptions()
            listener = stack.enter_context(BackEndListener(place, offered or BackEndOptions(queue_pairs=4)))
            accepted = stack.enter_context(ThreadPoolExecutor()).submit(listener.accept)
            front_end = stack.enter_context(FrontEnd.connect(place, options))
            back_end = stack.enter_context(accepted.result(60))
            back_end.wait_started(10, options.queue_pairs)
            return front_end, back_end

        yield make
    assert lib.fp_guard_count() == 0


def _carry(source: QueuePair, sink: QueuePair, frames: list[bytes]) -> list[bytes]:
    """Send all frames and collect those that arrive, without ever waiting for one end alone."""
    seen: list[bytes] = []
    sent = 0
    burst = Burst(32, 9216)
    end = time.monotonic() + 60
    while len(seen) < len(frames):
        assert time.monotonic() < end, f"{sent} sent, {len(seen)} of {len(frames)} seen"
        if sent < len(frames):
            sent += source.send(burst, burst.fill(frames[sent : sent + 32]))
        seen += sink.receive_frames()
    return seen


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_frames_of_every_length(attach: Attach, kind: str, packed: bool) -> None:
    """Frames of 14 to 9018 bytes arrive bit by bit as they were sent, in order, both ways, in both kinds of rings."""
    front_end, back_end = attach(replace(KINDS[kind], packed=packed))
    frames = [NOISE[length : 2 * length] for length in range(14, 9019)]
    ours, theirs = front_end.pairs[0], back_end.pairs[0]
    assert bool(back_end.features & Feature.NET_MRG_RXBUF) == KINDS[kind].mergeable
    assert bool(back_end.features & Feature.IN_ORDER) == KINDS[kind].in_order
    assert bool(back_end.features & Feature.RING_PACKED) == packed
    assert _carry(ours, theirs, frames) == frames
    assert _carry(theirs, ours, frames) == frames
    size = sum(map(len, frames))
    for counters in (ours.counters, theirs.counters):
        assert (counters.tx_frames, counters.rx_frames, counters.rx_oversize) == (len(frames), len(frames), 0)
        assert (counters.tx_bytes, counters.rx_bytes) == (size, size)


def test_in_order_is_not_offered(attach: Attach) -> None:
    """A back-end may decline IN_ORDER; the front-end does without it."""
    front_end, back_end = attach(FrontEndOptions(packed=None), BackEndOptions(mergeable=False, in_order=False))
    assert front_end.features == back_end.features == Feature.VERSION_1 | Feature.PROTOCOL_FEATURES | Feature.RING_PACKED
    frames = [NOISE[:length] for length in (14, 64, 1500)]
    assert _carry(back_end.pairs[0], front_end.pairs[0], frames) == frames


def test_several_queue_pairs(attach: Attach) -> None:
    """Queue pairs are independent: a frame that is sent on one arrives on the pair of the same number."""
    front_end, back_end = attach(FrontEndOptions(queue_pairs=4))
    assert back_end.list_started() == (0, 1, 2, 3)
    for index in range(4):
        assert front_end.pairs[index].send_frames([bytes([index]) * 60]) == 1
        assert back_end.pairs[index].send_frames([bytes([index + 9]) * 60]) == 1
    for index in range(4):
        assert back_end.pairs[index].receive_frames() == [bytes([index]) * 60]
        assert front_end.pairs[index].receive_frames() == [bytes([index + 9]) * 60]


@pytest.mark.parametrize(("offered", "step"), [(1, "GET_FEATURES: not offered: NET_MQ"), (2, "GET_QUEUE_NUM: .* at most 2")])
def test_more_queue_pairs_than_offered(place: str, offered: int, step: str) -> None:
    """A front-end learns that there is one queue pair from the features, or how many from GET_QUEUE_NUM; its error says so."""
    with BackEndListener(place, BackEndOptions(queue_pairs=offered)) as listener, ThreadPoolExecutor() as pool:
        accepted = pool.submit(listener.accept)
        with pytest.raises(NegotiationFailed, match=step):
            FrontEnd.connect(place, FrontEndOptions(queue_pairs=offered + 1))
        accepted.result(60).close()


def test_front_end_listens(place: str) -> None:
    """A back-end may connect, as to QEMU with server=on."""
    with FrontEndListener(place) as listener, ThreadPoolExecutor() as pool:
        accepted = pool.submit(listener.accept)
        with BackEnd.connect(place) as back_end, accepted.result(60) as front_end:
            back_end.wait_started(10)
            assert _carry(front_end.pairs[0], back_end.pairs[0], [bytes(60)]) == [bytes(60)]
            assert back_end.peer.pid == os.getpid()


def test_two_front_ends_at_one_socket(place: str) -> None:
    """A second connection is a back-end of its own, and changes nothing for the first."""
    with BackEndListener(place) as listener, ThreadPoolExecutor() as pool, ExitStack() as stack:
        ends = []
        for mark in (b"1", b"2"):
            accepted = pool.submit(listener.accept)
            front_end = stack.enter_context(FrontEnd.connect(place))
            back_end = stack.enter_context(accepted.result(60))
            back_end.wait_started(10)
            assert front_end.pairs[0].send_frames([mark * 60]) == 1
            ends.append((back_end, mark * 60))
        for back_end, frame in ends:
            assert back_end.pairs[0].receive_frames() == [frame]


def test_reattach(place: str) -> None:
    """After either end has gone, a new connection begins with empty rings; the former back-end names the reason for its end."""
    with BackEndListener(place) as listener, ThreadPoolExecutor() as pool:
        accepted = pool.submit(listener.accept)
        with FrontEnd.connect(place) as front_end:
            for turn in range(5):
                back_end = accepted.result(60)
                back_end.wait_started(10)
                assert _carry(front_end.pairs[0], back_end.pairs[0], [bytes([turn]) * 60]) == [bytes([turn]) * 60]
                assert front_end.pairs[0].send_frames([b"lost" * 20]) == 1
                if turn % 2:
                    back_end.close()
                accepted = pool.submit(listener.accept)
                front_end.reattach()
                with pytest.raises((Disconnected, Closed)):
                    back_end.pairs[0].wait(60)
                back_end.close()
            accepted.result(60).close()
    assert lib.fp_guard_count() == 0


def test_detach(attach: Attach) -> None:
    """After a front-end detaches, its rings carry nothing; its hang-up ends waits, with the reason by name."""
    front_end, back_end = attach()
    front_end.detach()
    with pytest.raises(Disconnected):
        back_end.pairs[0].wait(60)
    wait_until(lambda: not back_end.is_alive() and lib.fp_guard_count() == 0)
    with pytest.raises(Disconnected):
        back_end.pairs[0].send_frames([bytes(60)])


def test_waiting_for_frames(attach: Attach) -> None:
    """Each end sleeps until the other one sends, and is woken by its notification."""
    front_end, back_end = attach()
    for here, there in ((front_end, back_end), (back_end, front_end)):
        with ThreadPoolExecutor() as pool:
            woken = pool.submit(_next_frames, there.pairs[0])
            wait_until(woken.running)
            assert here.pairs[0].send_frames([b"x" * 60]) == 1
            assert woken.result(60) == [b"x" * 60]


def _next_frames(pair: QueuePair) -> list[bytes]:
    while pair.wait(60):
        if frames := pair.receive_frames():
            return frames
    return []


def test_no_frames_no_wake(attach: Attach) -> None:
    """A wait without frames ends when its time is over, and says so."""
    _, back_end = attach()
    assert back_end.pairs[0].wait(0.01) is False


@pytest.mark.parametrize("attached", [True, False])
def test_close_while_others_wait(attach: Attach, attached: bool) -> None:
    """Closing ends waits in other threads at once with Closed, whether rings run or not; closing again does nothing."""
    if attached:
        back_end = attach(FrontEndOptions(queue_pairs=2))[1]
        others: list[socket.socket] = []
    else:
        ours, theirs = socket.socketpair()
        others = [theirs]
        back_end = BackEnd(ours, BackEndOptions(queue_pairs=2))
    seen: list[BaseException] = []

    def sleep(pair: QueuePair) -> None:
        try:
            while True:
                pair.wait(None)
        except BaseException as error:
            seen.append(error)

    sleepers = [threading.Thread(target=sleep, args=(back_end.pairs[index % 2],)) for index in range(4)]
    for sleeper in sleepers:
        sleeper.start()
    closers = [threading.Thread(target=back_end.close) for _ in range(3)]
    for each in closers:
        each.start()
    for each in (*closers, *sleepers):
        each.join(60)
        assert not each.is_alive()
    back_end.close()
    assert [type(error) for error in seen] == [Closed] * 4
    assert back_end.control_fd == -1
    for other in others:
        assert other.recv(1) == b""
        other.close()


def test_close_while_others_carry(attach: Attach) -> None:
    """Closing amid bursts of other threads ends the bursts with Closed; memory is unmapped only when they have ended."""
    front_end, back_end = attach()
    seen: list[BaseException] = []
    turns = [0]

    def carry(call: Callable[[], object]) -> None:
        try:
            while True:
                call()
                turns[0] += 1
        except BaseException as error:
            seen.append(error)

    ours, theirs = front_end.pairs[0], back_end.pairs[0]
    calls: list[Callable[[], object]] = [
        theirs.receive_frames,
        lambda: theirs.send_frames([bytes(1500)] * 8),
        lambda: theirs.wait(0.001),
        ours.receive_frames,
        lambda: ours.send_frames([bytes(1500)] * 8),
    ]
    threads = [threading.Thread(target=carry, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    wait_until(lambda: turns[0] > 500 and theirs.counters.rx_frames and ours.counters.rx_frames)
    back_end.close()
    wait_until(lambda: len(seen) >= 3)
    front_end.close()
    for thread in threads:
        thread.join(60)
    assert {type(error) for error in seen} <= {Closed, Disconnected}


def test_silent_connections_are_cheap(place: str) -> None:
    """Many connections that say nothing cost the others no time, and all end when they are closed."""
    with BackEndListener(place) as listener, ExitStack() as stack:
        back_ends = []
        for _ in range(10):
            silent = stack.enter_context(socket.socket(socket.AF_UNIX))
            silent.connect(place)
            back_ends.append(stack.enter_context(listener.accept(60)))
        with ThreadPoolExecutor() as pool:
            accepted = pool.submit(listener.accept)
            with FrontEnd.connect(place) as front_end, accepted.result(60) as back_end:
                back_end.wait_started(10)
                assert _carry(front_end.pairs[0], back_end.pairs[0], [bytes(60)]) == [bytes(60)]
        assert all(each.is_alive() for each in back_ends)


def test_listener_is_closed_while_it_accepts(place: str) -> None:
    """accept() in another thread ends with Closed, and the socket is removed."""
    listener = BackEndListener(place)
    with ThreadPoolExecutor() as pool:
        accepted = pool.submit(listener.accept, None)
        wait_until(accepted.running)
        listener.close()
        with pytest.raises(Closed):
            accepted.result(60)
    assert not Path(place).exists()
    with pytest.raises(TimedOut), BackEndListener(place) as again:
        again.accept(0.01)


def test_no_more_descriptors(place: str) -> None:
    """A process without free descriptors gets an error that says so, keeps its connections, and recovers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with BackEndListener(place) as listener, ExitStack() as stack, ExitStack() as others:
        for _ in range(16):
            others.enter_context(socket.socket(socket.AF_UNIX)).connect(place)
        first = stack.enter_context(listener.accept(60))
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 6, hard))
        try:
            with pytest.raises(MemoryShort):
                _accept_all(listener, stack)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert first.is_alive()
        stack.enter_context(listener.accept(60))


def _accept_all(listener: BackEndListener, stack: ExitStack) -> None:
    for _ in range(15):
        stack.enter_context(listener.accept(60))


def test_bad_options() -> None:
    """Zero queue pairs, or more than the protocol can name, are an error of the caller's."""
    for pairs in (0, 129):
        with pytest.raises(ValueError, match="queue pairs"):
            BackEndOptions(queue_pairs=pairs)


def test_close_waits_for_no_collector(place: str) -> None:
    """Ends that were closed hold no descriptor, even before the garbage collector has run."""
    gc.disable()
    try:
        with BackEndListener(place) as listener:
            before = len(list(Path("/proc/self/fd").iterdir()))
            kept = []
            for _ in range(5):
                with ThreadPoolExecutor(1) as pool:
                    other = pool.submit(FrontEnd.connect, place)
                    with listener.accept() as back_end, other.result() as front_end:
                        kept.append((back_end, front_end))
            assert len(list(Path("/proc/self/fd").iterdir())) == before
    finally:
        gc.enable()
