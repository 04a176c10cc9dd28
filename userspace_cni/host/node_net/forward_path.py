"""What a datagram needs to pass between a gateway's link and an outside of ours by the node's own forward path, and nowhere else.

The outside is a tap whose descriptor is held here: its link, and the route and the neighbour behind it, go with the descriptor,
and the table that traces the datagram goes with its socket, however this process ends. The table drops what the node would send
to the outside's address by any other link: so nothing of it reaches a wire. What a death leaves is the neighbour at the gateway's
link, which ages as any that has fallen silent.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from pathlib import Path
from random import SystemRandom
from typing import Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import StepFailed, Unavailable, of_kernel
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.fastpath.tap import Tap, TapRefused
from userspace_cni.host.netlink import nftables_messages as nftables
from userspace_cni.host.netlink import trace_messages as traces
from userspace_cni.host.netlink.closer import Closer
from userspace_cni.host.netlink.link_messages import FoundLink
from userspace_cni.host.netlink.netns import Netns, open_switch_netns
from userspace_cni.host.netlink.node_kernel import RIGHTS, Kernel, at_node
from userspace_cni.host.netlink.trace_messages import TraceNotice
from userspace_cni.host.node_net.udp_frames import Datagram, build_frame, read
from userspace_cni.host.pod_net.neighbour_queries import ask_neighbours, wire
from userspace_cni.linux.netlink import NETFILTER, NetlinkConnection

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_LINK: Final = "ucout%d"
"""The name of the outside's link; the kernel chooses the number."""
_FRAME_MAX = 2048
_CLOSER: Final = Closer(0.2)
"""The kernel closes a socket of nftables slowly just after a deletion, with all transactions behind it."""
_OUTSIDES: Final = {
    4: ("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "192.0.2.0/24"),
    6: ("2001:2::/48", "2001:db8::/32"),
}
"""Networks that no machine of the Internet is in: for benchmarks (RFC 2544, RFC 5180), for documentation (RFC 5737, RFC 3849)."""
_CANDIDATES = 4
_ANSWER_S = 0.25
_SETTINGS: Final = ("rp_filter", "forwarding", "src_valid_mark")
"""What the kernel asks of the very link at which a packet of IPv4 arrives; for one of IPv6 it asks the node."""
_RANDOM: Final = SystemRandom()


@dataclass(frozen=True)
class PathEnds:
    """Both ends of the way. `link`: the gateway's; `subnet`: in which the inside has an address, none of `taken`; `mac`: of the
    inside, six bytes; `table`: the routing table from which its datagrams go to the outside; `uplink`: the link whose settings
    the outside's gets, "" for none; `avoided`: networks that the outside's address must avoid. `asks`: whether neighbours
    on the gateway's bridge are asked whether they have the inside's address."""

    link: str
    subnet: Network
    taken: Collection[Address]
    mac: bytes
    table: int
    uplink: str
    avoided: Sequence[Network]
    asks: bool


@dataclass(frozen=True)
class _FoundPath:
    """What was found on the node: an address for the outside, the gateway's link, and the uplink's where there is one."""

    outside: Address
    gateway: FoundLink
    uplink: FoundLink | None


class ForwardPath:
    """The way while it is there: the inside's address, the gateway's MAC (six bytes), the outside's address; `table`: the one
    that traces; `uplink`: the link by which the node would lead a pod's datagram, None for none."""

    def __init__(self, tap: Tap, notices: NetlinkConnection, found: _FoundPath) -> None:
        self._tap = tap
        self._notices = notices
        self._machine = b"\2" + secrets.token_bytes(5)
        self._own = b""
        self.table = f"userspace-cni-way-{secrets.token_hex(4)}"
        self.outside = found.outside
        self.inside = found.outside
        self.gateway = bytes.fromhex(found.gateway.mac.replace(":", ""))
        self.uplink = found.uplink

    def set_up(self, kernel: Kernel, gateway: FoundLink, ends: PathEnds, candidates: Sequence[Address]) -> int:
        """Make neighbours and route; the index of the outside's link. Raises Unavailable and what the kernel refuses."""
        link = kernel.links()[self._tap.name]
        self._own = bytes.fromhex(link.mac.replace(":", ""))
        kernel.set_up(link)
        kernel.add_neighbour(link.index, str(self.outside), self._machine.hex(":"))
        kernel.add_route(str(ip_network(self.outside)), "", table=ends.table, index=link.index)
        self.inside = _claimed(kernel, gateway, candidates, ends)
        return link.index

    def watched(self) -> tuple[int, int]:
        """The descriptors that can be read when something has come: from the outside's link, and of traces."""
        return self._tap.fileno(), self._notices.fileno()

    def read(self) -> Iterator[Datagram]:
        """The datagrams that have come to the outside. Never waits."""
        with suppress(BlockingIOError):
            while True:
                found = read(os.read(self._tap.fileno(), _FRAME_MAX))
                if found:
                    yield found

    def write(self, datagram: Datagram) -> None:
        """Have the datagram arrive from the outside."""
        os.write(self._tap.fileno(), build_frame(datagram, self._own, self._machine))

    def read_traces(self) -> list[TraceNotice]:
        """What the kernel has told of traced packets; call it when the descriptor says so."""
        return [found for each in self._notices.read_notices() if (found := traces.read_trace(*each))]


@contextmanager
def forward_path(ends: PathEnds, switch_netns: str, root: HostRoot, deadline: Deadline) -> Iterator[ForwardPath]:
    """Make the way, and take it away afterwards. Raises UserspaceError for what keeps the node from having it."""
    what = f"gateway {ends.link}: making a way to an outside of ours"
    deadline.require(what)
    with ExitStack() as stack:
        netns = stack.enter_context(open_switch_netns(switch_netns, root))
        at = partial(at_node, switch_netns, root, what)
        found = at(lambda kernel: _look(kernel, ends))
        candidates = _candidates(ends, deadline, netns, found.gateway)
        try:
            tap = stack.enter_context(netns.do(lambda: Tap(_LINK)))
            kernel = netns.do(lambda: NetlinkConnection(NETFILTER))
            stack.callback(_CLOSER.close, kernel)
            notices = netns.do(lambda: NetlinkConnection(NETFILTER, traces.TRACES))
            stack.callback(_CLOSER.close, notices)
            way = ForwardPath(tap, notices, found)
            netns.do(lambda: _settle(tap.name, found))
            tap.set_carrier(present=True)
            index = at(lambda node: way.set_up(node, found.gateway, ends, candidates))
            stack.callback(at, lambda node: node.remove_neighbour(found.gateway.index, str(way.inside)))
            _make_table(kernel, way, index)
            stack.callback(_delete_table, kernel, way)
            yield way
        except TapRefused as error:
            raise Unavailable(f"{what}: {error.what}", error.look_at) from error
        except OSError as error:
            raise of_kernel(what, error, RIGHTS) from error


def generation(switch_netns: str = "", root: HostRoot = HERE) -> int:
    """The number of the node's rules of nftables, which each transaction raises by one: so a `forward_path` raises it by two. 0
    where the kernel has none. Raises Unavailable."""
    with open_switch_netns(switch_netns, root) as netns:
        try:
            with netns.do(lambda: NetlinkConnection(NETFILTER)) as kernel:
                ((_, payload),) = kernel.ask(nftables.get_generation())
                return nftables.generation(payload)
        except (OSError, ValueError):
            return 0


def _look(kernel: Kernel, ends: PathEnds) -> _FoundPath:
    links = kernel.links()
    gateway = links.get(ends.link)
    if gateway is None:
        raise Unavailable(f"link {ends.link}: it is not there", "the agent makes it again")
    return _FoundPath(_outside(kernel, ends), gateway, links.get(ends.uplink))


def _outside(kernel: Kernel, ends: PathEnds) -> Address:
    """An address to which the node has no route but a default one."""
    for text in _OUTSIDES[ends.subnet.version]:
        network = ip_network(text)
        if any(network.overlaps(each) for each in ends.avoided):
            continue
        found: Address = network[_RANDOM.randrange(1, network.num_addresses - 1)]
        if kernel.prefix_of(str(found)) in ("", "0.0.0.0/0", "::/0"):
            return found
    raise StepFailed(
        f"the node has routes of its own to all of {', '.join(_OUTSIDES[ends.subnet.version])}",
        "an address of one of these stands for the outside",
    )


def _candidates(ends: PathEnds, deadline: Deadline, netns: Netns, gateway: FoundLink) -> list[Address]:
    """Addresses of the subnet, in its last quarter where it is large, that no neighbour answers for."""
    whole, fixed = ends.subnet.num_addresses, 1 if ends.subnet.version == 4 else 0
    begin = whole - whole // 4 if whole > 64 else 1  # plugins begin with the first ones
    count = max(0, whole - fixed - begin)
    numbers = range(count) if count <= 64 else {_RANDOM.randrange(count) for _ in range(2 * _CANDIDATES)}
    free = [each for number in numbers if (each := ends.subnet[begin + number]) not in ends.taken]
    _RANDOM.shuffle(free)
    if not ends.asks:
        return free[:_CANDIDATES]
    try:
        with wire(netns, ends.link, listening=True) as opened:
            return ask_neighbours(opened, gateway.mac, (), free[:_CANDIDATES], deadline.within(_ANSWER_S))
    except OSError as error:
        raise of_kernel(f"link {ends.link}: asking for free addresses", error, RIGHTS) from error


def _claimed(kernel: Kernel, gateway: FoundLink, candidates: Sequence[Address], ends: PathEnds) -> Address:
    """The first of these that the node does not know at the gateway's link; from now on it is the inside's."""
    for each in candidates:
        if kernel.add_neighbour(gateway.index, str(each), ends.mac.hex(":")):
            return each
    raise Unavailable(
        f"no address of {ends.subnet} was found that no machine has", "ip neighbour show: the node knows who has one"
    )


def _settle(link: str, found: _FoundPath) -> None:
    """Give the link the settings of the uplink, and IPv6 where that is asked for: new links of the node may have none."""
    version, uplink = found.outside.version, found.uplink.name if found.uplink else ""
    wanted = {f"net/ipv6/conf/{link}/disable_ipv6": "0\n"} if version == 6 else {}
    if version == 4 and uplink:
        for name in _SETTINGS:
            theirs = Path(f"/proc/sys/net/ipv4/conf/{uplink}/{name}").read_text(encoding="ascii")
            wanted[f"net/ipv4/conf/{link}/{name}"] = theirs
    for name, value in wanted.items():
        own = Path("/proc/sys", name)
        if own.read_text(encoding="ascii") != value:
            own.write_text(value, encoding="ascii")


def _make_table(kernel: NetlinkConnection, way: ForwardPath, index: int) -> None:
    try:
        kernel.send(*nftables.batch(*traces.make(way.table, way.outside, index)))
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT):
            raise StepFailed(
                "a table of nftables that ends with its owner: the kernel has none",
                "Linux 5.12 has; without it a datagram could leave the node",
            ) from error
        raise


def _delete_table(kernel: NetlinkConnection, way: ForwardPath) -> None:
    with suppress(OSError):  # then it goes with the socket
        kernel.send(*nftables.batch(traces.delete(way.table, way.outside.version)))
