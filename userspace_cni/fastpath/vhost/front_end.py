"""The front-end of vhost-user: plays the part of a virtual machine or a DPDK application towards a switch.

A `FrontEnd` owns memory, virtqueues and one connection to a back-end. OVS has two kinds of ports: for a `dpdkvhostuser` port the
front-end connects; for a `dpdkvhostuserclient` port it listens and OVS connects, at once when the port is added and once a second
afterwards.

Must not be used on a socket that another front-end uses: OVS gives a `dpdkvhostuser` port to the newest connection, and cuts the
earlier one off. Needs neither root nor hugepages.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from userspace_cni.fastpath._native import ffi, lib
from userspace_cni.fastpath.fastpath_errors import (
    BreachReason,
    Closed,
    Disconnected,
    FastPathError,
    MemoryShort,
    MessageRefused,
    PeerError,
    SocketRefused,
    TimedOut,
)
from userspace_cni.fastpath.memory.hugepages import format_size, read_machine_pools
from userspace_cni.fastpath.memory.memfd import Memory
from userspace_cni.fastpath.memory.owned import own
from userspace_cni.fastpath.rings.queue_pair import QueuePair
from userspace_cni.fastpath.vhost.channel import Channel, Peer
from userspace_cni.fastpath.vhost.handshake import AgreedFeatures, Handshake, RingSetup, WantedFeatures
from userspace_cni.fastpath.vhost.offloads import (
    LARGE_QUEUE,
    LARGEST_FRAME,
    NO_OFFLOADS,
    QueueShape,
    require_offloads,
    sends_large,
    without_large,
)
from userspace_cni.fastpath.vhost.socket_paths import ListeningSocket, SocketAccess, connect
from userspace_cni.fastpath.vhost.vhost_messages import RING_SIZE_MAX, VRING_MAX, Feature, ProtocolFeature, Region
from userspace_cni.fastpath.vhost.vhost_port import VhostPort, keep_from_children
from userspace_cni.linux.closing import Closing
from userspace_cni.linux.instant import Instant

ATTACH_SECONDS: Final = 15.0
"""Time for an attachment: at the first one after its start ovs-vswitchd makes its mempools, which may take seconds."""
_CLOSE_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.02
_ROOM_MAX: Final = LARGEST_FRAME


@dataclass(frozen=True)
class FrontEndOptions:
    """The options of a front-end.

    `queue_pairs`: each a queue to send and one to receive. `queue_size`: descriptors of each, a power of two up to 32768. `room`:
    bytes of the longest frame that can be sent. `receive_room`: bytes of a frame that one buffer holds, None: as `room`; with
    `mergeable` a longer frame is spread over several. `in_order`: used when it is offered. `packed`: packed rings, which cost the
    switch more while a port is idle (True: they must be offered, None: used when they are, False: split ones). `hugepage_bytes`:
    a page size that the kernel has (2 << 20); when too few are free, usual pages are used, see `FrontEnd.fallback`.

    `offloads`: of `OFFLOADS`, used if they are offered: see `FrontEnd.features`. Frames then begin with a header, see
    `QueuePair.headers`. If large frames may be sent, the queue for them has 128 buffers of 64 KiB: 8.1 MiB for each pair.
    `headers`: also without offloads, for a switch that sends large frames to those who have not agreed to them, as OVS 3.1 may.
    """

    queue_pairs: int = 1
    queue_size: int = 256
    room: int = 1536
    receive_room: int | None = None
    mergeable: bool = False
    in_order: bool = True
    packed: bool | None = False
    hugepage_bytes: int | None = None
    offloads: Feature = NO_OFFLOADS
    headers: bool = False

    def __post_init__(self) -> None:
        size = self.queue_size
        if not 1 <= self.queue_pairs <= VRING_MAX // 2:
            raise ValueError(f"queue_pairs={self.queue_pairs}: 1 to {VRING_MAX // 2} are possible")
        if not 2 <= size <= RING_SIZE_MAX or size & (size - 1):
            raise ValueError(f"queue_size={size}: a power of two from 2 to {RING_SIZE_MAX} is possible")
        for name, room in (("room", self.room), ("receive_room", self.receive_room)):
            if room is not None and not 64 <= room <= _ROOM_MAX:
                raise ValueError(f"{name}={room}: 64 to {_ROOM_MAX} bytes are possible")
        if self.hugepage_bytes is not None:
            _require_page_size(self.hugepage_bytes)
        require_offloads(self.offloads, mergeable=self.mergeable)


def _require_page_size(size: int) -> None:
    """Raise ValueError unless `size` can be a size of huge pages; the kernel's sizes are known only where there is a sysfs."""
    possible = [pool.page_bytes for pool in read_machine_pools()]
    if size <= mmap.PAGESIZE or size & (size - 1) or (possible and size not in possible):
        known = " or ".join(f"{page} ({format_size(page)})" for page in possible) or f"powers of two above {mmap.PAGESIZE}"
        raise ValueError(f"hugepage_bytes={size}: huge pages of this kernel have {known} bytes")


