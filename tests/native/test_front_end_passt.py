"""passt as the back-end of our front-end: user-mode networking, made for QEMU's guests, in a namespace of its own."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.frames.exchanges import PORT, transfer
from tests.lab.frames.taps import SECONDS, entered, socket_in
from tests.lab.peers.frame_guest import FrameGuest
from tests.lab.peers.passt_behind import GATEWAY, GUEST, Passt, outside_of_guest, passt
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import pause, wait_until
from tests.native.test_tap_offloads import MTU, pumped
from userspace_cni.fastpath import FrontEnd, FrontEndOptions
from userspace_cni.fastpath.fastpath_errors import Disconnected, NegotiationFailed, TimedOut
from userspace_cni.fastpath.tap import ETHERNET
from userspace_cni.fastpath.vhost.offloads import OFFLOADS
from userspace_cni.fastpath.vhost.vhost_messages import Feature, ProtocolFeature

NOBODY = 65534
OPTIONS = {"plain": FrontEndOptions(), "mergeable": FrontEndOptions(mergeable=True, receive_room=512, queue_size=64)}


@pytest.fixture(scope="module")
def outside() -> Iterator[str]:
    with outside_of_guest() as path:
        yield path


@pytest.fixture
def running(place: Path, outside: str) -> Iterator[Passt]:
    with passt(outside, place / "s") as made:
        yield made


@pytest.fixture(params=OPTIONS.values(), ids=list(OPTIONS))
def front_end(request: pytest.FixtureRequest, running: Passt) -> Iterator[FrontEnd]:
    with FrontEnd.connect(running.path, request.param) as made:
        yield made


def test_what_is_agreed(running: Passt, front_end: FrontEnd) -> None:
    """It has VERSION_1, MRG_RXBUF and acknowledgements, but neither IN_ORDER nor several queue pairs, which is said by name."""
    mergeable = front_end.options.mergeable
    wanted = Feature.VERSION_1 | Feature.PROTOCOL_FEATURES | (Feature.NET_MRG_RXBUF if mergeable else Feature(0))
    assert front_end.features == wanted
    assert front_end.protocol_features == ProtocolFeature.REPLY_ACK
    assert (front_end.peer.pid, front_end.peer.uid) == (running.process.pid, NOBODY)
    front_end.close()
    with pytest.raises(NegotiationFailed, match="GET_FEATURES: not offered: NET_MQ"):
        FrontEnd.connect(running.path, FrontEndOptions(queue_pairs=2))


def test_arp_dhcp_and_datagrams(running: Passt, front_end: FrontEnd) -> None:
    """The guest resolves its gateway, leases its address, pings, and exchanges datagrams with a program outside."""
    guest = FrameGuest(front_end, GUEST, GATEWAY)
    guest.resolve()
    assert guest.lease() == GUEST
    for size in (0, 1, 56, 1400):
        guest.ping(size)
    with socket_in(running.outside, kind=socket.SOCK_DGRAM) as program:
        program.bind(("127.0.0.1", PORT))

        def answer() -> None:
            for _ in lengths:
                data, sender = program.recvfrom(65536)
                program.sendto(data[::-1], sender)

        lengths = (0, 1, 17, 18, 19, 470, 471, 999, 1471, 1472)
        thread = threading.Thread(target=answer)
        thread.start()
        for length in lengths:
            data = random.randbytes(length)
            assert guest.datagram(PORT, data) == data[::-1]
        thread.join()


def test_tcp(running: Passt, front_end: FrontEnd) -> None:
    """A TCP connection to a program outside carries 100 kB there and back, and ends."""
    guest = FrameGuest(front_end, GUEST, GATEWAY)
    guest.resolve()
    text = random.randbytes(100_000)
    with socket_in(running.outside) as program:
        program.bind(("127.0.0.1", PORT))
        program.listen()
        heard: list[bytes] = []

        def echo() -> None:
            connection, _ = program.accept()
            with connection:
                connection.settimeout(SECONDS)
                while data := connection.recv(65536):
                    heard.append(data)
                    connection.sendall(data)

        thread = threading.Thread(target=echo)
        thread.start()
        assert guest.converse(PORT, text) == text
        thread.join()
        assert b"".join(heard) == text


def test_a_kernel_behind_a_tap(running: Passt) -> None:
    """A kernel's TCP gets through both ways: no frame reaches it with the checksum that passt has left out."""
    wanted = FrontEndOptions(room=MTU + ETHERNET, mergeable=True, offloads=OFFLOADS, headers=True)
    with netns() as pod, FrontEnd.connect(running.path, wanted) as front_end:
        with pumped(pod, front_end, front_end.features, f"{GUEST}/24") as pump:
            transfer(pod, running.outside, "127.0.0.1", 1 << 20, dialled=(GATEWAY, PORT))
            with socket_in(running.outside) as server, socket_in(pod) as client:
                server.bind(("127.0.0.1", PORT + 1))
                server.listen()
                client.connect((GATEWAY, PORT + 1))
                connection, _ = server.accept()
                with connection:
                    for size in (1, 10_000, 1, 50_000):
                        text = random.randbytes(size)
                        connection.sendall(text)
                        assert client.recv(size, socket.MSG_WAITALL) == text
            assert pump.carried.to_tap.dropped == 0
        counts = entered(pod, lambda: Path("/proc/thread-self/net/snmp").read_text())
        names, values = (line.split() for line in counts.splitlines() if line.startswith("Tcp:"))
        assert dict(zip(names, values, strict=True))["InCsumErrors"] == "0"


def test_reattached_stopped_and_killed(running: Passt, place: Path) -> None:
    """It serves the next attachment; stopped, it is named as silent; killed, as gone; and the next one is attached to."""
    with FrontEnd.connect(running.path) as front_end:
        guest = FrameGuest(front_end, GUEST, GATEWAY)
        gateway = guest.resolve()
        for _ in range(3):
            front_end.reattach(SECONDS)
            assert guest.resolve() == gateway
        front_end.detach()
        pause(running.process.pid)
        with pytest.raises(TimedOut, match="no answer before the deadline"):
            FrontEnd.connect(running.path, timeout_s=0.5)
    running.kill()
    Path(running.path).unlink()
    with passt(running.outside, place / "s") as second, FrontEnd.connect(second.path) as front_end:
        FrameGuest(front_end, GUEST, GATEWAY).resolve()
        second.kill()
        wait_until(lambda: not front_end.is_alive(), what="the hang-up")
        with pytest.raises(Disconnected):
            front_end.receive()
        Path(second.path).unlink()
        with passt(running.outside, place / "s"):
            front_end.reattach(SECONDS)
            FrameGuest(front_end, GUEST, GATEWAY).resolve()
