"""Messages about links, and what the kernel says of one. Source: rtnetlink(7), linux/if_link.h, linux/veth.h."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from userspace_cni.linux import netlink as codec
from userspace_cni.linux.netlink import Message, attribute, attributes, nest, text, u32

LO: Final = 1
"""The index of lo in every namespace."""

_NEWLINK: Final = 16
_DELLINK: Final = 17
_GETLINK: Final = 18
_SETLINK: Final = 19
_HEADER: Final = struct.Struct("=BxHiII")
"""struct ifinfomsg: family, type, index, flags, and which flags are meant."""
_IFF_UP: Final = 1

_ADDRESS: Final = 1
_IFNAME: Final = 3
_MTU: Final = 4
_LINK: Final = 5
_TXQLEN: Final = 13
_LINKINFO: Final = 18
_CARRIER: Final = 33
_IFALIAS: Final = 20
_AF_SPEC: Final = 26
_NET_NS_FD: Final = 28
_EXT_MASK: Final = 29
_SKIP_STATS: Final = 1 << 3
_INFO_KIND: Final = 1
_INFO_DATA: Final = 2
_VETH_PEER: Final = 1
_INET: Final = 2
_INET_CONF: Final = 1
_PROMOTE_SECONDARIES: Final = 20
"""linux/ip.h, IPV4_DEVCONF_PROMOTE_SECONDARIES: sysctl net.ipv4.conf.<link>.promote_secondaries. A listing has them from 1 on."""
_INET6: Final = 10
_ADDR_GEN_MODE: Final = 8
_NO_ADDRESSES: Final = b"\x01"


@dataclass(frozen=True)
class End:
    """One end of a veth that is to be made. `mtu` in bytes; `queue` is its txqueuelen in packets, 0 for the kernel's own."""

    name: str
    mac: str
    mtu: int
    queue: int = 0

    @property
    def attributes(self) -> bytes:
        queue = u32(_TXQLEN, self.queue) if self.queue else b""
        return text(_IFNAME, self.name) + settings(mac=self.mac, mtu=self.mtu) + queue


@dataclass(frozen=True)
class FoundLink:
    """A link as the kernel has it. `peer`: the index of the other end of a veth, in that one's namespace; `carrier`: whether
    frames get anywhere, of a tap whether a process has it open."""

    index: int
    name: str
    kind: str
    mac: str
    mtu: int
    up: bool
    alias: str
    queue: int
    peer: int
    carrier: bool


def veth(here: End, there: End, netns: int) -> Message:
    """Make both ends in one: `here` in the namespace of the connection, `there` in that of the descriptor `netns`."""
    peer = attribute(_VETH_PEER, _HEADER.pack(0, 0, 0, 0, 0) + there.attributes + u32(_NET_NS_FD, netns))
    kind = nest(_LINKINFO, text(_INFO_KIND, "veth"), nest(_INFO_DATA, peer))
    return Message(_NEWLINK, codec.CREATE | codec.EXCL, _header() + here.attributes + kind)


def set_alias(name: str, alias: str) -> Message:
    """Give the link `name` its alias, which the kernel ignores while it makes one."""
    return Message(_SETLINK, 0, _header() + text(_IFNAME, name) + attribute(_IFALIAS, alias.encode("utf-8", "surrogateescape")))


def rename(index: int, name: str) -> Message:
    """Give the link of that index another name; it must not be up. EEXIST: a link has the name, also as another one."""
    return Message(_SETLINK, 0, _header(index) + text(_IFNAME, name))


def settings(*, mac: str = "", mtu: int = 0, queue: int = 0) -> bytes:
    """Settings of a link as attributes; what is empty is left as it is."""
    given = attribute(_ADDRESS, bytes.fromhex(mac.replace(":", ""))) if mac else b""
    return given + (u32(_MTU, mtu) if mtu else b"") + (u32(_TXQLEN, queue) if queue else b"")


def without_ipv6(index: int) -> Message:
    """Let the kernel give a link that is not up yet no IPv6 address by itself. EAFNOSUPPORT: the link can have none.

    As a sysctl, disable_ipv6, it would be tried again and again, without a pause, for as long as any link is being changed.
    """
    mode = nest(_INET6, attribute(_ADDR_GEN_MODE, _NO_ADDRESSES))
    return Message(_SETLINK, 0, _header(index) + nest(_AF_SPEC, mode))


def change(index: int, attributes_: bytes = b"", *, up: bool = False) -> Message:
    """Change settings of a link, and set it up."""
    return Message(_SETLINK, 0, _header(index, up=up) + attributes_)


def promoting(index: int, *, on: bool) -> Message:
    """Whether later IPv4 addresses of a network stay when the first one leaves the link. EAFNOSUPPORT: the link can have none."""
    conf = nest(_INET_CONF, u32(_PROMOTE_SECONDARIES, int(on)))
    return Message(_SETLINK, 0, _header(index) + nest(_AF_SPEC, nest(_INET, conf)))


def promotes(payload: bytes) -> bool:
    """Whether the link in a reply is set so."""
    of_ipv4 = attributes(attributes(attributes(payload[_HEADER.size :]).get(_AF_SPEC, b"")).get(_INET, b""))
    return codec.as_u32(of_ipv4.get(_INET_CONF, b"")[4 * (_PROMOTE_SECONDARIES - 1) :]) != 0


def set_down(index: int) -> Message:
    """Set a link down. Its IPv4 routes go, and its IPv6 addresses."""
    return Message(_SETLINK, 0, _HEADER.pack(0, 0, index, 0, _IFF_UP))


def delete(index: int) -> Message:
    """Delete a link, and with it the other end."""
    return Message(_DELLINK, 0, _header(index))


def get(name: str) -> Message:
    """Ask for the link of this name or alternative name."""
    return Message(_GETLINK, 0, _header() + text(_IFNAME, name))


def dump() -> Message:
    return Message(_GETLINK, codec.DUMP, _header())


def dump_without_counters() -> Message:
    """Ask for every link of the namespace, without counters."""
    return Message(_GETLINK, codec.DUMP, _header() + u32(_EXT_MASK, _SKIP_STATS))


def read_name_and_state(payload: bytes) -> tuple[int, str, bool]:
    """Index and name of the link in a reply, and whether it is up."""
    _, _, index, flags, _ = _HEADER.unpack_from(payload)
    name = next((value for kind, value in codec.each_attribute(payload[_HEADER.size :]) if kind == _IFNAME), None)
    return index, codec.as_text(name), bool(flags & _IFF_UP)


def read(payload: bytes) -> FoundLink:
    _, _, index, flags, _ = _HEADER.unpack_from(payload)
    found = attributes(payload[_HEADER.size :])
    peer = found.get(_LINK)
    return FoundLink(
        index=index,
        name=codec.as_text(found.get(_IFNAME)),
        kind=codec.as_text(attributes(found.get(_LINKINFO, b"")).get(_INFO_KIND)),
        mac=found.get(_ADDRESS, b"").hex(":"),
        mtu=codec.as_u32(found.get(_MTU)),
        up=bool(flags & _IFF_UP),
        alias=codec.as_text(found.get(_IFALIAS)),
        queue=codec.as_u32(found.get(_TXQLEN)),
        peer=index if peer is None else codec.as_u32(peer),  # not said when both ends have one index
        carrier=found.get(_CARRIER, b"\0") != b"\0",
    )


def _header(index: int = 0, *, up: bool = False) -> bytes:
    return _HEADER.pack(0, 0, index, _IFF_UP if up else 0, _IFF_UP if up else 0)
