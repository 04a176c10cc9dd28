"""The channel: complete messages or a named error, within the deadline, and no descriptor is lost."""

from __future__ import annotations

import array
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.node.belongings import descriptors, nothing_left
from userspace_cni.fastpath.fastpath_errors import BreachReason, Closed, Disconnected, FastPathError, PeerError, TimedOut
from userspace_cni.fastpath.vhost.channel import Channel, Peer
from userspace_cni.fastpath.vhost.vhost_messages import FDS_MAX, VhostMessage, VhostRequest, VringFd, encode, pack_u64
from userspace_cni.linux.instant import Instant

KICK = encode(VhostRequest.SET_VRING_KICK, VringFd(1).pack())


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    """A back-end's channel and the bare socket at its other end."""
    near, far = socket.socketpair()
    with Channel(near) as channel, far:
        yield channel, far


def received(channel: Channel, seconds: float = 60.0) -> VhostMessage:
    """The next message; its descriptors are closed."""
    message = channel.receive(Instant.after(seconds))
    assert message is not None
    for fd in message.fds:
        os.close(fd)
    return message


def send_with(sock: socket.socket, data: bytes, fds: list[int]) -> None:
    """Send bytes with descriptors."""
    sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def test_a_message_with_descriptors(ends: tuple[Channel, socket.socket]) -> None:
    """Header, payload and descriptors arrive as one message; the descriptors are new, close-on-exec and lead to the same."""
    channel, far = ends
    with nothing_left():
        Channel(far).send(KICK, (1,))
        message = channel.receive(Instant.after(60))
        assert message is not None
        assert (message.name, message.payload) == ("SET_VRING_KICK", VringFd(1).pack())
        (fd,) = message.fds
        assert os.path.samestat(os.fstat(fd), os.fstat(1))
        assert not os.get_inheritable(fd)
        os.close(fd)


def test_messages_sent_at_once_stay_apart(ends: tuple[Channel, socket.socket]) -> None:
    """Each of several messages that arrive together gets its own descriptors, however they were sent."""
    channel, far = ends
    with nothing_left():
        far.sendall(encode(VhostRequest.SET_OWNER) + encode(VhostRequest.GET_FEATURES))
        send_with(far, KICK + encode(VhostRequest.SET_FEATURES, pack_u64(3)), [0, 1])
        far.sendall(encode(VhostRequest.GET_QUEUE_NUM))
        send_with(far, KICK, [2])
        heard = [received(channel) for _ in range(6)]
    assert [(message.request, len(message.fds)) for message in heard] == [(3, 0), (1, 0), (12, 2), (2, 0), (17, 0), (12, 1)]


def test_a_message_in_pieces(ends: tuple[Channel, socket.socket]) -> None:
    """A message that comes byte by byte is awaited and whole."""
    channel, far = ends

    def trickle() -> None:
        for index in range(len(KICK)):
            far.sendall(KICK[index : index + 1])

    thread = threading.Thread(target=trickle)
    thread.start()
    assert received(channel).payload == VringFd(1).pack()
    thread.join()


@pytest.mark.parametrize("length", range(1, len(KICK)))
def test_a_message_that_is_cut_off(ends: tuple[Channel, socket.socket], length: int) -> None:
    """A hang-up within a message is a truncated one, and the descriptor that came with it is closed."""
    channel, far = ends
    send_with(far, KICK[:length], [0])
    far.shutdown(socket.SHUT_WR)
    before = descriptors()
    with pytest.raises(PeerError) as caught:
        channel.receive(Instant.after(60))
    assert caught.value.reason is BreachReason.TRUNCATED
    assert descriptors() == before


def test_a_message_that_is_never_finished(ends: tuple[Channel, socket.socket]) -> None:
    """A message that is begun and not finished fails after the patience for its rest."""
    channel, far = ends
    send_with(far, KICK[:15], [0])
    before = descriptors()
    with pytest.raises(PeerError) as caught:
        channel.receive(Instant.after(60), patience_s=0.01)
    assert caught.value.reason is BreachReason.SLOW
    assert caught.value.step == "SET_VRING_KICK"
    assert descriptors() == before


