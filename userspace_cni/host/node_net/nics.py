"""What a look at a NIC of the node shows: what it is, what it has, and what speaks against moving its addresses.

Only looks, and what follows from two looks as pure functions: the plan of an uplink decides. A bridge's local link is looked at
in the same way. A look is always fresh.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from sys import byteorder
from typing import Final

from userspace_cni.attachment.steps import AddressMove, Kept, KeptAddress, KeptRoute, next_hops
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import of_kernel
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink import link_messages as links
from userspace_cni.host.netlink.kept_messages import BY_KERNEL, read_configuration
from userspace_cni.host.netlink.netns import Netns, open_switch_netns
from userspace_cni.host.netlink.route_messages import MAIN
from userspace_cni.host.node_net.nic_settings import merging, receive_queues
from userspace_cni.host.pod_net.neighbour_queries import ask_neighbours, wire
from userspace_cni.linux.netlink import ROUTE, NetlinkConnection, as_u32, attributes

ANSWER_S: Final = 2.0
"""How long next hops have to answer."""
_INFO: Final = struct.calcsize("=BxHiII")
_DATA: Final = 2
_MASTER, _LINKINFO, _CARRIER = 10, 18, 33
_LINK_NETNSID: Final = 37
_VLAN_ID, _VLAN_PROTOCOL = 1, 5
_8021Q: Final = 0x8100
_BOND_MODE: Final = 1
_BOND_MODES: Final = ("balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb")
"""By their numbers in IFLA_BOND_MODE (BOND_MODE_* of linux/if_bonding.h), named as in /sys/class/net/<bond>/bonding/mode."""


@dataclass(frozen=True)
class Upper:
    """A link that is made upon a NIC: its name, its kind (vlan, macvlan …), and of a VLAN sub-interface the VLAN."""

    name: str
    kind: str
    vlan: int = 0


@dataclass(frozen=True)
class KernelBond:
    """A bond of the kernel's and its mode, as balance-alb."""

    name: str
    mode: str


@dataclass(frozen=True)
class Nic:
    """A link of the node. `kind` is the kernel's, "" for hardware; `master` the bridge or bond that it is enslaved to.

    `addresses` and `routes` are without what the kernel makes by itself. `passing`: addresses with
    an end, as DHCP and routers give them; `learned`: routes of routers; `stuck`: routes that cannot be moved, with the reason.
    `offloads`: those of gro and lro that are on, with which a port of type system drops what is larger than its MTU. `promotes`:
    later IPv4 addresses of a network stay when the first one leaves. `rx_queues`: how many it receives by, 0 for unknown. `tag`:
    the VLAN whose tag a link of kind vlan puts on what it sends, 0 for none. A link of 802.1ad has none: tags within its own are
    what it is for. `bond`: the bond that the link is, or is made upon, as VLAN sub-interfaces are.
    """

    name: str
    index: int
    mac: str
    mtu: int
    kind: str
    up: bool
    carrier: bool
    master: str
    addresses: tuple[KeptAddress, ...] = ()
    routes: tuple[KeptRoute, ...] = ()
    passing: tuple[str, ...] = ()
    learned: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    uppers: tuple[Upper, ...] = ()
    offloads: tuple[str, ...] = ()
    promotes: bool = False
    rx_queues: int = 0
    tag: int = 0
    bond: KernelBond | None = None

    @property
    def has_default_route(self) -> bool:
        """Whether the node's way to the world is over it."""
        return any(route.is_default and route.table == MAIN for route in self.routes) or any(
            each.startswith("default") for each in (*self.learned, *self.stuck)
        )

    @property
    def shown_addresses(self) -> tuple[str, ...]:
        """Its lasting addresses, with prefix length."""
        return tuple(each.shown for each in self.addresses)

    @property
    def gateways(self) -> tuple[str, ...]:
        """The next hops of its routes, those of default routes first."""
        return next_hops(self.routes)


_NONE: Final = Nic("", 0, "", 0, "", up=False, carrier=False, master="")
_Found = tuple[links.FoundLink, bytes]
"""A link, and the answer that shows it."""


