"""What the kernel has of the node's own network: links, addresses, routes, policy rules; and changing them through pyroute2.

What we make carries NODE_PROTOCOL, and nothing without it is changed or removed. One look costs a socket and a few milliseconds;
routes are asked for by protocol or table, for a node may have a whole routing table of the Internet.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from socket import AF_INET, AF_INET6, AF_UNSPEC
from typing import TYPE_CHECKING, Any, Final, TypeVar

from userspace_cni.base.errors import StepFailed, of_kernel
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink.netns import is_gone, opened_switch
from userspace_cni.host.netlink.route_messages import MAIN

if TYPE_CHECKING:
    from pyroute2 import IPRoute

T = TypeVar("T")

NODE_PROTOCOL: Final = 149
"""Of the node's own addresses (IFA_PROTO), routes (rtm_protocol) and policy rules (FRA_PROTOCOL) that we make. Others make none
with it: iproute2's rt_protos names none so; 148 is of routes in pods that come from Route resources."""
MARKS_ADDRESSES: Final = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (5, 18)
"""Whether this kernel keeps IFA_PROTO."""
RIGHTS: Final = "it takes CAP_NET_ADMIN in the network namespace of the switch"
_UP = 1
_DUMP_INTR = 0x10
_TRIES = 5
_UNICAST = 1
_OF_ADDRESSES: Final = (2, 3, 4, 5)
"""Types of routes that come with addresses: local, broadcast, anycast, multicast."""
_NO_DAD = 0x02
_REACHABLE = 0x02
"""NUD_REACHABLE: it ages by itself."""
_FIB_MATCH = 0x2000
"""RTM_F_FIB_MATCH."""
_USE = 0x01
"""NTF_USE: as a packet to the neighbour would."""
_HEARD: Final = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80
"""NUD_REACHABLE, _STALE, _DELAY, _PROBE, _NOARP and _PERMANENT."""
_EVERYTHING: Final[dict[int, str]] = {AF_INET: "0.0.0.0/0", AF_INET6: "::/0"}
_FOREVER: Final = 2**32 - 1
"""FRA_SUPPRESS_PREFIXLEN of a rule that suppresses nothing."""


@dataclass(frozen=True)
class FoundLink:
    """A link."""

    index: int
    name: str
    up: bool
    mac: str
    mtu: int


@dataclass(frozen=True)
class FoundAddress:
    """An address with prefix length. `marked`: it carries our protocol number; kernels before 5.18 keep none."""

    index: int
    address: str
    marked: bool


@dataclass(frozen=True)
class FoundRoute:
    """A route, also one that leads nowhere. `gw` "" for one on the link, or with several next hops; `index` of its link, 0 for
    none or several."""

    dst: str
    gw: str
    index: int
    table: int
    protocol: int


@dataclass(frozen=True)
class FoundRule:
    """A policy rule. `source` "" for any; `suppresses`: FRA_SUPPRESS_PREFIXLEN, None for none."""

    source: str
    table: int
    priority: int
    protocol: int
    suppresses: int | None


def at_node(switch_netns: str, root: HostRoot, what: str, work: Callable[[Kernel], T]) -> T:
    """The result of `work` in the namespace where the switch opens its ports; what the kernel refuses is `what` that failed.

    Raises Unavailable, StepFailed, and what `work` raises of ours.
    """
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkDecodeError, NetlinkError

    def inside() -> T:
        with IPRoute(strict_check=True) as kernel:
            return work(Kernel(kernel))

    with opened_switch(switch_netns, root) as netns:
        try:
            return netns.do(inside)
        except NetlinkError as error:
            raise of_kernel(what, OSError(error.code, os.strerror(error.code)), RIGHTS) from error
        except OSError as error:
            raise of_kernel(what, error, RIGHTS) from error
        except (NetlinkDecodeError, struct.error, KeyError) as error:
            raise StepFailed(
                f"{what}: an answer of the kernel cannot be read ({error!r})", "ip address, ip route, ip rule"
            ) from error


def has_ended(switch_netns: str, root: HostRoot) -> bool:
    """Whether the namespace is gone, and all that was in it."""
    return bool(switch_netns) and is_gone(switch_netns, root)


