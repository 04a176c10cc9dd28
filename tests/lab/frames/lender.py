"""A front-end whose messages and memory a test chooses byte by byte, so that it can act hostile."""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from userspace_cni.fastpath._native import lib
from userspace_cni.fastpath.vhost.back_end import BackEnd, BackEndOptions
from userspace_cni.fastpath.vhost.vhost_messages import (
    Feature,
    Flag,
    Region,
    VhostRequest,
    VringAddress,
    VringFd,
    VringState,
    encode,
    pack_table,
    pack_u64,
)
from userspace_cni.linux.closing import Closing

USER: Final = 0x7F00_0000_0000
"""The user address at which its memory begins."""
GUEST: Final = 0x1_0000_0000
"""The guest address at which its memory begins."""
BYTES: Final = 1 << 20
RING: Final = 256
NEXT, WRITE, INDIRECT = 1, 2, 4
FEATURES: Final = Feature.VERSION_1 | Feature.PROTOCOL_FEATURES | Feature.IN_ORDER | Feature.NET_MRG_RXBUF
RING_BYTES: Final = 0x4000
AVAIL_AT: Final = 0x1000
USED_AT: Final = 0x2000
DESC: Final = struct.Struct("=QIHH")
_ANSWER_S: Final = 60.0


class Buffer(NamedTuple):
    """A descriptor: `address` is a guest address."""

    address: int
    length: int
    flags: int = 0
    next: int = 0