def look(name: str, switch_netns: str = "", root: HostRoot = HERE) -> Nic | None:
    """The link of that name in the switch's network namespace; None when there is none. Raises UserspaceError."""
    return look_at_all((name,), switch_netns, root).get(name)


def look_at_all(names: Collection[str], switch_netns: str = "", root: HostRoot = HERE) -> Mapping[str, Nic]:
    """Those of the links that are there, by name. Raises UserspaceError."""
    with open_switch_netns(switch_netns, root) as netns, _connected(netns, "looking at the node's links") as kernel:
        answers = [payload for _, payload in kernel.ask(links.dump())]
        found = {each.name: (each, payload) for payload in answers for each in (links.read(payload),)}
        nics: dict[str, Nic] = {}
        for name in filter(names.__contains__, found):
            try:
                nics[name] = _nic(kernel, found, name)
            except OSError as error:
                if error.errno != errno.ENODEV:  # it has gone since they were listed
                    raise
        return nics


def find_answering(nic: Nic, switch_netns: str = "", root: HostRoot = HERE, deadline: Deadline | None = None) -> tuple[str, ...]:
    """Which of the next hops of the link answer on its wire within 2 s; one that answers ends the question of all others.

    It may be the NIC or the bridge that has its addresses. Raises UserspaceError.
    """
    wanted = nic.gateways
    if not (wanted and nic.up and nic.carrier):
        return ()
    with open_switch_netns(switch_netns, root) as netns:
        silent = find_silent(netns, nic, nic.shown_addresses, wanted, deadline or Deadline.after(ANSWER_S))
    return tuple(each for each in wanted if each not in silent)


def find_silent(netns: Netns, nic: Nic, own: Iterable[str], targets: Iterable[str], deadline: Deadline) -> frozenset[str]:
    """Those of the targets that have not answered over the link before one did, or before 2 s. Raises UserspaceError."""
    try:
        with wire(netns, nic.name, listening=True) as opened:
            silent = ask_neighbours(opened, nic.mac, own, map(ip_address, targets), deadline.within(ANSWER_S), enough=1)
    except OSError as error:
        raise of_kernel(f"link {nic.name}: asking the next hops", error, "is it there, and up? ip link") from error
    return frozenset(map(str, silent))


def plan_move(nic: Nic, bridge: str, *, store: str, boot_id: str, switch_netns: str = "", cut: bool = True) -> AddressMove:
    """The move of all that the NIC has to the bridge, without next hops: those are asked (`find_answering`)."""
    return AddressMove(nic.name, nic.index, bridge, store, boot_id, nic.addresses, nic.routes, (), cut, switch_netns)


def merge_changes(step: AddressMove, nic: Nic | None, bridge: Nic | None) -> AddressMove:
    """The move with what others have changed: with what was added at the NIC or the bridge, without what the bridge has no more.

    A bridge that has no addresses, or routes, of a version of IP has lost them (its link was made anew, or set down), and they
    stay in the move. `nic` and `bridge` are fresh looks, None for a link that is not there.
    """
    here, there = nic or _NONE, bridge or _NONE
    addresses = _merged(step.addresses, there.addresses, here.addresses, changing=False)
    moved_ways = {each.key for each in step.routes}
    # an address that is added at the NIC brings a route to its network, to which the bridge leads already
    new = tuple(each for each in here.routes if each.key not in moved_ways or each.protocol != BY_KERNEL)
    routes = _merged(step.routes, there.routes, new, changing=True)
    gone = {each.address for each in step.addresses} - {each.address for each in addresses}
    routes = tuple(each for each in routes if each.sends_from not in gone)  # the kernel has removed those with their address
    there_are = next_hops(routes)
    hops = tuple(each for each in step.next_hops if each in there_are)
    return replace(step, ifindex=nic.index if nic else step.ifindex, addresses=addresses, routes=routes, next_hops=hops)


