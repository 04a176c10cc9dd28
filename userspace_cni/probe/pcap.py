"""Writes frames as a pcap file: Ethernet, times in nanoseconds, as tcpdump and Wireshark read it.

Pure: bytes in, bytes out. Format: pcap(5), pcap-savefile(5) of libpcap.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_MAGIC: Final = 0xA1B23C4D
"""Of files with nanoseconds; numbers are little-endian here, and readers see that by the magic number."""
_VERSION: Final = (2, 4)
_ETHERNET: Final = 1
_HEADER: Final = struct.Struct("<IHHiIII")
_RECORD: Final = struct.Struct("<IIII")
_SECOND: Final = 1_000_000_000
SNAPLEN_MAX: Final = 262144
"""Bytes of a frame that readers take at most (MAXIMUM_SNAPLEN of libpcap)."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame from its destination address on, without checksum. `ns`: when it was received, nanoseconds since 1970.

    `length`: its bytes in the switch, of which `data` may have only the first.
    """

    ns: int
    data: bytes
    length: int


def header(snaplen: int = SNAPLEN_MAX) -> bytes:
    """The head of the file; no frame in it has more than `snaplen` bytes."""
    return _HEADER.pack(_MAGIC, *_VERSION, 0, 0, snaplen, _ETHERNET)


def records(frames: Iterable[Frame]) -> bytes:
    """The frames, each behind its record's head."""
    parts: list[bytes] = []
    for frame in frames:
        seconds, rest = divmod(frame.ns, _SECOND)
        parts.append(_RECORD.pack(seconds, rest, len(frame.data), frame.length))
        parts.append(frame.data)
    return b"".join(parts)
