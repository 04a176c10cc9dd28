"""What the kernel has of the node's own network: links, addresses, routes, policy rules, neighbours; and changing it.

What we make carries NODE_PROTOCOL, and nothing without it is changed or removed. One look costs a socket and a millisecond;
routes are asked for by protocol or table, for a node may have a whole routing table of the Internet.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address, ip_interface, ip_network
from typing import Final, TypeVar

from userspace_cni.base.errors import StepFailed, of_kernel
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink import address_messages as addresses
from userspace_cni.host.netlink import link_messages as links
from userspace_cni.host.netlink import neighbour_messages as neighbours
from userspace_cni.host.netlink import route_messages as routes
from userspace_cni.host.netlink import rule_messages as rules
from userspace_cni.host.netlink.address_messages import FAMILIES, FoundAddress
from userspace_cni.host.netlink.link_messages import FoundLink
from userspace_cni.host.netlink.netns import is_gone, open_switch_netns
from userspace_cni.host.netlink.route_messages import MAIN, FoundRoute, Route
from userspace_cni.host.netlink.rule_messages import FoundRule
from userspace_cni.linux.netlink import ROUTE, Message, NetlinkConnection

T = TypeVar("T")

NODE_PROTOCOL: Final = 149
"""Of the node's own addresses (IFA_PROTO), routes (rtm_protocol) and policy rules (FRA_PROTOCOL) that we make. Others make none
with it: iproute2's rt_protos names none so; 148 is of routes in pods that come from Route resources."""
MARKS_ADDRESSES: Final = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (5, 18)
"""Whether this kernel keeps IFA_PROTO."""
RIGHTS: Final = "it takes CAP_NET_ADMIN in the network namespace of the switch"
_NO_WAY: Final = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL)
"""What the kernel says where no route leads to an address, or one that leads nowhere does."""


def at_node(switch_netns: str, root: HostRoot, what: str, work: Callable[[Kernel], T]) -> T:
    """The result of `work` in the namespace where the switch opens its ports; what the kernel refuses is `what` that failed.

    Raises Unavailable, StepFailed, and what `work` raises of ours.
    """

    def inside() -> T:
        with NetlinkConnection(ROUTE) as connection:
            return work(Kernel(connection))

    with open_switch_netns(switch_netns, root) as netns:
        try:
            return netns.do(inside)
        except OSError as error:
            raise of_kernel(what, error, RIGHTS) from error
        except (struct.error, LookupError, ValueError) as error:
            raise StepFailed(
                f"{what}: an answer of the kernel cannot be read ({error!r})", "ip address, ip route, ip rule"
            ) from error


def has_ended(switch_netns: str, root: HostRoot) -> bool:
    """Whether the namespace is gone, and all that was in it."""
    return bool(switch_netns) and is_gone(switch_netns, root)


