"""Messages about who the kernel knows by ARP and NDP. Source: rtnetlink(7), linux/neighbour.h."""

from __future__ import annotations

import struct
from ipaddress import ip_address
from typing import Final

from userspace_cni.host.netlink.address_messages import FAMILIES
from userspace_cni.linux import netlink as codec
from userspace_cni.linux.netlink import Message, attribute

_NEWNEIGH: Final = 28
_DELNEIGH: Final = 29
_GETNEIGH: Final = 30
_HEADER: Final = struct.Struct("=BxxxiHBB")
"""struct ndmsg: family, index of the link, state, flags, type."""
_ADDRESS: Final = 1
_MAC: Final = 2
_REACHABLE: Final = 0x02
"""NUD_REACHABLE: it ages by itself."""
_HEARD: Final = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80
"""NUD_REACHABLE, _STALE, _DELAY, _PROBE, _NOARP and _PERMANENT."""
_USE: Final = 0x01
"""NTF_USE: as a packet to the neighbour would."""


def probe(index: int, address: str) -> Message:
    """Have the kernel ask for the neighbour's MAC, unless it knows it."""
    return Message(_NEWNEIGH, codec.CREATE | codec.REPLACE, _named(index, address, use=_USE))


def add(index: int, address: str, mac: str) -> Message:
    """Set the neighbour's entry, with the lifetime of one that has just answered.

    EEXIST: the kernel knows it, or looks for it.
    """
    named = _named(index, address, state=_REACHABLE) + attribute(_MAC, bytes.fromhex(mac.replace(":", "")))
    return Message(_NEWNEIGH, codec.CREATE | codec.EXCL, named)


def remove(index: int, address: str) -> Message:
    """Forget the neighbour. ENOENT: it is not known."""
    return Message(_DELNEIGH, 0, _named(index, address))


def get(index: int, address: str) -> Message:
    """Ask for what the kernel knows of the neighbour. ENOENT: nothing."""
    return Message(_GETNEIGH, 0, _named(index, address))


def was_heard(payload: bytes) -> bool:
    """Whether the neighbour in a reply has answered, and not failed to since."""
    _, _, state, _, _ = _HEADER.unpack_from(payload)
    return bool(state & _HEARD)


def _named(index: int, address: str, *, state: int = 0, use: int = 0) -> bytes:
    whom = ip_address(address)
    return _HEADER.pack(FAMILIES[whom.version], index, state, use, 0) + attribute(_ADDRESS, whom.packed)