class Lender(Closing):
    """A connected front-end with 1 MiB in a memfd: rings in the first 64 KiB, buffers wherever a test wants them."""

    def __init__(self, sock: socket.socket, size: int = BYTES) -> None:
        self.sock = sock
        sock.settimeout(_ANSWER_S)
        self.memfd = os.memfd_create("lender", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.memfd, size)
        self.memory = mmap.mmap(self.memfd, size)
        self.kick = [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(2)]
        self.call = [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(2)]
        self._offered = [0, 0]

    def close(self) -> None:
        """Hang up and free everything."""
        self.sock.close()
        self.memory.close()
        for fd in (self.memfd, *self.kick, *self.call):
            with suppress(OSError):
                os.close(fd)

    def send(self, request: int, payload: bytes = b"", fds: Sequence[int] = (), *, flags: int = 0) -> None:
        """Send one message that is well-formed except for its arguments."""
        self.send_bytes(encode(request, payload, flags), fds)

    def send_bytes(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send any bytes; a hang-up of the other side is no error."""
        with suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self.sock, [data], fds)

    def answer(self) -> tuple[int, int, bytes]:
        """Request, flags and payload of the answer; EOFError when the other side hung up."""
        header = self._exactly(12)
        request, flags, size = struct.unpack("=III", header)
        return request, flags, self._exactly(size)

    def ask(self, request: int, payload: bytes = b"", fds: Sequence[int] = ()) -> int:
        """Send with NEED_REPLY, or a request that has an answer; returns the number in the answer."""
        self.send(request, payload, fds, flags=Flag.NEED_REPLY)
        answered, flags, content = self.answer()
        assert (answered, flags & Flag.REPLY) == (request, Flag.REPLY)
        return int(struct.unpack("=Q", content)[0])

    def hung_up_on(self) -> bool:
        """Whether the other side has closed the connection, whatever it answered before."""
        try:
            while True:
                self.answer()
        except (EOFError, ConnectionResetError):
            return True

    def negotiate(self, features: int = FEATURES) -> None:
        self.send(VhostRequest.SET_OWNER)
        self.send(VhostRequest.SET_FEATURES, pack_u64(features))

    def share(self, *regions: Region, fds: Sequence[int] | None = None) -> None:
        """SET_MEM_TABLE: without arguments, the whole memory as one region."""
        regions = regions or (Region(GUEST, len(self.memory), USER, 0),)
        self.send(VhostRequest.SET_MEM_TABLE, pack_table(regions), [self.memfd] * len(regions) if fds is None else fds)

    def place(self, vring: int, *, size: int = RING, base: int = 0, shift: Sequence[int] = (0, 0, 0)) -> None:
        """Size, base and addresses of a ring at its usual place; `shift` is added to descriptors, avail and used."""
        start = USER + vring * RING_BYTES
        address = VringAddress(vring, 0, start + shift[0], start + USED_AT + shift[2], start + AVAIL_AT + shift[1])
        self.send(VhostRequest.SET_VRING_NUM, VringState(vring, size).pack())
        self.send(VhostRequest.SET_VRING_BASE, VringState(vring, base).pack())
        self.send(VhostRequest.SET_VRING_ADDR, address.pack())

    def start(self, vring: int) -> None:
        self.send(VhostRequest.SET_VRING_CALL, VringFd(vring).pack(), [self.call[vring]])
        self.send(VhostRequest.SET_VRING_KICK, VringFd(vring).pack(), [self.kick[vring]])
        self.send(VhostRequest.SET_VRING_ENABLE, VringState(vring, 1).pack())

    def attach(self, features: int = FEATURES) -> None:
        """Send everything up to two rings that carry frames, and wait for the answer to a last request."""
        self.negotiate(features)
        self.share()
        for vring in (0, 1):
            self.place(vring)
            self.start(vring)
        self.ask(VhostRequest.GET_FEATURES)

    def attach_again(self) -> None:
        for vring in (0, 1):
            self.send(VhostRequest.SET_VRING_ENABLE, VringState(vring, 1).pack())
        self.ask(VhostRequest.GET_FEATURES)

    def describe(self, vring: int, index: int, buffer: Buffer) -> None:
        DESC.pack_into(self.memory, vring * RING_BYTES + DESC.size * index, *buffer)

    def offer(self, vring: int, *heads: int) -> None:
        """Make buffers available by the numbers of their first descriptors."""
        start = vring * RING_BYTES + AVAIL_AT
        for head in heads:
            struct.pack_into("=H", self.memory, start + 4 + 2 * (self._offered[vring] % RING), head)
            self._offered[vring] += 1
        self.set_index(vring, self._offered[vring])

    def set_index(self, vring: int, index: int) -> None:
        struct.pack_into("=H", self.memory, vring * RING_BYTES + AVAIL_AT + 2, index & 0xFFFF)

    def silence(self, vring: int) -> None:
        """Ask for no notifications (VIRTQAVAIL_AT_F_NO_INTERRUPT)."""
        struct.pack_into("=H", self.memory, vring * RING_BYTES + AVAIL_AT, 1)

    def wants_kicks(self, vring: int) -> bool:
        """Whether the device asks to be notified."""
        return struct.unpack_from("=H", self.memory, vring * RING_BYTES + USED_AT) == (0,)

    def used(self, vring: int) -> list[tuple[int, int]]:
        """Number and length of all buffers that have been used, in order."""
        start = vring * RING_BYTES + USED_AT
        (count,) = struct.unpack_from("=H", self.memory, start + 2)
        return [struct.unpack_from("=II", self.memory, start + 4 + 8 * (index % RING)) for index in range(count)]

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.sock.recv(size - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data


_Kind = TypeVar("_Kind", bound=Lender)


def connected() -> AbstractContextManager[tuple[Lender, BackEnd]]:
    """A front-end and our back-end; see `connected_as`."""
    return connected_as(Lender)


@contextmanager
def connected_as(kind: Callable[[socket.socket], _Kind]) -> Iterator[tuple[_Kind, BackEnd]]:
    """A front-end and our back-end, with short deadlines; afterwards no new mapping and no new descriptor may be left."""
    before, guards = _held(), lib.fp_guard_count()
    ours, theirs = socket.socketpair()
    with kind(theirs) as lender:
        back_end = BackEnd(ours, BackEndOptions(patience_s=0.2))
        try:
            yield lender, back_end
        finally:
            back_end.close()
    assert lib.fp_guard_count() == guards
    assert not Counter(_held()) - Counter(before)


def _held() -> list[str]:
    """Sockets, eventfds and files of memory that this process has open."""
    kinds = []
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            kinds.append(str(fd.readlink()).partition(" ")[0])
    return sorted(kind for kind in kinds if kind.startswith(("socket:", "anon_inode:[eventfd]", "/memfd:lender")))
