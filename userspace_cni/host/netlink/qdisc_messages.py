"""Messages about the queueing discipline at a link's root, a token bucket filter, and about filters of what a link receives.

Source: linux/pkt_sched.h, tc-tbf(8).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from userspace_cni.linux import netlink as codec
from userspace_cni.linux.netlink import Message, attribute, attributes, nest, text, u32

HANDLE: Final = 0x7563 << 16
"""7563: in the words of tc. The handle of our root queueing disciplines, by which they differ from others'."""
TICKS: Final = 15_625_000
"""Per second, of 64 ns each: the unit in which the kernel tells a burst (PSCHED_SHIFT)."""

_NEWQDISC: Final = 36
_DELQDISC: Final = 37
_GETQDISC: Final = 38
_GETFILTER: Final = 46
_HEADER: Final = struct.Struct("=BxxxiIII")
"""struct tcmsg: family, index, handle, parent, info."""
_ROOT: Final = 0xFFFFFFFF
_INGRESS: Final = 0xFFFF0000
_KIND: Final = 1
_OPTIONS: Final = 2
_STATS2: Final = 7
_STATS_QUEUE: Final = 3
_PARMS: Final = 1
_RATE64: Final = 4
_BURST: Final = 6
_TBF: Final = struct.Struct("=BBHhHI 12x III")
"""struct tc_tbf_qopt: the rate (cell_log, link layer, overhead, cell_align, mpu, bytes/s), no peak rate; limit, buffer, mtu."""
_ETHERNET: Final = 1
_U32: Final = 0xFFFFFFFF
_LATENCY_DIVISOR: Final = 40
"""A frame waits 25 ms at most, which is a fortieth of what passes in a second."""


@dataclass(frozen=True)
class FoundTbf:
    """A token bucket filter at a root: bytes/s, bytes, and the frames that it has dropped. `index` is the link's."""

    index: int
    handle: int
    rate: int
    burst: int
    drops: int


def tbf(index: int, rate: int, burst: int) -> Message:
    """Put a filter of `rate` bytes/s and `burst` bytes at the root, or change ours there without loss of what is queued."""
    limit = min(rate // _LATENCY_DIVISOR + burst, _U32)
    parms = _TBF.pack(0, _ETHERNET, 0, 0, 0, min(rate, _U32), limit, 0, 0)
    options = [attribute(_PARMS, parms), u32(_BURST, min(burst, _U32))]
    if rate > _U32:
        options.append(attribute(_RATE64, struct.pack("=Q", rate)))
    header = _HEADER.pack(0, index, HANDLE, _ROOT, 0)
    return Message(_NEWQDISC, codec.CREATE | codec.REPLACE, header + text(_KIND, "tbf") + nest(_OPTIONS, *options))


def delete(index: int) -> Message:
    """Take ours off the root; another's there is refused."""
    return Message(_DELQDISC, 0, _HEADER.pack(0, index, HANDLE, _ROOT, 0))


def dump() -> Message:
    """Ask for the disciplines of all links; the kernel cannot be asked for those of one."""
    return Message(_GETQDISC, codec.DUMP, _HEADER.pack(0, 0, 0, 0, 0))


def dump_filters(index: int) -> Message:
    """Ask for the filters of what a link receives; EINVAL where it has no discipline for that."""
    return Message(_GETFILTER, codec.DUMP, _HEADER.pack(0, index, 0, _INGRESS, 0))


def read(payload: bytes) -> FoundTbf | None:
    """The filter at a root in a reply; None for any other discipline."""
    _, index, handle, parent, _ = _HEADER.unpack_from(payload)
    found = attributes(payload[_HEADER.size :])
    if parent != _ROOT or codec.as_text(found.get(_KIND)) != "tbf":
        return None
    options = attributes(found[_OPTIONS])
    rate, _, buffer, _ = _TBF.unpack_from(options[_PARMS])[5:]
    if _RATE64 in options:
        (rate,) = struct.unpack_from("=Q", options[_RATE64])
    queue = attributes(found.get(_STATS2, b"")).get(_STATS_QUEUE, bytes(20))
    (drops,) = struct.unpack_from("=I", queue, 8)
    return FoundTbf(index, handle, rate, buffer * rate // TICKS, drops)
