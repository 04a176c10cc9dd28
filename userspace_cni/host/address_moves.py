"""Moves the addresses and routes of a NIC to the bridge that has the NIC as its port, and back: the driver of `AddressMove`.

The node must never be cut off. So what is new is made before what is old is taken away, each batch is one send of netlink, and a
node works at every point between two of them: with its addresses on the NIC; on both; on the bridge. The NIC is cut off from the
node's stack, which would hear each frame twice, only while the bridge has the addresses. Before anything moves, and after it, a
next hop must answer over the bridge; where none does, the addresses are on the NIC.

There: the bridge's link up, its addresses, its routes in the place of the NIC's; the cut; the NIC's addresses away.
Back: the cut away; the NIC's addresses and routes; the bridge's away.

What others have added at the bridge meanwhile goes back with the rest. What a record of another boot says is no source of
addresses.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final

from userspace_cni.attachment.drift import Absent, Drift, Value
from userspace_cni.attachment.steps import AddressMove, Driver, Seen
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import StepFailed, Unavailable, UserspaceError, combined, of_kernel
from userspace_cni.base.log import say
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host import boot
from userspace_cni.host.drops import NEEDED, Drops, differences, supported
from userspace_cni.host.frames import announcement
from userspace_cni.host.neighbours import wire
from userspace_cni.host.netlink import links
from userspace_cni.host.netlink.codec import EXCHANGE_MAX, ROUTE, Connection, Message
from userspace_cni.host.netns import Netns, is_gone, opened_switch
from userspace_cni.host.nics import Nic, looked, merged, silent_on
from userspace_cni.host.rtnetlink import (
    IPV4,
    IPV6,
    NODAD,
    NOPREFIXROUTE,
    Entry,
    address_key,
    delete_address,
    delete_route,
    network_of,
    new_address,
    replace_route,
    route_key,
    shown,
)

_BACK_S: Final = 5.0
_THERE: Final = frozenset({errno.EEXIST})
_TAKEN_OFF: Final = frozenset({errno.EADDRNOTAVAIL})
"""The kernel's word of an address that was to be taken off, and that others have taken off meanwhile."""
_GONE: Final = frozenset({errno.EADDRNOTAVAIL, errno.ESRCH, errno.ENODEV, errno.ENOENT})


def table_of(store: str) -> str:
    """The name of our table with the cuts of NICs."""
    return f"userspace-cni-cut-{store}"


@dataclass(frozen=True)
class _Ends:
    """A look at the two links of a move. Equal ones share it (`Seen.once`)."""

    nic: str
    bridge: str
    switch_netns: str
    root: HostRoot

    def __call__(self) -> tuple[Nic | None, Nic | None]:
        """The NIC and the bridge's local link, None for one that is not there."""
        found = looked((self.nic, self.bridge), self.switch_netns, self.root)
        return found.get(self.nic), found.get(self.bridge)