class _ConnectionMaker(Protocol):
    """Makes connections to the back-end."""

    path: str
    exclusive: bool
    """No other process can have another connection for the same port."""

    def open(self, deadline: Instant, wake: int, *, again: bool) -> socket.socket | None: ...


class FrontEnd(VhostPort):
    """A front-end attached to a back-end; `connect` and `FrontEndListener.accept` make it. Closed at the end of a `with`.

    All methods may be called in any thread. `reattach` keeps the objects in `pairs`; frames in their rings are lost.
    """

    def __init__(self, source: _ConnectionMaker, options: FrontEndOptions) -> None:
        self._released = True  # until there is something to release
        self.options = options
        self.path = source.path
        self._source = source
        self._lifecycle = threading.RLock()
        self._closing = threading.RLock()
        self._closed = False
        self._attached = False
        self._agreed = AgreedFeatures(Feature(0), ProtocolFeature(0))
        self._channel: Channel | None = None
        self._memory: Memory | None = None
        self._offloads = options.offloads
        self._queues: list[Any] = []
        self._sizes: list[int] = []
        self._kicks: list[int] = []
        self._calls: list[int] = []
        self.pairs: tuple[QueuePair, ...] = ()
        self._wake = _eventfd(f"attaching to {source.path}")
        self._released = False
        keep_from_children(self)

    def __del__(self) -> None:
        if not self._released:
            self.warn_unclosed()
            for pair in self.pairs:
                pair.forget()
            if self._channel is not None:
                self._channel.shutdown()
            self.forget()

    @classmethod
    def connect(
        cls,
        path: str | os.PathLike[str],
        options: FrontEndOptions = FrontEndOptions(),
        timeout_s: float = ATTACH_SECONDS,
        *,
        trusted: str = "",
        connected: Callable[[], None] | None = None,
    ) -> FrontEnd:
        """Connect to a back-end that listens at `path`, as OVS does for a `dpdkvhostuser` port, within `timeout_s` seconds.

        Below `trusted`, when it is given, no link in the path is followed. A port that was added just now may take a second to
        answer, and OVS drops frames for it for some more milliseconds: only a received frame proves that its data path is there.
        `connected` is called when the connection stands and before the first message; an exception of it closes the connection.
        Raises SocketRefused, NegotiationFailed, TimedOut, Disconnected, PeerError, MemoryShort.
        """
        return cls._attached_to(_Connector(os.fspath(path), trusted, connected), options, timeout_s)

    @classmethod
    def _attached_to(cls, source: _ConnectionMaker, options: FrontEndOptions, timeout_s: float) -> FrontEnd:
        deadline = Instant.after(timeout_s)
        front_end = cls(source, options)
        try:
            front_end._attach_in_time(deadline, (MessageRefused,) if source.exclusive else (), again=False)
        except BaseException:
            front_end.close()
            raise
        return front_end

    @property
    def features(self) -> Feature:
        """The features that both sides agreed on."""
        return self._agreed.features

    @property
    def protocol_features(self) -> ProtocolFeature:
        """The protocol features that both sides agreed on."""
        return self._agreed.protocol

    @property
    def peer(self) -> Peer:
        """Process, user and group of the back-end. Raises Closed."""
        if self._channel is None or self._closed:
            raise Closed(f"front-end {self.path}", self.closed_as)
        return self._channel.read_peer()

    @property
    def fallback(self) -> str:
        """Why the memory is not in the requested huge pages; "" if it is, or if none were requested."""
        return self._memory.fallback if self._memory else ""

    @property
    def memory_bytes(self) -> int:
        """Size of the memory that is shared with the back-end, 0 before there is any."""
        return self._memory.size if self._memory else 0

    @property
    def control_fd(self) -> int:
        """The descriptor of the connection, whose hang-up ends waits; `reattach` keeps its number. -1 when closed."""
        return self._channel.fileno() if self._channel else -1

    @property
    def wake_fd(self) -> int:
        """An eventfd that is readable after `close`."""
        return self._wake

    def why_failed(self) -> FastPathError | None:
        """Why no frame can be carried: Closed, or Disconnected, after which `reattach` may help; None when frames can pass."""
        step = f"front-end {self.path}"
        if self._closed:
            return Closed(step, self.closed_as)
        if not self._attached:
            return Disconnected(step, "it is not attached", "reattach")
        if self._channel is None or self._channel.has_hung_up():
            return Disconnected(step, "the back-end hung up", "whether ovs-vswitchd runs, and whether the port is still there")
        return None

    def reattach(self, timeout_s: float = ATTACH_SECONDS) -> None:
        """Attach again, with empty rings: after the back-end hung up, or `detach`. Detaches first when it is still attached.

        Retries in that time while no back-end listens or connects, or one hangs up or refuses. Raises as `connect`, and Closed.
        """
        deadline = Instant.after(timeout_s)
        with self._lifecycle:
            with suppress(FastPathError):  # half of the time is kept for the next back-end, in case this one is stuck
                self.detach(deadline.remaining() / 2)
            self._attach_in_time(deadline, (Disconnected, MessageRefused), again=True)

    def detach(self, timeout_s: float = ATTACH_SECONDS) -> None:
        """Hang up: the port is down, and ready for the next connection. A listener's back-end first gives the rings back.

        A back-end to which we connected is not asked, because another front-end may have connected since: OVS (3.1) tells the two
        apart only by the path of their socket, and would stop the rings of the other. It stops ours when we hang up.

        Queues carry nothing until `reattach`. Does nothing when it is not attached. Raises TimedOut, Disconnected,
        NegotiationFailed, PeerError; it has hung up then too.
        """
        with self._lifecycle:
            for queue in self._queues:
                lib.fp_stop(queue)
            self._hang_up(timeout_s)

    def close(self) -> None:
        """Detach, end the waits of other threads, and free memory and descriptors. Any thread may call it, also again.

        It waits a second at most for the back-end's answers.
        """
        if self._released:
            return
        with self._closing:
            if not self._closed:
                self._closed = True
                os.eventfd_write(self._wake, 1)
        with self._lifecycle:
            if self._released:
                return
            self._released = True
            for queue in self._queues:
                lib.fp_close(queue)
            try:
                with suppress(FastPathError):
                    self._hang_up(_CLOSE_SECONDS)
            finally:
                self._release()

    def forget(self) -> None:
        if not self._released:
            self._closed = self._released = True
            self._release()

    def _release(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._memory is not None:
            self._memory.close()
        wake, self._wake = self._wake, -1
        for fd in (*self._kicks, *self._calls, wake):
            if fd >= 0:
                os.close(fd)
        self._kicks.clear()
        self._calls.clear()
        self._queues.clear()  # freed with the last reference, which a thread in a burst may have

    def _hang_up(self, seconds: float) -> None:
        channel, attached = self._channel, self._attached
        self._attached = False
        if channel is None:
            return
        try:
            if attached and self._source.exclusive and not channel.has_hung_up():
                Handshake(channel, Instant.after(seconds)).stop(self._agreed, len(self._queues))
        finally:
            channel.shutdown()

    def _attach_in_time(self, deadline: Instant, passing: tuple[type[FastPathError], ...], *, again: bool) -> None:
        """Attach; once more after an error that may pass, until the time is over: then a refusal is what is raised."""
        refused: MessageRefused | None = None
        while True:
            try:
                return self._attach(deadline, again=again)
            except TimedOut as late:
                raise (refused or late) from None
            except passing as error:
                if deadline.remaining() <= _RETRY_SECONDS:
                    raise
                refused = error if isinstance(error, MessageRefused) else None
            self._pause()

    def _attach(self, deadline: Instant, *, again: bool) -> None:
        with self._lifecycle:
            self._open(deadline, again=again)
            assert self._channel is not None  # noqa: S101 - for mypy
            try:
                self._agree(Handshake(self._channel, deadline, self._wake))
            except BaseException as error:
                self._channel.shutdown()
                if isinstance(error, PeerError):
                    error.look_at = error.look_at or self._advice(error.reason)
                raise
            self._attached = True
            for queue in self._queues:
                lib.fp_start(queue)

    def _advice(self, reason: BreachReason) -> str:
        if reason is BreachReason.NOT_A_REPLY:
            return f"the process at {self.path}: it is a front-end too, an application or another tap, and no switch"
        return f"the process that serves {self.path}: its version and its log"

    def _open(self, deadline: Instant, *, again: bool) -> None:
        if self._source.exclusive and not self._closed and not self._offloads:
            self._prepare(NO_OFFLOADS)  # before the back-end connects
        sock = None if self._closed else self._source.open(deadline, self._wake, again=again)
        if sock is None:
            raise Closed(f"front-end {self.path}", self.closed_as)
        if self._channel is None:
            self._channel = Channel(sock, fds_max=0)
        else:
            self._channel.adopt(sock)

    def _agree(self, handshake: Handshake) -> None:
        options = self.options
        wanted = WantedFeatures(options.queue_pairs, options.mergeable, options.in_order, options.packed, self._offloads)
        handshake.ask_for_features()
        if not wanted.offloads:
            self._prepare(NO_OFFLOADS)  # while the other side answers
        self._agreed = handshake.negotiate(wanted)
        self._prepare(self._agreed.features)
        kinds = (Feature.RING_PACKED, Feature.IN_ORDER, Feature.NET_MRG_RXBUF)
        packed, in_order, mergeable = (bool(self._agreed.features & kind) for kind in kinds)
        vrings, rings = [], ffi.new("uint64_t[3]")
        for queue, size, kick, call in zip(self._queues, self._sizes, self._kicks, self._calls, strict=True):
            lib.fp_stop(queue)
            lib.fp_driver_attach(queue, packed, in_order, mergeable, kick, call)
            lib.fp_driver_rings(queue, rings)
            vrings.append(RingSetup(size, rings[0], rings[1], rings[2], kick, call))
        assert self._memory is not None  # noqa: S101 - for mypy
        memory = self._memory
        handshake.start(self._agreed, Region(memory.address, memory.size, memory.address, 0), memory.fd, vrings)

    def _prepare(self, features: Feature) -> None:
        """Make memory and queues, unless an earlier attachment has made them."""
        if self.pairs:
            return
        options, pairs, large = self.options, self.options.queue_pairs, sends_large(features)
        if not large:  # nor later: the queues stay
            self._offloads = without_large(self._offloads)
        receiving = QueueShape(options.queue_size, options.receive_room or options.room)
        shapes = (receiving, QueueShape(LARGE_QUEUE, LARGEST_FRAME) if large else QueueShape(options.queue_size, options.room))
        sizes = [int(lib.fp_driver_bytes(*shape)) for shape in shapes]
        self._memory = Memory(pairs * sum(sizes), options.hugepage_bytes)
        offset = 0
        for _ in range(pairs):
            for transmit, (shape, size) in enumerate(zip(shapes, sizes, strict=True)):
                self._queues.append(self._queue(offset, shape, transmit))
                self._sizes.append(shape.size)
                offset += size
                self._kicks.append(_eventfd("making queues"))
                self._calls.append(-1 if transmit else _eventfd("making queues"))
        self.pairs = tuple(QueuePair(index, self._queues[2 * index + 1], self._queues[2 * index], self) for index in range(pairs))

    def _queue(self, offset: int, shape: QueueShape, transmit: int) -> Any:
        assert self._memory is not None  # noqa: S101 - for mypy
        queue = lib.fp_driver_new(self._memory.at(offset), *shape, transmit)
        if queue == ffi.NULL:
            raise MemoryShort("making queues", os.strerror(ffi.errno), "memory limit of this process")
        queue.headers = bool(self.options.offloads) or self.options.headers
        return own(queue, lib.fp_driver_free)

    def _pause(self) -> None:
        """Wait before a retry; `close` ends the wait."""
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        poller.poll(int(_RETRY_SECONDS * 1000))


class FrontEndListener(Closing):
    """Waits at `path` for back-ends, such as OVS with a `dpdkvhostuserclient` port. Listens from construction to `close`.

    Make it before the port is added: OVS then connects while it adds the port, otherwise up to a second later. Keep it as long as
    its front-ends may have to reattach; `close` removes the socket. `trusted`: a directory above `path`; below it no link is
    followed. `replace_dead`: remove a socket there that no process has. Raises SocketRefused for a living socket, a dead one
    without `replace_dead`, and another file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: FrontEndOptions = FrontEndOptions(),
        access: SocketAccess | None = None,
        *,
        trusted: str = "",
        replace_dead: bool = False,
    ) -> None:
        self.path = os.fspath(path)
        self.exclusive = True
        self.options = options
        self._socket = ListeningSocket(self.path, access, trusted=trusted, replace_dead=replace_dead)

    def accept(self, timeout_s: float = ATTACH_SECONDS) -> FrontEnd:
        """Wait for the next back-end, within `timeout_s` seconds; returns the front-end that is attached to it.

        One that refuses a message is awaited again: OVS has no memory for rings while it makes buffers, and comes again soon.
        Raises TimedOut, NegotiationFailed, Disconnected, PeerError, MemoryShort, and Closed when the listener is closed.
        """
        return FrontEnd._attached_to(self, self.options, timeout_s)  # noqa: SLF001 - two halves of one thing

    def fileno(self) -> int:
        """The listening descriptor, readable when a back-end has connected; -1 when closed."""
        return self._socket.fileno()

    def is_in_place(self) -> bool:
        """Whether connections to the path come here: False when another process has removed or replaced the socket."""
        return self._socket.is_in_place()

    def close(self) -> None:
        """Stop listening and remove the socket. Front-ends go on, and cannot reattach. May be called again."""
        self._socket.close()

    def open(self, deadline: Instant, wake: int, *, again: bool) -> socket.socket | None:  # noqa: ARG002 - it always waits
        """Wait for the next connection whose other end is still there; None when `wake` is readable."""
        while (sock := self._socket.accept(deadline, wake)) is not None:
            if not Channel(sock).has_hung_up():
                break
            sock.close()
        return sock


class _Connector:
    """Connects to a path; `again`: retries while no process listens there."""

    def __init__(self, path: str, trusted: str, connected: Callable[[], None] | None) -> None:
        self.path = path
        self.exclusive = False
        self._trusted = trusted
        self._connected = connected

    def open(self, deadline: Instant, wake: int, *, again: bool) -> socket.socket | None:
        poller = select.poll()
        poller.register(wake, select.POLLIN)
        while True:
            try:
                sock = connect(self.path, deadline, trusted=self._trusted)
                break
            except SocketRefused:
                if not again or deadline.remaining() <= _RETRY_SECONDS:
                    raise
            if poller.poll(int(_RETRY_SECONDS * 1000)):
                return None
        try:
            if self._connected:
                self._connected()
        except BaseException:
            sock.close()
            raise
        return sock


def _eventfd(step: str) -> int:
    try:
        return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    except OSError as error:
        raise MemoryShort(step, os.strerror(error.errno or 0), "limit of open files (ulimit -n)") from error