@pytest.mark.parametrize("count", [FDS_MAX + 1, FDS_MAX + 2, 250])
def test_too_many_descriptors(ends: tuple[Channel, socket.socket], count: int) -> None:
    """More descriptors than a message can have are refused, and those that came are closed."""
    channel, far = ends
    send_with(far, KICK, [0] * count)
    before = descriptors()
    with pytest.raises(PeerError) as caught:
        channel.receive(Instant.after(60))
    assert caught.value.reason is BreachReason.FDS_EXTRA
    assert descriptors() == before


def test_descriptors_amid_a_payload(ends: tuple[Channel, socket.socket]) -> None:
    """Descriptors come with the header; with later bytes they are refused and closed, together with the header's."""
    channel, far = ends
    send_with(far, KICK[:12], [0])
    send_with(far, KICK[12:], [1])
    before = descriptors()
    with pytest.raises(PeerError) as caught:
        channel.receive(Instant.after(60))
    assert caught.value.reason is BreachReason.FDS_EXTRA
    assert descriptors() == before


def test_descriptors_for_a_front_end() -> None:
    """A front-end expects none: what comes is refused and never opened."""
    near, far = socket.socketpair()
    with Channel(near, fds_max=0) as channel, far:
        send_with(far, KICK, [0])
        before = descriptors()
        with pytest.raises(PeerError) as caught:
            channel.receive(Instant.after(60))
        assert caught.value.reason is BreachReason.FDS_EXTRA
        assert descriptors() == before


def test_an_answer_that_was_expected() -> None:
    """One that was read with an earlier one is skipped if it is the expected one, byte for byte and whole; else it stays."""
    near, far = socket.socketpair()
    with Channel(near, fds_max=0) as channel, far:
        assert not channel.skip(KICK)
        far.sendall(encode(VhostRequest.SET_OWNER) + KICK + KICK[:-1])
        assert received(channel).name == "SET_OWNER"
        assert not channel.skip(encode(VhostRequest.SET_VRING_KICK, VringFd(2).pack()))
        assert channel.skip(KICK)
        assert not channel.skip(KICK)
        far.sendall(KICK[-1:])
        assert received(channel).payload == VringFd(1).pack()


@pytest.mark.parametrize("ahead", [False, True])
def test_an_impossible_header(ahead: bool) -> None:
    """A size beyond any message is refused at once; nothing is awaited for it."""
    near, far = socket.socketpair()
    with Channel(near, fds_max=0 if ahead else FDS_MAX) as channel, far:
        far.sendall(struct.pack("=III", VhostRequest.GET_CONFIG, 1, 2**32 - 1))
        with pytest.raises(PeerError) as caught:
            channel.receive(Instant.after(60))
    assert caught.value.reason is BreachReason.OVERSIZED


@pytest.mark.parametrize("ahead", [False, True])
def test_a_hang_up_between_messages(ahead: bool) -> None:
    """The end of a connection between messages is no fault; what came before is read first."""
    near, far = socket.socketpair()
    with Channel(near, fds_max=0 if ahead else FDS_MAX) as channel:
        assert not channel.has_hung_up()
        far.sendall(encode(VhostRequest.SET_OWNER))
        far.close()
        assert channel.has_hung_up()
        assert received(channel).request == VhostRequest.SET_OWNER
        with pytest.raises(Disconnected):
            channel.receive(Instant.after(60))
        with pytest.raises(Disconnected):
            channel.send(encode(VhostRequest.SET_OWNER))


@pytest.mark.parametrize("ahead", [False, True])
def test_silence(ahead: bool) -> None:
    """When nothing comes the deadline ends the wait, and the error names what was awaited."""
    near, far = socket.socketpair()
    with Channel(near, fds_max=0 if ahead else FDS_MAX) as channel, far:
        with pytest.raises(TimedOut, match="GET_FEATURES"):
            channel.receive(Instant.after(0.01), step="GET_FEATURES")
        far.sendall(encode(VhostRequest.SET_OWNER)[:5])
        with pytest.raises(FastPathError):
            channel.receive(Instant.after(0.01))