class AddressMoveDriver(Driver[AddressMove]):
    """Moves of addresses. `root` is the host's: the path of the switch's namespace is the host's; `boot_id` that of this boot."""

    def __init__(self, root: HostRoot = HERE, boot_id: Callable[[], str] = boot.boot_id) -> None:
        self._root = root
        self._boot_id = boot_id

    def apply(self, step: AddressMove, deadline: Deadline) -> None:
        """Move what is not there yet. Raises StepFailed when no next hop answers over the bridge; then the NIC has it all."""
        deadline.require(_what(step))
        if step.boot_id != self._boot_id():
            raise StepFailed(f"{_what(step)}: it was planned in another boot", "the NIC's addresses have to be looked at anew")
        nic, bridge = self._both(step)
        self._require_chains(step)
        with self._opened(step) as (netns, kernel):
            self._raise_bridge(step, bridge, netns, kernel, deadline)
            try:
                _send(kernel, _what(step), _to_bridge(step, bridge), _THERE)
                self._cut(step)
                _send(kernel, f"{_what(step)}: taking them off the NIC", _off_nic(step, nic), _GONE)
                _announce(netns, bridge, step.addresses)
                _require_answer(step, netns, bridge, deadline, "they are on the NIC again")
            except UserspaceError as error:
                self._go_back(step, error)

    def undo(self, step: AddressMove, deadline: Deadline) -> None:
        """Move all that the bridge has to the NIC, and set the bridge's link down where the NIC hears for itself again."""
        deadline.require(_what(step))
        if step.switch_netns and is_gone(step.switch_netns, self._root):
            return
        nic, bridge = self._look(step)()
        self._drops(step).remove(step.nic)
        if nic is None:
            say("warning", "the NIC is gone: what was moved from it is on the bridge alone, and goes with it", move=step.summary)
            return
        known = step if step.boot_id == self._boot_id() else replace(step, addresses=(), routes=())
        back = merged(known, nic, bridge)
        with self._opened(step) as (netns, kernel):
            given = _to_nic(back, nic)
            if not nic.up and (given or _over_nic(back, nic)):  # the kernel takes no routes over a link that is down
                _send(kernel, f"{_what(step)}: setting the NIC up", [links.changed(nic.index, up=True)], frozenset())
            _send(kernel, f"{_what(step)}: going back", given, _THERE | _TAKEN_OFF)
            _send(kernel, f"{_what(step)}: leading routes over the NIC", _over_nic(back, self._look(step)()[0] or nic), _THERE)
            if bridge:
                _send(kernel, f"{_what(step)}: clearing the bridge", _off_bridge(step, bridge), _GONE)
            _announce(netns, nic, back.addresses)
        added = [each for each in back.addresses if each not in step.addresses]
        if added:
            say("info", "addresses that were added meanwhile are on the NIC now", nic=step.nic, addresses=_shown(added))

    def check(self, step: AddressMove, deadline: Deadline) -> list[Drift]:
        """The bridge's link is up and has every address and route, the NIC has none of them, and is cut off."""
        deadline.require(_what(step))
        look = "in the switch's network namespace: ip address, ip route show table all, nft list tables"
        found = (*_differences(step, *self._look(step)()), *self._cut_differences(step, self._drops(step)()))
        return [Drift(_what(step), *each, look) for each in found]

    def lost(self, step: AddressMove, seen: Seen, deadline: Deadline) -> bool:
        """Whether the bridge lacks something that others have not removed, or the NIC has something of it."""
        deadline.require(_what(step))
        ends = seen.once(self._look(step))
        found = _differences(_still(step, merged(step, *ends)), *ends)
        return next(found, None) is not None or bool(self._cut_differences(step, seen.once(self._drops(step))))

    def _both(self, step: AddressMove) -> tuple[Nic, Nic]:
        """A fresh look at both links, which must be those that were planned with."""
        nic, bridge = self._look(step)()
        if nic is None or nic.index != step.ifindex:
            raise StepFailed(f"{_what(step)}: link {step.nic} is gone, or was made anew", "ip link; it is looked at again")
        if bridge is None:
            raise Unavailable(
                f"{_what(step)}: there is no link {step.bridge}", "ovs-vswitchd has not made it yet: is it running?"
            )
        if bridge.mac != nic.mac:
            raise StepFailed(
                f"{_what(step)}: link {step.bridge} has the MAC address {bridge.mac}, the NIC {nic.mac}",
                "neighbours would lose the node until they ask again: ovs-vsctl get bridge … other_config:hwaddr",
            )
        return nic, bridge

    def _require_chains(self, step: AddressMove) -> None:
        """Where the NIC is still to be cut off, the kernel must be able to: that is found out before anything moves."""
        if not step.cut or step.nic in self._drops(step)():
            return
        lacking = supported(step.switch_netns, self._root)
        if lacking:
            raise StepFailed(f"{_what(step)}: the NIC cannot be cut off from the stack, and nothing was moved: {lacking}", NEEDED)

    def _raise_bridge(self, step: AddressMove, bridge: Nic, netns: Netns, kernel: Connection, deadline: Deadline) -> None:
        """Set the bridge's link up; a bridge over which no next hop answers gets nothing."""
        _send(kernel, f"{_what(step)}: setting the bridge's link up", [links.changed(bridge.index, up=True)], frozenset())
        moved = {address_key(each) for each in bridge.addresses}
        if any(address_key(each) in moved for each in step.addresses):
            return
        try:
            _require_answer(step, netns, bridge, deadline, "nothing was moved")
        except UserspaceError:
            if step.cut and not bridge.up:
                _send(kernel, f"{_what(step)}: setting the bridge's link down", [links.set_down(bridge.index)], _GONE)
            raise

    def _cut(self, step: AddressMove) -> None:
        if not step.cut:
            self._drops(step).remove(step.nic)
        elif not self._drops(step).make(step.nic):
            raise StepFailed(f"{_what(step)}: cutting the NIC off from the stack: the kernel has no such chains", NEEDED)

    def _go_back(self, step: AddressMove, error: UserspaceError) -> None:
        say("warning", "moving addresses failed, they go back to the NIC", error=error, move=step.summary)
        try:
            self.undo(step, Deadline.after(_BACK_S))
        except UserspaceError as other:
            raise combined(f"{error.message}; and not all of it can be put back now", (error, other)) from error
        raise error

    def _cut_differences(self, step: AddressMove, chains: object) -> list[tuple[str, Value, Value]]:
        chain = chains.get(step.nic) if isinstance(chains, dict) else None
        if step.cut:
            return [(f"cut {field}".strip(), expected, found) for field, expected, found in differences(step.nic, chain)]
        return [("cut", Absent(), "a chain that drops what arrives")] if chain else []

    def _look(self, step: AddressMove) -> _Ends:
        return _Ends(step.nic, step.bridge, step.switch_netns, self._root)

    def _drops(self, step: AddressMove) -> Drops:
        return Drops(step.switch_netns, table_of(step.store), self._root)

    @contextmanager
    def _opened(self, step: AddressMove) -> Iterator[tuple[Netns, Connection]]:
        with opened_switch(step.switch_netns, self._root) as netns:
            try:
                kernel = netns.do(lambda: Connection(ROUTE))
            except OSError as error:
                raise of_kernel(_what(step), error, _RIGHTS) from error
            with kernel:
                yield netns, kernel


