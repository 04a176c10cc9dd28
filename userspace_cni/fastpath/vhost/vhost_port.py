"""What a front-end and a back-end have in common for who uses them: a port, with frames in and out.

A port is the unit that is opened, closed, and used from several threads. It must not know which side it is.
"""

from __future__ import annotations

import os
import time
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import Final
from weakref import WeakSet

from userspace_cni.fastpath.fastpath_errors import FastPathError
from userspace_cni.fastpath.rings.queue_pair import BATCH, QueuePair, wait_for_frames
from userspace_cni.linux.closing import Closing

_PORTS: Final[WeakSet[VhostPort]] = WeakSet()
"""Those of this process, which a child after fork(2) must not use."""


class VhostPort(Closing):
    """A vhost-user port: `FrontEnd` or `BackEnd`. Closed at the end of a `with`.

    `send` and `receive` carry frames as bytes, which is convenient. `pairs` are its queue pairs: each carries bursts in buffers
    of the caller's, which is faster, and has counters.
    """

    path: str
    """Of its socket; '' for a `BackEnd` that was made of a connected socket."""
    pairs: tuple[QueuePair, ...]
    closed_as: str = "it was closed by us"
    """What `Closed` says of it."""

    def send(self, frames: Sequence[bytes | bytearray | memoryview]) -> int:
        """Send Ethernet frames without checksum, on the first queue pair; returns how many were taken, in order. Never waits.

        Fewer are taken when the queue is full, none while the connection is not up: the caller drops the rest, or sends them
        again. A frame longer than `longest` or shorter than 14 bytes ends the burst before it; FrameRefused when it is the first.
        Raises Closed, RingFault. Only `receive` and `is_alive` notice that the other side has hung up.
        """
        return self.pairs[0].send_frames(frames)

    def receive(self, timeout_s: float | None = None, limit: int = BATCH) -> list[bytes]:
        """The frames that have arrived, at most `limit` from each queue pair; waits for the first when there is none.

        None waits for ever, 0 not at all; after `timeout_s` seconds the list is empty. A frame has 16 KiB at most: a longer one
        is dropped and counted. Raises Disconnected when the other side hangs up, Closed, RingFault, and PeerError at a back-end.
        """
        if limit < 1:
            raise ValueError(f"limit={limit}: 1 frame or more")
        end = None if timeout_s is None else time.monotonic() + timeout_s
        frames = self._take(limit)
        while not frames and wait_for_frames(self.pairs, None if end is None else end - time.monotonic()):
            frames = self._take(limit)  # none when another thread was quicker, or when they were too long
            if end is not None and time.monotonic() >= end:
                break
        return frames

    @property
    def longest(self) -> int:
        """Bytes of the longest frame that `send` takes."""
        return self.pairs[0].longest

    def is_alive(self) -> bool:
        """Whether it is attached and the other side has not hung up. A process that is stuck is alive in this sense."""
        return self.why_failed() is None

    @abstractmethod
    def why_failed(self) -> FastPathError | None:
        """Why no frame can be carried any more; None when frames can pass."""

    @abstractmethod
    def forget(self) -> None:
        """Close the descriptors in a child after fork(2), without a lock or a word to the other side: it is the parent's."""

    def warn_unclosed(self) -> None:
        """Warn who forgot `with` and `close`, as Python's own sockets do."""
        warnings.warn(f"unclosed {type(self).__name__} {self.path}: use `with`, or close()", ResourceWarning, 3, source=self)

    def _take(self, limit: int) -> list[bytes]:
        if len(self.pairs) == 1:
            return self.pairs[0].receive_frames(limit)
        return [frame for pair in self.pairs for frame in pair.receive_frames(limit)]


def keep_from_children(port: VhostPort) -> None:
    """See to it that `port` is closed in a child after fork(2): two processes in one ring would break it."""
    _PORTS.add(port)


def _forget_all() -> None:
    for port in _PORTS:
        for pair in port.pairs:
            pair.forget()
        port.closed_as = "it belongs to the parent of this process: a port is not inherited over fork(2)"
        port.forget()


os.register_at_fork(after_in_child=_forget_all)
