"""A connected vhost-user socket: whole messages with their descriptors, within a deadline.

The socket never blocks; all waiting is poll(2) with the time that is left. A message and its descriptors go out in one sendmsg,
because DPDK takes them from the read of the header. A received descriptor is either in the returned message or closed: no error
leaks one, and no program that is started meanwhile inherits one.

Must not know what a message means, and must not retry: after any failure the owner closes the channel.
"""

from __future__ import annotations

import array
import math
import os
import select
import socket
import struct
import sys
from collections.abc import Sequence
from typing import NamedTuple

from userspace_cni.fastpath.fastpath_errors import BreachReason, Closed, Disconnected, FastPathError, PeerError, TimedOut
from userspace_cni.fastpath.vhost.vhost_messages import (
    FDS_MAX,
    HEADER_BYTES,
    PAYLOAD_MAX,
    Header,
    VhostMessage,
    decode_header,
    name_of,
)
from userspace_cni.linux.closing import Closing
from userspace_cni.linux.instant import Instant

_FD_BYTES = struct.calcsize("i")
_CREDENTIALS = struct.Struct("3i")
_HUNG_UP = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL
_BUFFER = 16 * (HEADER_BYTES + 8)


class Peer(NamedTuple):
    """The process at the other end of a unix socket, when it connected or began to listen (SO_PEERCRED, unix(7))."""

    pid: int
    uid: int
    gid: int