_RIGHTS: Final = "it takes CAP_NET_ADMIN in the network namespace of the switch; ip address, ip route show what is there"


def _what(step: AddressMove) -> str:
    return f"moving the addresses of {step.nic} to {step.bridge}"


def _shown(addresses: Iterable[Entry]) -> str:
    return ", ".join(f"{each['address']}/{each['prefixlen']}" for each in addresses)


def _in_order(addresses: Sequence[Entry]) -> list[Entry]:
    """So that the kernel shows them in the former order: a secondary one of IPv4 after its primary, the newest of IPv6 first."""
    later = [each for each in addresses if each["family"] == IPV6]
    return [each for each in addresses if each["family"] != IPV6] + later[::-1]


def _to_bridge(step: AddressMove, bridge: Nic) -> list[Message]:
    """The routes after the addresses: the kernel makes none by itself, so that none is in the way of another."""
    quiet = {IPV4: NOPREFIXROUTE, IPV6: NOPREFIXROUTE | NODAD}
    return _given(step.addresses, bridge, quiet) + [
        replace_route(each, bridge.index) for each in step.routes if not bridge.up or each not in bridge.routes
    ]


def _given(wanted: Sequence[Entry], link: Nic, flags: Mapping[int, int]) -> list[Message]:
    """Give the link the addresses that it lacks, in order, with more flags by their family.

    Of two IPv4 addresses of one network the later is secondary, and goes with the first: so one that is there too early is taken
    off first, and given again.
    """
    has = {address_key(each) for each in link.addresses}
    given: list[Entry] = []
    for each in _in_order(wanted):
        follows = each["family"] == IPV4 and network_of(each) in map(network_of, given)
        if follows or address_key(each) not in has:
            given.append(each)
    early = [delete_address(each, link.index) for each in given if address_key(each) in has]
    return early + [new_address(each, link.index, link.name, flags=flags.get(each["family"], 0)) for each in given]


def _off_nic(step: AddressMove, nic: Nic) -> list[Message]:
    """Its routes first: deleting what was replaced does nothing."""
    addresses, routes = {address_key(each) for each in step.addresses}, {route_key(each) for each in step.routes}
    stale = [delete_route(each, nic.index) for each in nic.routes if route_key(each) in routes]
    old = [each for each in nic.addresses if address_key(each) in addresses]
    return stale + [delete_address(each, nic.index) for each in _in_order(old)[::-1]]