class Kernel:
    """The kernel of one namespace, while one caller works there."""

    def __init__(self, kernel: IPRoute) -> None:
        self._kernel = kernel

    def links(self) -> dict[str, FoundLink]:
        """Every link, by name."""
        found = (
            FoundLink(
                each["index"],
                each.get_attr("IFLA_IFNAME"),
                bool(each["flags"] & _UP),
                each.get_attr("IFLA_ADDRESS") or "",
                each.get_attr("IFLA_MTU") or 0,
            )
            for each in self._dump(self._kernel.link)
        )
        return {each.name: each for each in found}

    def addresses(self) -> list[FoundAddress]:
        """Every address but link-local ones and those of loopback."""
        return list(self._addresses())

    def _addresses(self) -> Iterator[FoundAddress]:
        for each in self._dump(self._kernel.addr):
            # IFA_LOCAL is a link's own address where IFA_ADDRESS is its peer's
            text = each.get_attr("IFA_LOCAL") or each.get_attr("IFA_ADDRESS")
            address = ip_address(text)
            if not address.is_link_local and not address.is_loopback:
                marked = each.get_attr("IFA_PROTO") == NODE_PROTOCOL
                yield FoundAddress(each["index"], f"{address}/{each['prefixlen']}", marked)

    def set_up(self, link: FoundLink) -> None:
        """Set the link up."""
        self._kernel.link("set", index=link.index, state="up")

    def add_address(self, link: FoundLink, address: str) -> None:
        """Give the link an address of ours, without asking whether it is free, which takes a second or two."""
        text, _, length = address.partition("/")
        more = {"IFA_FLAGS": _NO_DAD} if ":" in text else {}
        self._kernel.addr("add", index=link.index, address=text, prefixlen=int(length), IFA_PROTO=NODE_PROTOCOL, **more)

    def remove_address(self, found: FoundAddress) -> None:
        """Take the address from its link."""
        text, _, length = found.address.partition("/")
        self._kernel.addr("del", index=found.index, address=text, prefixlen=int(length))

    def routes(self, *, table: int = MAIN, protocol: int | None = None) -> list[FoundRoute]:
        """The routes of a table, of that protocol alone if one is given."""
        chosen: dict[str, Any] = {"table": table} | ({} if protocol is None else {"proto": protocol})
        return [
            _route(each, family)
            for family in _EVERYTHING
            for each in self._dump(self._kernel.route, family, **chosen)
            # a kernel that does not filter gives all
            if each["type"] not in _OF_ADDRESSES and _table(each) == table and protocol in (None, each["proto"])
        ]

    def add_route(self, dst: str, gw: str, *, table: int = MAIN, index: int = 0) -> None:
        """Add a route of ours. EEXIST where the table leads there already."""
        self._change("add", dst, gw, table, index)

    def replace_route(self, dst: str, gw: str, *, table: int = MAIN, index: int = 0) -> None:
        """Put a route of ours in the place of the one that leads there."""
        self._change("replace", dst, gw, table, index)

    def remove_route(self, found: FoundRoute) -> None:
        """Remove that very route, which is ours."""
        self._change("del", found.dst, found.gw, found.table, found.index)

    def way_to(self, address: str) -> FoundRoute | None:
        """The route by which the node reaches the address; None where it has none, or the address is its own."""
        from pyroute2.netlink.exceptions import NetlinkError

        family = AF_INET6 if ":" in address else AF_INET
        try:
            (found,) = self._kernel.route("get", family=family, dst=address)
        except NetlinkError as error:
            if error.code in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL):
                return None
            raise
        return _route(found, family) if found["type"] == _UNICAST else None

    def ask_neighbour(self, index: int, address: str) -> None:
        """Have the kernel ask for the neighbour's MAC, unless it knows it."""
        self._kernel.neigh("replace", dst=address, ifindex=index, flags=_USE, state=0)

    def has_neighbour(self, index: int, address: str) -> bool:
        """Whether the neighbour has answered, and not failed to since."""
        from pyroute2.netlink.exceptions import NetlinkError

        try:
            found = self._kernel.neigh("get", dst=address, ifindex=index)
        except NetlinkError as error:
            if error.code != errno.ENOENT:
                raise
            return False
        return any(each["state"] & _HEARD for each in found)

    def add_neighbour(self, index: int, address: str, mac: str) -> bool:
        """Say who the neighbour is, for as long as one that was just heard; False where the kernel knows it, or looks for it."""
        return unless_there(partial(self._kernel.neigh, "add", dst=address, ifindex=index, lladdr=mac, state=_REACHABLE))

    def remove_neighbour(self, index: int, address: str) -> None:
        """Forget the neighbour."""
        unless_gone(partial(self._kernel.neigh, "del", dst=address, ifindex=index))

    def prefix_of(self, address: str) -> str:
        """The destination of the route by which the node reaches the address, "" where it has none."""
        from pyroute2.netlink.exceptions import NetlinkError

        family = AF_INET6 if ":" in address else AF_INET
        try:
            (found,) = self._kernel.route("get", family=family, dst=address, flags=_FIB_MATCH)
        except NetlinkError as error:
            if error.code in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL):
                return ""
            raise
        return _route(found, family).dst

    def rules(self) -> list[FoundRule]:
        """Every policy rule, of both families."""
        return [_rule(each) for family in _EVERYTHING for each in self._dump(self._kernel.rule, family)]

    def rules_for(self, link: str, version: int) -> list[int]:
        """The priorities of the policy rules, of that version of IP, for what comes in by the link."""
        found = self._dump(self._kernel.rule, AF_INET6 if version == 6 else AF_INET)
        return [each.get_attr("FRA_PRIORITY") or 0 for each in found if each.get_attr("FRA_IIFNAME") == link]

    def add_rule(self, rule: FoundRule) -> None:
        """Add a rule of ours."""
        self._rule("add", rule)

    def remove_rule(self, rule: FoundRule) -> None:
        """Remove that very rule, which is ours."""
        self._rule("del", rule)

    def _dump(self, listing: Callable[..., Any], family: int = AF_UNSPEC, **chosen: Any) -> list[Any]:
        """What there is of that family; listed again if it was changed meanwhile, up to 5 times. Raises OSError."""
        for _ in range(_TRIES):
            found = list(listing("dump", family=family, **chosen))
            if not any(each["header"]["flags"] & _DUMP_INTR for each in found):
                # where IPv6 is off, the kernel answers a question about it for all other families
                return [each for each in found if family in (AF_UNSPEC, each["family"])]
        raise InterruptedError(errno.EINTR, "what was listed changed meanwhile")

    def _change(self, verb: str, dst: str, gw: str, table: int, index: int) -> None:
        where = ({"gateway": gw} if gw else {}) | ({"oif": index} if index else {})
        family = AF_INET6 if ":" in dst else AF_INET
        self._kernel.route(verb, family=family, dst=dst, table=table, proto=NODE_PROTOCOL, **where)

    def _rule(self, verb: str, rule: FoundRule) -> None:
        more = {} if rule.suppresses is None else {"FRA_SUPPRESS_PREFIXLEN": rule.suppresses}
        self._kernel.rule(
            verb,
            family=AF_INET6 if ":" in rule.source else AF_INET,
            src=rule.source,
            table=rule.table,
            priority=rule.priority,
            protocol=rule.protocol,
            **more,
        )


