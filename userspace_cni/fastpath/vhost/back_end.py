"""The back-end of vhost-user: the other end of a front-end such as a DPDK application's virtio_user, or QEMU.

A front-end lends its memory and says where the rings are; the back-end checks what it says, and moves frames. One thread per
connection waits for messages and applies them; the callers of the queue pairs move the data. Nothing that the front-end says or
does may crash this process or block it: an invalid message or ring closes the connection, with an error that names the cause.

Must not trust: messages are checked by `messages` and here, memory and descriptors by `lent_memory`, rings by device.c.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from userspace_cni.fastpath.fastpath_errors import Closed, Disconnected, FastPathError, MemoryShort, TimedOut
from userspace_cni.fastpath.rings.queue_pair import QueuePair
from userspace_cni.fastpath.vhost import socket_paths, vhost_messages
from userspace_cni.fastpath.vhost.channel import Channel, Peer
from userspace_cni.fastpath.vhost.device import Offer, VhostDevice
from userspace_cni.fastpath.vhost.offloads import NO_OFFLOADS, require_offloads
from userspace_cni.fastpath.vhost.socket_paths import ListeningSocket, SocketAccess
from userspace_cni.fastpath.vhost.vhost_messages import VRING_MAX, Feature
from userspace_cni.fastpath.vhost.vhost_port import VhostPort, keep_from_children
from userspace_cni.linux.closing import Closing
from userspace_cni.linux.instant import Instant
from userspace_cni.linux.unix_sockets import hung_up

_PATIENCE_S: Final = 5.0
_PAIRS_MAX: Final = VRING_MAX // 2


@dataclass(frozen=True)
class BackEndOptions:
    """What is offered. `queue_pairs`: the most that a front-end may use; `patience_s`: seconds for the rest of a begun message.

    `mergeable`: a frame may be spread over several buffers of the guest's, as jumbo frames need. `packed`: packed virtqueues,
    which a front-end may decline; DPDK and QEMU use them only if they are told to. `offloads`: of `OFFLOADS`; frames then begin
    with a header, see `QueuePair.headers`, whatever the front-end agrees to.
    """

    queue_pairs: int = 1
    mergeable: bool = True
    in_order: bool = True
    packed: bool = True
    patience_s: float = _PATIENCE_S
    offloads: Feature = NO_OFFLOADS

    def __post_init__(self) -> None:
        if not 1 <= self.queue_pairs <= _PAIRS_MAX:
            raise ValueError(f"{self.queue_pairs} queue pairs, 1 to {_PAIRS_MAX} are possible")
        require_offloads(self.offloads, mergeable=self.mergeable)


class BackEnd(VhostPort):
    """One front-end that is connected. Its `pairs` carry nothing until the front-end has started their rings.

    pairs[i].send() goes to the guest's receive queue i, pairs[i].receive() takes from its transmit queue i. When the connection
    has ended, every call raises the reason, and `why_failed` returns it. Any thread may close it at any time.
    The object owns `sock`, also when MemoryShort is raised.
    """

    def __init__(self, sock: socket.socket, options: BackEndOptions | None = None, path: str = "") -> None:
        options = options or BackEndOptions()
        self.path = path
        self._step = f"back-end {path}".rstrip()
        self._patience_s = options.patience_s
        self._channel = Channel(sock)
        self._alarm = -1
        self._changed = threading.Condition()
        self._failure: FastPathError | None = None
        self._closing = False
        self._forgotten = False
        try:
            self._alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            offer = Offer(options.queue_pairs, options.mergeable, options.in_order, options.packed, options.offloads)
            self._device = VhostDevice(offer, self._alarm)
            self.peer: Peer = self._channel.read_peer()
            rings = self._device.rings
            self.pairs = tuple(
                QueuePair(index, rings[2 * index].queue, rings[2 * index + 1].queue, self) for index in range(options.queue_pairs)
            )
            self._thread = threading.Thread(target=self._serve, name="vhost-user back-end", daemon=True)
            self._thread.start()
            keep_from_children(self)
        except BaseException as error:
            self._channel.close()
            if self._alarm >= 0:
                os.close(self._alarm)
            if isinstance(error, OSError | RuntimeError):
                what = "no descriptor or thread for another connection"
                raise MemoryShort(self._step, what, f"limits of this process, ulimit -n and -u: {error}") from error
            raise

    @classmethod
    def connect(
        cls, path: str | os.PathLike[str], options: BackEndOptions | None = None, *, timeout_s: float = 15.0, trusted: str = ""
    ) -> Self:
        """Connect to a front-end that listens at `path` (QEMU with server=on, virtio_user with server=1).

        Raises SocketRefused, TimedOut, MemoryShort. `trusted`: a directory above `path`; below it no link is followed.
        """
        path = os.fspath(path)
        return cls(socket_paths.connect(path, Instant.after(timeout_s), trusted=trusted), options, path)

    @property
    def control_fd(self) -> int:
        """The connected socket, -1 when closed."""
        return self._channel.fileno()

    @property
    def wake_fd(self) -> int:
        """An eventfd that is readable once this is being closed."""
        return self._alarm

    @property
    def features(self) -> Feature:
        """The offered features that the front-end has agreed to."""
        return self._device.features

    @property
    def mtu(self) -> int | None:
        """The MTU that the front-end has sent with NET_SET_MTU, bytes; None before."""
        return self._device.mtu

    def why_failed(self) -> FastPathError | None:
        """Why the connection cannot be used any more: PeerError, Disconnected, Closed; None while it can be used."""
        if self._failure is None and self._closing:
            return Closed(self._step, self.closed_as)
        return self._failure or self._fault()

    def list_started(self) -> tuple[int, ...]:
        """Numbers of the queue pairs of which both rings carry frames."""
        return self._device.list_started()

    def wait_started(self, timeout_s: float | None = 15.0, pairs: int = 1) -> None:
        """Wait until `pairs` queue pairs carry frames. Raises TimedOut, or the failure of the connection."""
        deadline = Instant.after(timeout_s)
        with self._changed:
            while len(self.list_started()) < pairs:
                if failure := self.why_failed():
                    raise failure
                left = deadline.remaining()
                if not left:
                    what = f"{len(self.list_started())} of {pairs} queue pairs started; the last message was {self._device.last}"
                    raise TimedOut("wait for the front-end", what, "whether its driver runs: a guest starts rings, not QEMU")
                self._changed.wait(min(left, threading.TIMEOUT_MAX))

    def close(self) -> None:
        """Hang up and free everything; waits in other threads end with Closed. May be called again."""
        if self._forgotten:
            return
        with self._changed:
            self._closing = True
            self._raise_alarm()
            self._channel.shutdown()  # with the lock: the thread closes the descriptor, whose number may then be another file's
        if threading.current_thread() is not self._thread:
            self._thread.join()
            with self._changed:
                alarm, self._alarm = self._alarm, -1
            if alarm >= 0:
                os.close(alarm)

    def forget(self) -> None:
        self._closing = self._forgotten = True
        self._channel.close()
        alarm, self._alarm = self._alarm, -1
        if alarm >= 0:
            os.close(alarm)

    def _serve(self) -> None:
        """The thread: apply messages until the connection ends, then free everything."""
        failure = FastPathError(self._step, "the thread that applies messages has died", "its traceback on stderr")
        try:
            failure = self._apply_messages()
        except FastPathError as error:
            failure = error
        except OSError as error:
            failure = MemoryShort(self._step, str(error), "limits of this process")
        finally:
            self._end(failure)

    def _apply_messages(self) -> FastPathError:
        never = Instant.after(None)
        while True:
            message = self._channel.receive(never, wake=self._alarm, patience_s=self._patience_s, step=self._step)
            if message is None:
                return self._fault() or Closed(self._step, self.closed_as)
            try:
                answer = self._device.apply(message)
            except FastPathError:
                if message.need_reply:
                    with suppress(FastPathError):
                        self._channel.send(vhost_messages.acknowledge(message, refused=True))
                raise
            if answer:
                self._channel.send(answer)
            with self._changed:
                self._changed.notify_all()

    def _fault(self) -> FastPathError | None:
        """How the front-end broke its rings; one that has gone may make them anew for its next connection, and breaks none."""
        fault = self._device.why_broken()
        return Disconnected(self._step, "the other side hung up") if fault and hung_up(self.control_fd) else fault

    def _end(self, failure: FastPathError) -> None:
        """Record `failure` and wake all waiters, so that they leave the queues; then free what the front-end lent."""
        with self._changed:
            if self._failure is None and not self._closing:
                self._failure = failure
            self._raise_alarm()
            self._changed.notify_all()
        self._device.close()
        with self._changed:
            self._channel.close()
            self._changed.notify_all()

    def _raise_alarm(self) -> None:
        if self._alarm >= 0:
            with suppress(BlockingIOError):
                os.eventfd_write(self._alarm, 1)


class BackEndListener(Closing):
    """Listens at `path` from construction to `close`, which removes the socket; each connection becomes a BackEnd.

    It replaces a socket there that no process has. `trusted`: a directory above `path`; below it no link is followed. Raises
    SocketRefused for a living socket and for another file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: BackEndOptions | None = None,
        access: SocketAccess | None = None,
        *,
        trusted: str = "",
    ) -> None:
        self._options = options or BackEndOptions()
        self.path = os.fspath(path)
        self._socket = ListeningSocket(self.path, access, trusted=trusted, replace_dead=True)

    def fileno(self) -> int:
        """The descriptor, readable when a front-end has connected."""
        return self._socket.fileno()

    def accept(self, timeout_s: float | None = 15.0) -> BackEnd:
        """Wait for the next connection. Raises TimedOut, Closed when this is closed meanwhile, MemoryShort."""
        sock = self._socket.accept(Instant.after(timeout_s))
        if sock is None:  # only with a `wake`
            raise Closed(f"listening at {self.path}", "woken")
        return BackEnd(sock, self._options, self.path)

    def close(self) -> None:
        """Remove the socket; accepted connections go on. May be called again."""
        self._socket.close()
