"""A front-end that breaks the protocol: the connection ends with an error that names the fault, and nothing of it is left."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.lab.frames.lender import BYTES, GUEST, USER, Lender, connected
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath.fastpath_errors import BreachReason, PeerError
from userspace_cni.fastpath.vhost.back_end import BackEnd
from userspace_cni.fastpath.vhost.vhost_messages import (
    Feature,
    Flag,
    ProtocolFeature,
    Region,
    VhostRequest,
    VringAddress,
    VringFd,
    VringState,
    encode,
    pack_u64,
)

MEMORY = GUEST + 0x10000
WHOLE = Region(GUEST, BYTES, USER, 0)


@pytest.fixture
def ends() -> Iterator[tuple[Lender, BackEnd]]:
    """A front-end and our back-end; nothing of them is left afterwards."""
    with connected() as made:
        yield made


def _file(size: int, flags: int = os.O_RDWR) -> int:
    fd = os.memfd_create("x", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    again = os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)
    os.close(fd)
    return again


def _with(make: Callable[[], int], use: Callable[[Lender, int], None]) -> Callable[[Lender], None]:
    """An act with a descriptor, which is closed afterwards."""

    def act(lender: Lender) -> None:
        fd = make()
        use(lender, fd)
        os.close(fd)

    return act


def _pipe_end() -> int:
    ends = os.pipe()
    os.close(ends[0])
    return ends[1]


def _share(*regions: Region) -> Callable[[Lender], None]:
    return lambda lender: lender.share(*regions)


def _all(*acts: Callable[[Lender], None]) -> Callable[[Lender], None]:
    """Several acts, one after the other."""

    def act(lender: Lender) -> None:
        for each in acts:
            each(lender)

    return act


def _ready(lender: Lender) -> Lender:
    lender.negotiate()
    lender.share()
    return lender


def _started(then: Callable[[Lender], None]) -> Callable[[Lender], None]:
    """An act of a front-end whose rings carry frames."""

    def act(lender: Lender) -> None:
        lender.attach()
        then(lender)

    return act


def _ring_at(**where: object) -> Callable[[Lender], None]:
    def act(lender: Lender) -> None:
        _ready(lender).place(0, **where)  # type: ignore[arg-type]
        lender.start(0)

    return act


def _too_many_fds(lender: Lender) -> None:
    fds = [os.dup(lender.memfd) for _ in range(20)]
    lender.send(VhostRequest.SET_MEM_TABLE, struct.pack("=II4Q", 1, 0, *WHOLE), fds)
    for fd in fds:
        os.close(fd)


SAID: dict[str, tuple[BreachReason, Callable[[Lender], None]]] = {
    "empty region": (BreachReason.BAD_REGION, _share(WHOLE._replace(size=0))),
    "longer than its file": (BreachReason.BAD_REGION, _share(WHOLE._replace(size=BYTES + 1))),
    "beyond its file": (BreachReason.BAD_REGION, _share(WHOLE._replace(offset=1))),
    "offset out of this world": (BreachReason.BAD_REGION, _share(WHOLE._replace(offset=2**64 - 4096))),
    "huge region": (BreachReason.BAD_REGION, _share(WHOLE._replace(size=2**63))),
    "all addresses": (BreachReason.BAD_REGION, _share(WHOLE._replace(size=2**64 - 1))),
    "guest addresses wrap": (BreachReason.BAD_REGION, _share(WHOLE._replace(guest=2**64 - 4096))),
    "user addresses wrap": (BreachReason.BAD_REGION, _share(WHOLE._replace(user=2**64 - BYTES))),
    "the same region twice": (BreachReason.BAD_REGION, _share(WHOLE, WHOLE)),
    "guest addresses overlap": (BreachReason.BAD_REGION, _share(WHOLE, Region(GUEST + BYTES - 1, 4096, USER + BYTES, 0))),
    "user addresses overlap": (BreachReason.BAD_REGION, _share(WHOLE, Region(GUEST + BYTES, 4096, USER - 1, 0))),
    "no region": (BreachReason.BAD_VALUE, lambda it: it.send(VhostRequest.SET_MEM_TABLE, struct.pack("=II", 0, 0))),
    "nine regions": (
        BreachReason.BAD_VALUE,
        lambda it: it.send(VhostRequest.SET_MEM_TABLE, struct.pack("=II", 9, 0) + bytes(9 * 32)),
    ),
    "four billion regions": (
        BreachReason.BAD_VALUE,
        lambda it: it.send(VhostRequest.SET_MEM_TABLE, struct.pack("=II", 2**32 - 1, 0)),
    ),
    "table cut short": (
        BreachReason.BAD_SIZE,
        lambda it: it.send(VhostRequest.SET_MEM_TABLE, struct.pack("=II", 2, 0) + bytes(32)),
    ),
    "region without a file": (BreachReason.FDS_MISSING, lambda it: it.share(fds=[])),
    "region with two files": (BreachReason.FDS_EXTRA, lambda it: it.share(fds=[it.memfd] * 2)),
    "twenty files": (BreachReason.FDS_EXTRA, _too_many_fds),
    "memory in an eventfd": (BreachReason.BAD_FD, lambda it: it.share(fds=[it.kick[0]])),
    "memory in a socket": (BreachReason.BAD_FD, lambda it: it.share(fds=[it.sock.fileno()])),
    "memory in a device": (
        BreachReason.BAD_FD,
        _with(lambda: os.open("/dev/zero", os.O_RDWR), lambda it, fd: it.share(fds=[fd])),
    ),
    "memory in a directory": (BreachReason.BAD_FD, _with(lambda: os.open("/", os.O_RDONLY), lambda it, fd: it.share(fds=[fd]))),
    "memory in /proc": (
        BreachReason.BAD_FD,
        _with(lambda: os.open("/proc/self/mem", os.O_RDWR), lambda it, fd: it.share(fds=[fd])),
    ),
    "memory by name only": (BreachReason.BAD_FD, _with(lambda: os.open("/", os.O_PATH), lambda it, fd: it.share(fds=[fd]))),
    "memory for reading": (BreachReason.BAD_FD, _with(lambda: _file(BYTES, os.O_RDONLY), lambda it, fd: it.share(fds=[fd]))),
    "kick is a file": (BreachReason.BAD_FD, lambda it: it.send(VhostRequest.SET_VRING_KICK, VringFd(0).pack(), [it.memfd])),
    "call is a pipe": (
        BreachReason.BAD_FD,
        _with(_pipe_end, lambda it, fd: it.send(VhostRequest.SET_VRING_CALL, VringFd(0).pack(), [fd])),
    ),
    "err is a socket": (
        BreachReason.BAD_FD,
        lambda it: it.send(VhostRequest.SET_VRING_ERR, VringFd(0).pack(), [it.sock.fileno()]),
    ),
    "kick without descriptor": (BreachReason.FDS_MISSING, lambda it: it.send(VhostRequest.SET_VRING_KICK, VringFd(0).pack())),
    "kick that needs none": (
        BreachReason.FDS_EXTRA,
        lambda it: it.send(VhostRequest.SET_VRING_KICK, VringFd(0, False).pack(), it.kick[:1]),
    ),
    "question with a descriptor": (BreachReason.FDS_EXTRA, lambda it: it.send(VhostRequest.GET_FEATURES, b"", [it.memfd])),
    "vring that is not there": (
        BreachReason.BAD_VALUE,
        lambda it: it.send(VhostRequest.SET_VRING_NUM, VringState(2, 256).pack()),
    ),
    "vring 2**32 - 1": (BreachReason.BAD_VALUE, lambda it: it.send(VhostRequest.GET_VRING_BASE, VringState(2**32 - 1, 0).pack())),
    "kick for vring 255": (
        BreachReason.BAD_VALUE,
        lambda it: it.send(VhostRequest.SET_VRING_KICK, VringFd(255).pack(), it.kick[:1]),
    ),
    "kick with unknown bits": (
        BreachReason.BAD_VALUE,
        lambda it: it.send(VhostRequest.SET_VRING_KICK, pack_u64(1 << 9), it.kick[:1]),
    ),
    "ring of 0": (BreachReason.BAD_VALUE, lambda it: it.send(VhostRequest.SET_VRING_NUM, VringState(0, 0).pack())),
    "ring of 100": (BreachReason.BAD_VALUE, lambda it: it.send(VhostRequest.SET_VRING_NUM, VringState(0, 100).pack())),
    "ring of 65536": (BreachReason.BAD_VALUE, lambda it: it.send(VhostRequest.SET_VRING_NUM, VringState(0, 65536).pack())),
    "base 65536": (BreachReason.BAD_VALUE, lambda it: it.send(VhostRequest.SET_VRING_BASE, VringState(0, 65536).pack())),
    "ring with a log": (
        BreachReason.BAD_VALUE,
        lambda it: it.send(VhostRequest.SET_VRING_ADDR, VringAddress(0, 1, USER, USER, USER).pack()),
    ),
    "enabled twice as much": (BreachReason.BAD_VALUE, lambda it: it.send(VhostRequest.SET_VRING_ENABLE, VringState(0, 2).pack())),
    "descriptors outside": (BreachReason.BAD_RING, _ring_at(shift=(-(2**20), 0, 0))),
    "descriptors across the end": (BreachReason.BAD_RING, _ring_at(shift=(BYTES - 4080, 0, 0))),
    "avail outside": (BreachReason.BAD_RING, _ring_at(shift=(0, 2**40, 0))),
    "avail across the end": (BreachReason.BAD_RING, _ring_at(shift=(0, BYTES - 0x1000 - 514, 0))),
    "used outside": (BreachReason.BAD_RING, _ring_at(shift=(0, 0, -USER))),
    "used across the end": (BreachReason.BAD_RING, _ring_at(shift=(0, 0, BYTES - 0x2000 - 2048))),
    "larger than the memory": (BreachReason.BAD_RING, _ring_at(size=32768, shift=(BYTES // 2 + 0x1000, 0, 0))),
    "descriptors misaligned": (BreachReason.BAD_RING, _ring_at(shift=(8, 0, 0))),
    "avail misaligned": (BreachReason.BAD_RING, _ring_at(shift=(0, 1, 0))),
    "used misaligned": (BreachReason.BAD_RING, _ring_at(shift=(0, 0, 2))),
    "features that were not offered": (
        BreachReason.BAD_FEATURES,
        lambda it: it.negotiate(Feature.VERSION_1 | Feature.RING_EVENT_IDX),
    ),
    "protocol features that were not offered": (
        BreachReason.BAD_FEATURES,
        lambda it: it.send(VhostRequest.SET_PROTOCOL_FEATURES, pack_u64(ProtocolFeature.CONFIGURE_MEM_SLOTS)),
    ),
    "no VERSION_1": (
        BreachReason.BAD_FEATURES,
        _all(lambda it: it.negotiate(Feature.PROTOCOL_FEATURES), Lender.share, lambda it: it.place(0), lambda it: it.start(0)),
    ),
    "kick before memory": (BreachReason.BAD_ORDER, _all(Lender.negotiate, lambda it: it.place(0), lambda it: it.start(0))),
    "kick before addresses": (BreachReason.BAD_ORDER, lambda it: _ready(it).start(0)),
    "log that was not offered": (
        BreachReason.UNKNOWN_REQUEST,
        lambda it: it.send(VhostRequest.SET_LOG_BASE, struct.pack("=QQ", 4096, 0), [it.memfd]),
    ),
    "message that does not exist": (BreachReason.UNKNOWN_REQUEST, lambda it: it.send(4711)),
    "message 0": (BreachReason.UNKNOWN_REQUEST, lambda it: it.send(0)),
    "answer to nothing": (
        BreachReason.NOT_A_REQUEST,
        lambda it: it.send(VhostRequest.GET_FEATURES, pack_u64(0), flags=Flag.REPLY),
    ),
    "version 2": (BreachReason.BAD_VERSION, lambda it: it.send_bytes(struct.pack("=III", 1, 2, 0))),
    "unknown flags": (BreachReason.BAD_FLAGS, lambda it: it.send(VhostRequest.GET_FEATURES, flags=0x10)),
    "payload of 4 GiB": (BreachReason.OVERSIZED, lambda it: it.send_bytes(struct.pack("=III", 2, 1, 2**32 - 1))),
    "payload where none is due": (BreachReason.BAD_SIZE, lambda it: it.send(VhostRequest.GET_FEATURES, b"abc")),
    "payload too short": (BreachReason.BAD_SIZE, lambda it: it.send(VhostRequest.SET_FEATURES, b"abc")),
    "payload too long": (BreachReason.BAD_SIZE, lambda it: it.send(VhostRequest.SET_VRING_NUM, bytes(9))),
    "half a header": (BreachReason.SLOW, lambda it: it.send_bytes(b"\1\0\0\0\1")),
    "half a payload": (BreachReason.SLOW, lambda it: it.send_bytes(encode(2, bytes(8))[:15])),
    "half a payload with files": (BreachReason.SLOW, lambda it: it.send_bytes(encode(5, bytes(40))[:30], [it.memfd, it.kick[0]])),
    "half a header, then gone": (
        BreachReason.TRUNCATED,
        _all(lambda it: it.send_bytes(b"\1\0\0\0\1"), lambda it: it.sock.shutdown(socket.SHUT_WR)),
    ),
    "MTU 0": (BreachReason.BAD_VALUE, lambda it: it.send(VhostRequest.NET_SET_MTU, pack_u64(0))),
    "status 2**40": (BreachReason.BAD_VALUE, lambda it: it.send(VhostRequest.SET_STATUS, pack_u64(2**40))),
    "size while running": (
        BreachReason.BAD_ORDER,
        _started(lambda it: it.send(VhostRequest.SET_VRING_NUM, VringState(0, 512).pack())),
    ),
    "addresses while running": (
        BreachReason.BAD_ORDER,
        _started(lambda it: it.send(VhostRequest.SET_VRING_ADDR, VringAddress(1, 0, USER, USER, USER).pack())),
    ),
    "base while running": (
        BreachReason.BAD_ORDER,
        _started(lambda it: it.send(VhostRequest.SET_VRING_BASE, VringState(1, 7).pack())),
    ),
    "features while running": (BreachReason.BAD_ORDER, _started(lambda it: it.negotiate(Feature.VERSION_1))),
    "memory without the rings while running": (BreachReason.BAD_RING, _started(_share(WHOLE._replace(user=USER + 4096)))),
}


@pytest.mark.parametrize("case", SAID)
def test_what_cannot_be_said(ends: tuple[Lender, BackEnd], case: str) -> None:
    """Each message that breaks the protocol is named, and the connection is closed within moments."""
    lender, back_end = ends
    reason, act = SAID[case]
    act(lender)
    assert lender.hung_up_on()
    failure = wait_until(back_end.why_failed)
    assert isinstance(failure, PeerError), failure
    assert failure.reason == reason, failure
    with pytest.raises(PeerError):
        back_end.pairs[0].receive_frames()


def test_refusal_is_answered_when_an_answer_is_wanted(ends: tuple[Lender, BackEnd]) -> None:
    """A request that is not offered is refused with an answer, and the connection goes on."""
    lender, back_end = ends
    for request in (VhostRequest.SET_LOG_BASE, VhostRequest.POSTCOPY_ADVISE, VhostRequest.ADD_MEM_REG, 4711):
        assert lender.ask(request, bytes(8), [lender.memfd]) == 1
    assert lender.ask(VhostRequest.SET_OWNER) == 0
    assert back_end.is_alive()


def test_fault_is_answered_before_the_end(ends: tuple[Lender, BackEnd]) -> None:
    """A message that ends the connection is refused first when an answer is wanted, so that the front-end can name it too."""
    lender, _ = ends
    assert lender.ask(VhostRequest.SET_VRING_NUM, VringState(0, 3).pack()) == 1
    assert lender.hung_up_on()


def test_silent_front_end_has_no_effect(ends: tuple[Lender, BackEnd]) -> None:
    """A front-end that says nothing has no effect: bursts carry nothing, and closing takes no time."""
    _, back_end = ends
    assert back_end.pairs[0].receive_frames() == []
    assert back_end.pairs[0].send_frames([bytes(60)]) == 0
    assert not back_end.pairs[0].wait(0.01)
    assert back_end.is_alive()
    back_end.close()
    assert not back_end.is_alive()


def test_front_end_that_reads_no_answers() -> None:
    """A front-end that sends requests without end and reads no answer is disconnected, and blocks no thread of ours."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with BackEnd(ours) as back_end, theirs:
        theirs.setblocking(False)
        question = encode(VhostRequest.GET_FEATURES) * 64

        def ask() -> bool:
            with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                theirs.send(question)
            return back_end.why_failed() is not None

        wait_until(ask)


def test_disk_file_that_is_full_or_gone(ends: tuple[Lender, BackEnd]) -> None:
    """Memory in a file on disk is accepted too, and the file may be unlinked."""
    lender, back_end = ends
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        file.truncate(BYTES)
        lender.negotiate()
        lender.share(fds=[file.fileno()])
        assert lender.ask(VhostRequest.SET_OWNER) == 0
    assert back_end.is_alive()


def test_sealed_against_writing(ends: tuple[Lender, BackEnd]) -> None:
    """Memory that no process may write is refused by name."""
    lender, back_end = ends
    fd = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, BYTES)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    lender.share(fds=[fd])
    os.close(fd)
    assert lender.hung_up_on()
    failure = wait_until(back_end.why_failed)
    assert "sealed" in str(failure)