def _to_nic(back: AddressMove, nic: Nic) -> list[Message]:
    """An address of IPv6 serves at once only without duplicate detection, and then gets the flags that it had."""
    has = {address_key(each) for each in nic.addresses}
    later = [each for each in back.addresses if each["family"] == IPV6 and address_key(each) not in has]
    return _given(back.addresses, nic, {IPV6: NODAD}) + [new_address(each, nic.index, nic.name) for each in later]


def _over_nic(back: AddressMove, nic: Nic) -> list[Message]:
    """The routes that have not come with the addresses."""
    has = {route_key(each) for each in nic.routes}
    return [replace_route(each, nic.index) for each in back.routes if route_key(each) not in has]


def _off_bridge(step: AddressMove, bridge: Nic) -> list[Message]:
    gone = [delete_route(each, bridge.index) for each in bridge.routes]
    gone += [delete_address(each, bridge.index) for each in _in_order(bridge.addresses)[::-1]]
    return [*gone, links.set_down(bridge.index)] if step.cut else gone


def _send(kernel: Connection, what: str, messages: Sequence[Message], passed: frozenset[int]) -> None:
    """Send the messages, in one call if they are not too many; all are tried. Raises the first refusal that is not `passed`."""
    refused: OSError | None = None
    try:
        for at in range(0, len(messages), EXCHANGE_MAX):
            for answer in kernel.exchange(*messages[at : at + EXCHANGE_MAX]):
                if answer.error and answer.error.errno not in passed:
                    refused = refused or answer.error
    except OSError as error:
        refused = error
    if refused:
        raise of_kernel(what, refused, _RIGHTS) from refused


def _announce(netns: Netns, link: Nic, addresses: Iterable[Entry]) -> None:
    """Tell the neighbours, who mostly know it: NIC and bridge have one MAC address. What fails shows by the next hop."""
    with suppress(OSError, UserspaceError), wire(netns, link.name, listening=False) as opened:
        for each in addresses:
            opened.send(announcement(link.mac, ip_address(each["address"])))


def _require_answer(step: AddressMove, netns: Netns, bridge: Nic, deadline: Deadline, outcome: str) -> None:
    own = [f"{each['address']}/{each['prefixlen']}" for each in step.addresses]
    if step.next_hops and len(silent_on(netns, bridge, own, step.next_hops, deadline)) == len(set(step.next_hops)):
        raise StepFailed(
            f"{_what(step)}: over the bridge no answer from the next hop {', '.join(step.next_hops)}; {outcome}",
            "look at the port of the NIC and its VLANs (ovs-vsctl show), and at the next hop itself",
        )


def _still(step: AddressMove, now: AddressMove) -> AddressMove:
    """The move without what others have removed from the bridge since it was planned: the next plan is without it, too."""
    addresses, routes = {address_key(each) for each in now.addresses}, {route_key(each) for each in now.routes}
    return replace(
        step,
        addresses=tuple(each for each in step.addresses if address_key(each) in addresses),
        routes=tuple(each for each in step.routes if route_key(each) in routes),
    )


def _differences(step: AddressMove, nic: Nic | None, bridge: Nic | None) -> Iterator[tuple[str, Value, Value]]:
    """Field, expected and found of what is not as moved."""
    if nic is None:
        yield f"link {step.nic}", "the NIC", Absent()
    if bridge is None or not bridge.up:
        yield f"link {step.bridge}", "up", "down" if bridge else Absent()
        return
    there = {address_key(each) for each in bridge.addresses}
    here = {address_key(each) for each in nic.addresses} if nic else set()
    ways = {route_key(each) for each in bridge.routes}
    for address in step.addresses:
        if address_key(address) not in there:
            yield f"address of {step.bridge}", _shown([address]), Absent()
        if address_key(address) in here:
            yield f"address of {step.nic}", Absent(), _shown([address])
    for route in step.routes:
        if route_key(route) not in ways:
            yield f"route over {step.bridge}", shown(route), Absent()
