"""What can go wrong on the fast path: the error tree. Its texts are for the person who repairs it.

    FastPathError              step: what happened; what to look at
    ├── MemoryShort            no pages, no descriptors: nothing was shared yet
    ├── SocketRefused          a path cannot be listened on or connected to
    ├── NegotiationFailed      the other side offers less than is needed
    │   └── MessageRefused     it refused a message; a moment later it may take it
    ├── TimedOut               the deadline passed; the text names what was awaited
    ├── Disconnected           the other side hung up; attaching again may help
    ├── Closed                 this process closed it, perhaps in another thread
    ├── FrameRefused           a frame is longer than the queue's limit, or shorter than an Ethernet header
    └── PeerError              the other side broke the protocol; `reason` says how, the connection cannot be used any more
        └── RingFault          the same in a virtqueue

Must not know its callers: error codes and exit statuses are theirs. Every error says which step failed (a vhost-user message by
its name, or what this process did), what happened, and what to look at.
"""

from __future__ import annotations

from enum import StrEnum


class FastPathError(Exception):
    """`step` failed: `what` happened; `look_at` may explain it."""

    def __init__(self, step: str, what: str, look_at: str = "") -> None:
        super().__init__(step, what, look_at)
        self.step = step
        self.what = what
        self.look_at = look_at

    def __str__(self) -> str:
        return f"{self.step}: {self.what}; {self.look_at}" if self.look_at else f"{self.step}: {self.what}"


class MemoryShort(FastPathError):
    """Memory or descriptors ran out, or the limit of this process is too low."""


class SocketRefused(FastPathError):
    """A socket could not be made, listened on or connected to."""


class NegotiationFailed(FastPathError):
    """The other side refused the message `step`, or does not offer a requested feature."""


class MessageRefused(NegotiationFailed):
    """The other side refused the message `step`, perhaps for a moment: DPDK does while it has no memory for a ring."""


class TimedOut(FastPathError):
    """No answer, connection or frame came before the deadline."""


class Disconnected(FastPathError):
    """The other side closed its end of the connection."""


class Closed(FastPathError):
    """This process closed the object."""


class FrameRefused(FastPathError):
    """A frame is longer than the queue's `longest`, or shorter than an Ethernet header."""


class BreachReason(StrEnum):
    """How the other side broke the protocol."""

    TRUNCATED = "the connection ended within a message"
    SLOW = "a message was begun and not finished in time"
    BAD_SIZE = "the payload's size is not the message's"
    OVERSIZED = "the payload is larger than any message's"
    BAD_VERSION = "the version of the header is not 1"
    BAD_FLAGS = "unknown flags in the header"
    NOT_A_REPLY = "a request where a reply is due"
    NOT_A_REQUEST = "a reply where a request is due"
    UNKNOWN_REQUEST = "a message that does not exist"
    WRONG_REPLY = "a reply to something else"
    FDS_MISSING = "fewer descriptors than the message needs"
    FDS_EXTRA = "more descriptors than the message may have"
    BAD_FD = "a descriptor of the wrong kind"
    BAD_VALUE = "a value out of range"
    BAD_FEATURES = "features that were not offered"
    BAD_REGION = "an impossible memory region: empty, overlapping, beyond its file"
    BAD_RING = "a ring that is not in the memory shared, or not aligned"
    BAD_ORDER = "a message before what it needs"
    MEMORY_GONE = "memory was taken away after it had been shared"
    INDEX_JUMP = "a ring's index moved by more than the ring holds"
    BAD_ID = "a descriptor's number that is not in the ring, or not there to be used"
    LOOP = "a chain of descriptors longer than the ring"
    BAD_ADDRESS = "a buffer outside of the memory shared"
    BAD_LENGTH = "a length that does not fit the buffer"
    BAD_BUFFER = "a buffer of the wrong direction, or flags that were not agreed"


class PeerError(FastPathError):
    """The other side broke the protocol: `reason` says how, `what` gives the values."""

    def __init__(self, reason: BreachReason, step: str, what: str = "", look_at: str = "") -> None:
        super().__init__(step, f"{reason.value} ({what})" if what else reason.value, look_at)
        self.reason = reason


class RingFault(PeerError):
    """The other side's half of a virtqueue is invalid: the queue carries nothing until it is attached again."""