class Channel(Closing):
    """One connection. `fds_max`: descriptors that a message from the other side may carry.

    With 0, for a front-end, several replies are read at once. Otherwise a message is read in two steps, header and payload, so
    that its descriptors are never mixed with those of the next message.
    """

    def __init__(self, sock: socket.socket, *, fds_max: int = FDS_MAX) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._fds_max = fds_max
        self._ahead = bytearray()

    def fileno(self) -> int:
        """The descriptor, for poll(2); -1 when closed."""
        return self._sock.fileno()

    def close(self) -> None:
        """Hang up. May be called again."""
        self._sock.close()

    def adopt(self, sock: socket.socket) -> None:
        """Replace the connection by `sock` under the same descriptor, so that a thread that polls it never polls another file."""
        number = self._sock.fileno()
        with sock:
            sock.setblocking(False)
            os.dup2(sock.fileno(), number, inheritable=False)
        self._ahead.clear()

    def shutdown(self) -> None:
        """Hang up and keep the descriptor: a thread that polls it sees the hang-up, and never polls another file."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other side hung up first, or the channel is closed

    def read_peer(self) -> Peer:
        """Process, user and group of the other end."""
        return Peer(*_CREDENTIALS.unpack(self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)))

    def has_hung_up(self) -> bool:
        """Whether the other side has closed its end; messages that it sent before may still be unread."""
        fd = self.fileno()
        return fd < 0 or bool(_ready(fd, select.POLLRDHUP, 0) & _HUNG_UP)

    def send(self, message: bytes, fds: Sequence[int] = (), deadline: Instant | None = None) -> None:
        """Send bytes of one or several messages; the descriptors go with the first. Raises Disconnected, TimedOut, Closed.

        None as deadline: one second, for answers of a back-end, for which there is always room while the front-end reads.
        """
        until = deadline or Instant.after(1.0)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        left = memoryview(message)
        while left:
            try:
                sent = self._sock.sendmsg([left], ancillary, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._await(select.POLLOUT, until, _step(message))
                continue
            except OSError as error:
                raise self._lost(_step(message), error) from error
            left, ancillary = left[sent:], []

    def receive(
        self, deadline: Instant, *, wake: int = -1, patience_s: float = math.inf, step: str = "receive"
    ) -> VhostMessage | None:
        """The next message, whole; its descriptors belong to the caller. None when the descriptor `wake` is readable.

        `deadline` is for the whole message, `patience_s` for its rest after its first byte. `step` names the wait in errors.
        Raises TimedOut, Disconnected, Closed, PeerError.
        """
        if not self._fds_max:
            return self._receive_ahead(deadline, wake, step)
        if not self._first_byte(deadline, wake, step):
            return None
        fds: list[int] = []
        try:
            until = deadline.within(patience_s) if patience_s < math.inf else deadline
            header = decode_header(self._exactly(HEADER_BYTES, fds, until, step))
            return self._whole(header, fds, until)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise

    def skip(self, message: bytes) -> bool:
        """Take `message` away if it is the next one, and has been read with an earlier one; returns whether it was."""
        if not self._ahead.startswith(message):
            return False
        del self._ahead[: len(message)]
        return True

    def _whole(self, header: Header, fds: list[int], until: Instant) -> VhostMessage:
        late: list[int] = []
        try:
            payload = self._exactly(header.size, late, until, name_of(header.request)) if header.size else b""
            if late:
                raise PeerError(BreachReason.FDS_EXTRA, name_of(header.request), "amid the payload")
        except BaseException:
            fds.extend(late)
            raise
        return VhostMessage(header.request, header.flags, bytes(payload), tuple(fds))

    def _first_byte(self, deadline: Instant, wake: int, step: str) -> bool:
        """Wait until there is something to read; False when `wake` is readable."""
        fd = self._fd(step)
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        if wake >= 0:
            poller.register(wake, select.POLLIN)
        ready = dict(poller.poll(deadline.milliseconds()))
        if not ready:
            raise TimedOut(step, "nothing came before the deadline")
        return wake not in ready

    def _exactly(self, size: int, fds: list[int], until: Instant, step: str) -> bytearray:
        """Read `size` bytes; descriptors among them are added to `fds`, also when an error is raised."""
        data = bytearray()
        while len(data) < size:
            try:
                chunk = self._take(size - len(data), fds, step)
            except BlockingIOError:
                self._await_rest(until, step, f"{len(data)} of {size} bytes")
                continue
            if not chunk:
                if not data and size == HEADER_BYTES:
                    raise Disconnected(step, "the other side hung up")
                raise PeerError(BreachReason.TRUNCATED, step, f"{len(data)} of {size} bytes")
            data += chunk
        return data

    def _await_rest(self, until: Instant, step: str, so_far: str) -> None:
        try:
            self._await(select.POLLIN, until, step)
        except TimedOut as late:
            raise PeerError(BreachReason.SLOW, step, so_far) from late

    def _take(self, size: int, fds: list[int], step: str) -> bytes:
        """Read what is there, at most `size` bytes."""
        room = socket.CMSG_SPACE((self._fds_max + 1) * _FD_BYTES) if self._fds_max else 0
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            raise
        except OSError as error:
            raise self._lost(step, error) from error
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(content[: len(content) - len(content) % _FD_BYTES])
                fds.extend(numbers)
        if flags & socket.MSG_CTRUNC or len(fds) > self._fds_max:
            raise PeerError(BreachReason.FDS_EXTRA, step, f"more than {self._fds_max}, or more than this process may open")
        return data

    def _receive_ahead(self, deadline: Instant, wake: int, step: str) -> VhostMessage | None:
        while (message := self._parsed()) is None:
            try:
                chunk = self._take(_BUFFER + PAYLOAD_MAX, [], step)
            except BlockingIOError:
                if not self._first_byte(deadline, wake, step):
                    return None
                continue
            if not chunk:
                if self._ahead:
                    raise PeerError(BreachReason.TRUNCATED, step, f"{len(self._ahead)} bytes of a message")
                raise Disconnected(step, "the other side hung up")
            self._ahead += chunk
        return message

    def _parsed(self) -> VhostMessage | None:
        """Take the first message out of what was read ahead; None while it is incomplete."""
        if len(self._ahead) < HEADER_BYTES:
            return None
        header = decode_header(self._ahead)
        end = HEADER_BYTES + header.size
        if len(self._ahead) < end:
            return None
        payload = bytes(self._ahead[HEADER_BYTES:end])
        del self._ahead[:end]
        return VhostMessage(header.request, header.flags, payload)

    def _await(self, events: int, until: Instant, step: str) -> None:
        if not _ready(self._fd(step), events, until.milliseconds()):
            raise TimedOut(step, "the other side takes or sends nothing until the deadline")

    def _fd(self, step: str) -> int:
        fd = self.fileno()
        if fd < 0:
            raise Closed(step, "the connection was closed by us")
        return fd

    def _lost(self, step: str, error: OSError) -> FastPathError:
        if self.fileno() < 0:
            return Closed(step, "the connection was closed by us")
        return Disconnected(step, f"the other side hung up ({os.strerror(error.errno or 0)})")


def _ready(fd: int, events: int, milliseconds: int | None) -> int:
    poller = select.poll()
    poller.register(fd, events)
    return next((found for _, found in poller.poll(milliseconds)), 0)


def _step(message: bytes) -> str:
    """The name of the first message in `message`, for errors."""
    return name_of(int.from_bytes(message[:4], sys.byteorder))