class Kernel:
    """The kernel of one namespace, while one caller works there."""

    def __init__(self, connection: NetlinkConnection) -> None:
        self._connection = connection

    def links(self) -> dict[str, FoundLink]:
        found = map(links.read, self._listed(links.dump_without_counters()))
        return {each.name: each for each in found}

    def addresses(self) -> list[FoundAddress]:
        """Every address but link-local ones and those of loopback."""
        found = map(addresses.read, self._listed(addresses.dump(0), *FAMILIES))
        return [each for each in found if not each.interface.is_link_local and not each.interface.is_loopback]

    def set_up(self, link: FoundLink) -> None:
        self._connection.send(links.change(link.index, up=True))

    def add_address(self, link: FoundLink, address: str) -> None:
        """Give the link an address of ours, without asking whether it is free, which takes a second or two."""
        self._connection.send(addresses.add(link.index, ip_interface(address), NODE_PROTOCOL))

    def remove_address(self, found: FoundAddress) -> None:
        self._connection.send(addresses.remove(found))

    def routes(self, *, table: int = MAIN, protocol: int = 0) -> list[FoundRoute]:
        """The routes of a table, of that protocol alone if one is given; not those that come with addresses."""
        found = []
        for version in FAMILIES:
            try:
                listed = self._listed(routes.dump_table(version, table, protocol), version)
            except FileNotFoundError:  # there is no such table
                continue
            found += [routes.read(each) for each in listed if not routes.is_of_address(each)]
        # a kernel that does not filter gives all
        return [each for each in found if each.route.table == table and protocol in (0, each.protocol)]

    def add_route(self, dst: str, gw: str, *, table: int = MAIN, index: int = 0) -> None:
        """Add a route of ours. EEXIST where the table leads there already."""
        self._connection.send(routes.put(index, _route(dst, gw, table), NODE_PROTOCOL))

    def replace_route(self, dst: str, gw: str, *, table: int = MAIN, index: int = 0) -> None:
        """Put a route of ours in the place of the one that leads there."""
        self._connection.send(routes.put_or_replace(index, _route(dst, gw, table), NODE_PROTOCOL))

    def remove_route(self, found: FoundRoute) -> None:
        self._connection.send(routes.remove(found.index, found.route, NODE_PROTOCOL))

    def way_to(self, address: str) -> FoundRoute | None:
        """The route by which the node reaches the address; None where it has none, or the address is its own."""
        found = self._asked(routes.way_to(ip_address(address)), _NO_WAY)
        way = routes.read(found[0]) if found else None
        return None if way is None or way.is_void else way

    def prefix_of(self, address: str) -> str:
        """The destination of the route by which the node reaches the address, "" where it has none."""
        found = self._asked(routes.way_to(ip_address(address), entry=True), _NO_WAY)
        return str(routes.read(found[0]).route.dst) if found else ""

    def ask_neighbour(self, index: int, address: str) -> None:
        """Have the kernel ask for the neighbour's MAC, unless it knows it."""
        self._connection.send(neighbours.probe(index, address))

    def has_neighbour(self, index: int, address: str) -> bool:
        """Whether the neighbour has answered, and not failed to since."""
        return any(map(neighbours.was_heard, self._asked(neighbours.get(index, address), (errno.ENOENT,))))

    def add_neighbour(self, index: int, address: str, mac: str) -> bool:
        """Say who the neighbour is, for as long as one that was just heard; False where the kernel knows it, or looks for it."""
        return unless_there(partial(self._connection.send, neighbours.add(index, address, mac)))

    def remove_neighbour(self, index: int, address: str) -> None:
        unless_gone(partial(self._connection.send, neighbours.remove(index, address)))

    def rules(self) -> list[FoundRule]:
        """Every policy rule, of both versions of IP."""
        return [rules.read(each) for version in FAMILIES for each in self._listed(rules.dump(version), version)]

    def rules_for(self, link: str, version: int) -> list[int]:
        """The priorities of the policy rules, of that version of IP, for what comes in by the link."""
        found = map(rules.read, self._listed(rules.dump(version), version))
        return [each.priority for each in found if each.link == link]

    def add_rule(self, rule: FoundRule) -> None:
        self._connection.send(rules.add(rule))

    def remove_rule(self, rule: FoundRule) -> None:
        self._connection.send(rules.remove(rule))

    def _listed(self, message: Message, *versions: int) -> list[bytes]:
        """What there is, of these versions of IP: asked for a missing one, the kernel answers with all others."""
        families = {FAMILIES[each] for each in versions}
        return [payload for _, payload in self._connection.ask(message) if not families or payload[0] in families]

    def _asked(self, message: Message, nothing: tuple[int, ...]) -> list[bytes]:
        """The replies, none where the kernel refuses with one of these numbers."""
        try:
            return [payload for _, payload in self._connection.ask(message)]
        except OSError as error:
            if error.errno in nothing:
                return []
            raise


@dataclass(frozen=True)
class NodeLook:
    """A look at all of it that `is_lost` shares; called, it gives what the kernel has. Raises Unavailable and StepFailed."""

    switch_netns: str
    root: HostRoot = HERE

    def __call__(self) -> KernelLook:
        return at_node(
            self.switch_netns,
            self.root,
            "looking at the node's network",
            lambda kernel: KernelLook(kernel.links(), kernel.addresses(), kernel.routes(protocol=NODE_PROTOCOL), kernel.rules()),
        )


@dataclass(frozen=True)
class KernelLook:
    """What the kernel has: links by name, addresses, routes of ours in the main table, rules."""

    links: dict[str, FoundLink]
    addresses: list[FoundAddress]
    routes: list[FoundRoute]
    rules: list[FoundRule]

    def of_link(self, name: str) -> list[FoundAddress]:
        link = self.links.get(name)
        return [each for each in self.addresses if link and each.index == link.index]


def _route(dst: str, gw: str, table: int) -> Route:
    return Route(ip_network(dst), ip_address(gw) if gw else None, table=table)


def unless_there(change: Callable[[], object]) -> bool:
    """Make the change; False when the kernel says that it is there already."""
    return _unless(change, errno.EEXIST)


def unless_gone(change: Callable[[], object]) -> bool:
    """Make the change; False when the kernel says that what it is about is not there."""
    return _unless(change, errno.ESRCH, errno.ENOENT, errno.ENODEV, errno.EADDRNOTAVAIL)


def _unless(change: Callable[[], object], *numbers: int) -> bool:
    try:
        change()
    except OSError as error:
        if error.errno in numbers:
            return False
        raise
    return True