@dataclass(frozen=True)
class NodeLook:
    """A look at all of it that `lost` shares; called, it gives what the kernel has. Raises Unavailable and StepFailed."""

    switch_netns: str
    root: HostRoot = HERE

    def __call__(self) -> Looked:
        """Look."""
        return at_node(
            self.switch_netns,
            self.root,
            "looking at the node's network",
            lambda kernel: Looked(kernel.links(), kernel.addresses(), kernel.routes(protocol=NODE_PROTOCOL), kernel.rules()),
        )


@dataclass(frozen=True)
class Looked:
    """What the kernel has: links by name, addresses, routes of ours in the main table, rules."""

    links: dict[str, FoundLink]
    addresses: list[FoundAddress]
    routes: list[FoundRoute]
    rules: list[FoundRule]

    def of_link(self, name: str) -> list[FoundAddress]:
        """The addresses of the link of that name."""
        link = self.links.get(name)
        return [each for each in self.addresses if link and each.index == link.index]


def network_of(found: FoundRoute) -> IPv4Network | IPv6Network:
    """Where the route leads."""
    return ip_network(found.dst)


def _route(found: Any, family: int) -> FoundRoute:
    dst = found.get_attr("RTA_DST")
    return FoundRoute(
        dst=f"{dst}/{found['dst_len']}" if dst else _EVERYTHING[family],
        gw=found.get_attr("RTA_GATEWAY") or "",
        index=found.get_attr("RTA_OIF") or 0,
        table=_table(found),
        protocol=found["proto"],
    )


def _table(found: Any) -> int:
    table: int = found.get_attr("RTA_TABLE") or found["table"]
    return table


def _rule(found: Any) -> FoundRule:
    source = found.get_attr("FRA_SRC")
    suppresses = found.get_attr("FRA_SUPPRESS_PREFIXLEN")
    return FoundRule(
        source=f"{source}/{found['src_len']}" if source else "",
        table=found.get_attr("FRA_TABLE") or found["table"],
        priority=found.get_attr("FRA_PRIORITY") or 0,
        protocol=found.get_attr("FRA_PROTOCOL") or 0,
        suppresses=None if suppresses in (None, _FOREVER) else suppresses,
    )


def unless_there(change: Callable[[], object]) -> bool:
    """Make the change; False when the kernel says that it is there already."""
    return _unless(change, "EEXIST")


def unless_gone(change: Callable[[], object]) -> bool:
    """Make the change; False when the kernel says that what it is about is not there."""
    return _unless(change, "ESRCH", "ENOENT", "ENODEV", "EADDRNOTAVAIL")


def _unless(change: Callable[[], object], *names: str) -> bool:
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        change()
    except NetlinkError as error:
        if errno.errorcode.get(error.code) in names:
            return False
        raise
    return True