def _merged(former: tuple[Kept, ...], there: tuple[Kept, ...], here: tuple[Kept, ...], *, changing: bool) -> tuple[Kept, ...]:
    """The former ones, but for those removed from the bridge, and what is `there` (at the bridge) or `here` (at the NIC).

    `changing`: those of one key may differ, and the one at the NIC is the newest.
    """
    found = {each.key: each for each in (*there, *here)}
    alive = {each.key for each in there}
    versions = {each.version for each in former if each.key in alive}
    kept = {each.key: each for each in former if each.key in found or each.version not in versions}
    first, second = (found, kept) if changing else (kept, found)
    return tuple(first[key] if key in first else second[key] for key in dict.fromkeys([*kept, *found]))


@contextmanager
def _connected(netns: Netns, what: str) -> Iterator[NetlinkConnection]:
    try:
        with netns.do(lambda: NetlinkConnection(ROUTE)) as kernel:
            yield kernel
    except OSError as error:
        raise of_kernel(what, error, "it takes CAP_NET_ADMIN in the network namespace of the switch") from error


def _nic(kernel: NetlinkConnection, links_: Mapping[str, _Found], name: str) -> Nic:
    """What the kernel has of one of the links. Raises OSError, ENODEV for one that has gone since they were listed."""
    link, payload = links_[name]
    attrs = attributes(payload[_INFO:])
    names = {each.index: other for other, (each, _) in links_.items()}
    # a NIC and the link to which its addresses move have one hardware address, and may have the same routes
    has = read_configuration(kernel, link.index, frozenset(each.index for each, _ in links_.values() if each.mac == link.mac))
    return Nic(
        link.name,
        link.index,
        link.mac,
        link.mtu,
        link.kind,
        link.up,
        attrs.get(_CARRIER, b"")[:1] == b"\1",
        names.get(as_u32(attrs.get(_MASTER)), ""),
        has.addresses,
        has.routes,
        has.passing,
        has.learned,
        has.stuck,
        tuple(_uppers(links_, link.index)),
        merging(kernel.fileno(), name),
        links.promotes(payload),
        receive_queues(kernel.fileno(), name),
        tag_of(payload),
        bond_below([each for _, each in links_.values()], link.index),
    )


def _uppers(links_: Mapping[str, _Found], index: int) -> Iterator[Upper]:
    """The links upon a NIC; a veth names its other end in the same way, and is none."""
    for link, payload in links_.values():
        if link.peer == index != link.index and link.kind != "veth":
            yield Upper(link.name, link.kind, _vlan_of(link, payload)[0])


def tag_of(payload: bytes) -> int:
    """`Nic.tag` of the link in an answer of rtnetlink(7), RTM_NEWLINK without its header."""
    vlan, protocol = _vlan_of(links.read(payload), payload)
    return vlan if protocol == _8021Q else 0


def _vlan_of(link: links.FoundLink, payload: bytes) -> tuple[int, int]:
    """The VLAN of a link of kind vlan, and its tag's EtherType; 0 of all others."""
    if link.kind != "vlan":
        return 0, 0
    data = _data_of(payload)
    protocol = int.from_bytes(data.get(_VLAN_PROTOCOL, b"")[:2], "big")
    return int.from_bytes(data.get(_VLAN_ID, b"")[:2], byteorder), protocol or _8021Q


def bond_below(answers: Iterable[bytes], index: int) -> KernelBond | None:
    """`Nic.bond` of the link of that index. `answers`: what rtnetlink(7) tells of each link, RTM_NEWLINK without its header."""
    found = {link.index: (link, payload) for payload in answers for link in (links.read(payload),)}
    while index in found:
        link, payload = found.pop(index)  # each link once: what is made upon what has an end
        if link.kind == "bond":
            mode = _data_of(payload).get(_BOND_MODE, b"")[:1]
            return KernelBond(link.name, dict(enumerate(_BOND_MODES)).get(int.from_bytes(mode, byteorder), "") if mode else "")
        # a veth names its other end in the same way, and a link whose lower one is elsewhere an index of that namespace
        elsewhere = link.kind == "veth" or _LINK_NETNSID in attributes(payload[_INFO:])
        index = 0 if elsewhere else link.peer
    return None


def _data_of(payload: bytes) -> Mapping[int, bytes]:
    """What a link of its kind alone has: IFLA_INFO_DATA."""
    return attributes(attributes(attributes(payload[_INFO:]).get(_LINKINFO, b"")).get(_DATA, b""))