@pytest.mark.parametrize("ahead", [False, True])
def test_a_wake_ends_the_wait(ahead: bool) -> None:
    """A descriptor beside the connection ends the wait for a message without one."""
    near, far = socket.socketpair()
    wake = os.eventfd(1)
    with Channel(near, fds_max=0 if ahead else FDS_MAX) as channel, far:
        assert channel.receive(Instant.after(None), wake=wake) is None
    os.close(wake)


def test_a_peer_that_reads_nothing(ends: tuple[Channel, socket.socket]) -> None:
    """Sending to a peer that never reads ends with the deadline instead of blocking."""
    channel, _far = ends

    def fill() -> None:
        for _ in range(1000):
            channel.send(encode(VhostRequest.SET_LOG_BASE, bytes(4000)), deadline=Instant.after(0.01))

    with pytest.raises(TimedOut, match="SET_LOG_BASE"):
        fill()


def test_closed_by_us(ends: tuple[Channel, socket.socket]) -> None:
    """After close, once or twice, every method raises Closed."""
    channel, _far = ends
    channel.close()
    channel.close()
    assert channel.fileno() == -1
    assert channel.has_hung_up()
    with pytest.raises(Closed):
        channel.receive(Instant.after(1))
    with pytest.raises(Closed):
        channel.send(KICK)


def test_shutdown_ends_a_wait_in_another_thread(ends: tuple[Channel, socket.socket]) -> None:
    """A wait for a message ends when another thread shuts the channel down."""
    channel, _far = ends
    outcome: list[FastPathError] = []

    def wait() -> None:
        try:
            channel.receive(Instant.after(60))
        except FastPathError as error:
            outcome.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    channel.shutdown()
    thread.join(60)
    assert isinstance(outcome[0], Disconnected)


def test_another_connection_under_the_same_number(ends: tuple[Channel, socket.socket]) -> None:
    """An adopted connection has the number of the former, which is hung up; nothing of the former is read."""
    channel, far = ends
    far.sendall(KICK[:3])
    number = channel.fileno()
    near, other = socket.socketpair()
    with nothing_left():
        near_copy = near.dup()
        channel.adopt(near_copy)
    near.close()
    assert channel.fileno() == number
    with other:
        other.sendall(encode(VhostRequest.SET_OWNER))
    with pytest.raises(ConnectionResetError):
        far.recv(1)


def test_who_is_there(ends: tuple[Channel, socket.socket]) -> None:
    """`peer` returns process, user and group of the other end."""
    assert ends[0].read_peer() == Peer(os.getpid(), os.getuid(), os.getgid())


def test_deadlines() -> None:
    """Milliseconds are rounded up, never negative, and there are none for a deadline that never comes."""
    assert Instant.after(None).milliseconds() is None
    assert Instant.after(-1).milliseconds() == 0
    assert Instant.after(-1).remaining() == 0.0
    assert Instant.after(0.0005).milliseconds() in (0, 1)
    assert Instant.after(60).within(1).remaining() <= 1


@settings(max_examples=300)
@given(st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(0, 10)), max_size=6), st.booleans())
def test_random_bytes_with_descriptors(chunks: list[tuple[bytes, int]], ahead: bool) -> None:
    """Random bytes give messages or one named error, then the end; every descriptor is in a message or closed."""
    near, far = socket.socketpair()
    before = len(descriptors())
    with Channel(near, fds_max=0 if ahead else FDS_MAX) as channel:
        with far:
            for data, count in chunks:
                send_with(far, data, [0] * count) if count else far.sendall(data)
        with suppress(FastPathError):
            while True:
                received(channel)
        assert len(descriptors()) <= before - 1  # an earlier test's may be closed meanwhile
