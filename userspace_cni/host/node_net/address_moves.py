"""Moves the addresses and routes of a NIC to the bridge that has the NIC as its port, and back: the driver of `AddressMove`.

The node must never be cut off. So the new addresses are made before the old ones are removed, each batch is one send of
netlink, and the node works at every point between two batches: with its addresses on the NIC, on both, or on the bridge. The
NIC is cut off from the node's stack, which would receive each frame twice, only while the bridge has the addresses. A next hop
must answer over the bridge before the move and after it; if none does, the addresses stay on the NIC or go back.

There: the bridge's link up, its addresses, its routes in the place of the NIC's; the cut; the NIC's addresses away.
Back: the cut away; the NIC's addresses and routes; the bridge's away.

Addresses that other programs add at the bridge go back with the rest, and those that they remove stay removed, also during a
move: an address that is on neither link, while others of its family are, is not made again. No address is ever taken from a
record of another boot.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final

from userspace_cni.attachment.drift import Absent, Drift, Value
from userspace_cni.attachment.steps import AddressMove, Driver, Kept, KeptAddress, KeptRoute, SharedReads
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import StepFailed, Unavailable, UserspaceError, combine, of_kernel
from userspace_cni.base.log import say
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink import link_messages as links
from userspace_cni.host.netlink.kept_messages import (
    DELETE_ADDRESS,
    NODAD,
    NOPREFIXROUTE,
    delete_address,
    delete_route,
    new_address,
    replace_route,
)
from userspace_cni.host.netlink.netns import Netns, is_gone, open_switch_netns
from userspace_cni.host.node_net.nics import Nic, find_silent, look_at_all, merge_changes
from userspace_cni.host.pod_net.ingress_drops import NEEDED, Drops, differences, why_unsupported
from userspace_cni.host.pod_net.neighbour_frames import announcement
from userspace_cni.host.pod_net.neighbour_queries import wire
from userspace_cni.linux import boot
from userspace_cni.linux.netlink import EXCHANGE_MAX, ROUTE, Answer, Message, NetlinkConnection

_BACK_S: Final = 5.0
_ROUNDS: Final = 5
"""Of going back, while others add addresses at the bridge: one that is done in some milliseconds needs two."""
_THERE: Final = frozenset({errno.EEXIST})
_TAKEN_OFF: Final = frozenset({errno.EADDRNOTAVAIL})
"""The kernel's error for an address that others have removed already."""
_GONE: Final = frozenset({errno.EADDRNOTAVAIL, errno.ESRCH, errno.ENODEV, errno.ENOENT})


def table_of(store: str) -> str:
    """The name of our table with the cuts of NICs."""
    return f"userspace-cni-cut-{store}"


@dataclass(frozen=True)
class _MoveEnds:
    """A look at the two links of a move. Equal ones share it (`SharedReads.once`)."""

    nic: str
    bridge: str
    switch_netns: str
    root: HostRoot

    def __call__(self) -> tuple[Nic | None, Nic | None]:
        """The NIC and the bridge's local link, None for one that is not there."""
        found = look_at_all((self.nic, self.bridge), self.switch_netns, self.root)
        return found.get(self.nic), found.get(self.bridge)


class AddressMoveDriver(Driver[AddressMove]):
    """Moves of addresses. `root` is the host's: the path of the switch's namespace is the host's; `boot_id` that of this boot."""

    def __init__(self, root: HostRoot = HERE, boot_id: Callable[[], str] = boot.boot_id) -> None:
        self._root = root
        self._boot_id = boot_id

    def apply(self, step: AddressMove, deadline: Deadline) -> None:
        """Move what is not there yet. Raises StepFailed when no next hop answers over the bridge; then the NIC has it all.

        What others add at the NIC meanwhile stays there, for the next plan to move.
        """
        deadline.require(_what(step))
        if step.boot_id != self._boot_id():
            raise StepFailed(f"{_what(step)}: it was planned in another boot", "the NIC's addresses have to be looked at again")
        _, bridge = self._both(step)
        self._require_chains(step)
        with self._opened(step) as (netns, kernel):
            self._raise_bridge(step, bridge, netns, kernel, deadline)
            try:
                nic, bridge = self._both(step)  # asking the next hops may have taken seconds
                now = _unremoved(step, nic, bridge)
                _send(kernel, _what(step), _to_bridge(now, bridge), _THERE | _TAKEN_OFF, bridge)
                self._cut(step)
                gone = _take_off(kernel, f"{_what(step)}: taking them off the NIC", nic, *_of_nic(now, nic))
                if gone and self._is_up(step, step.nic):
                    _take_off(kernel, f"{_what(step)}: removing what others have removed", bridge, (), gone)
                _announce(netns, bridge, now.addresses)
                _require_answer(now, netns, bridge, deadline, "they are on the NIC again")
            except UserspaceError as error:
                self._go_back(step, error)
        _tell("addresses have moved to the bridge", step, _beside(now.addresses, (*bridge.addresses, *gone)))

    def undo(self, step: AddressMove, deadline: Deadline) -> None:
        """Move all that the bridge has to the NIC, and set the bridge's link down where the NIC hears for itself again.

        It ends when a look finds nothing at the bridge: others may have added something meanwhile. Raises Unavailable while there
        is no NIC and the bridge has addresses: with it they would be gone.
        """
        deadline.require(_what(step))
        if step.switch_netns and is_gone(step.switch_netns, self._root):
            return
        nic, bridge = self._look(step)()
        self._drops(step).remove(step.nic)
        known = step if step.boot_id == self._boot_id() else replace(step, addresses=(), routes=())
        with self._opened(step) as (netns, kernel):
            for _ in range(_ROUNDS):
                if nic is None:
                    _require_nothing_left(step, bridge)
                    return
                self._give_back(merge_changes(known, nic, bridge), nic, bridge, netns, kernel)
                nic, bridge = self._look(step)()
                if bridge is None or not bridge.addresses:
                    break
            else:
                raise Unavailable(
                    f"{_what(step)}: going back: {step.bridge} gets addresses as fast as they are taken off",
                    f"see which program adds them: ip monitor address dev {step.bridge}",
                )
            if bridge and step.cut:
                _send(kernel, f"{_what(step)}: setting the bridge's link down", [links.set_down(bridge.index)], _GONE)

    def _give_back(self, back: AddressMove, nic: Nic, bridge: Nic | None, netns: Netns, kernel: NetlinkConnection) -> None:
        """One round of going back."""
        given, what = _to_nic(back, nic), _what(back)
        if not nic.up and (given or _over_nic(back, nic)):  # the kernel takes no routes over a link that is down
            _send(kernel, f"{what}: setting the NIC up", [links.change(nic.index, up=True)], frozenset())
        _send(kernel, f"{what}: going back", given, _THERE | _TAKEN_OFF, nic)
        _send(kernel, f"{what}: leading routes over the NIC", _over_nic(back, self._look(back)()[0] or nic), _THERE)
        gone: Sequence[KeptAddress] = ()
        if bridge:
            gone = _take_off(kernel, f"{what}: clearing the bridge", bridge, bridge.routes, bridge.addresses)
            if gone and self._is_up(back, back.bridge):
                _take_off(kernel, f"{what}: removing what others have removed", nic, (), gone)
        _announce(netns, nic, back.addresses)
        _tell("addresses have gone back to the NIC", back, _beside(back.addresses, (*nic.addresses, *gone)))

    def describe_effects(self, step: AddressMove) -> tuple[Sequence[str], Sequence[str]]:
        """As ip(8) takes them, in the order and batches in which the kernel gets them."""
        addresses = [each.shown for each in step.addresses]
        there = [
            f"ip link set dev {step.bridge} up",
            *(f"ip address replace {each} dev {step.bridge} noprefixroute" for each in addresses),
            *(f"ip route replace {each.shown} dev {step.bridge}" for each in step.routes),
            *([f"nft: the node's own stack no longer hears {step.nic}"] if step.cut else []),
            *(f"ip address delete {each} dev {step.nic}" for each in reversed(addresses)),
        ]
        if step.next_hops:
            told = "one of " if len(step.next_hops) > 1 else ""
            there.append(f"{told}{', '.join(step.next_hops)} has to answer on {step.bridge}, else all of it goes back")
        back = [
            *([f"nft: the node's own stack hears {step.nic} again"] if step.cut else []),
            *(f"ip address replace {each} dev {step.nic}" for each in addresses),
            *(f"ip route replace {each.shown} dev {step.nic}" for each in step.routes),
            *(f"ip address delete {each} dev {step.bridge}" for each in reversed(addresses)),
        ]
        return there, back

    def check(self, step: AddressMove, deadline: Deadline) -> list[Drift]:
        """The bridge's link is up and has every address and route, the NIC has none of them, and is cut off."""
        deadline.require(_what(step))
        look = "in the switch's network namespace: ip address, ip route show table all, nft list tables"
        found = (*_differences(step, *self._look(step)()), *self._cut_differences(step, self._drops(step)()))
        return [Drift(_what(step), *each, look) for each in found]

    def is_lost(self, step: AddressMove, seen: SharedReads, deadline: Deadline) -> bool:
        """Whether the bridge lacks something that others have not removed, or the NIC has something of it."""
        deadline.require(_what(step))
        ends = seen.once(self._look(step))
        found = _differences(_still(step, merge_changes(step, *ends)), *ends)
        return next(found, None) is not None or bool(self._cut_differences(step, seen.once(self._drops(step))))

    def _both(self, step: AddressMove) -> tuple[Nic, Nic]:
        """Reads both links anew; they must be those of the plan."""
        nic, bridge = self._look(step)()
        if nic is None or nic.index != step.ifindex:
            raise StepFailed(f"{_what(step)}: link {step.nic} is gone, or was recreated", "ip link; it is looked at again")
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
        lacking = why_unsupported(step.switch_netns, self._root)
        if lacking:
            raise StepFailed(f"{_what(step)}: the NIC cannot be cut off from the stack, and nothing was moved: {lacking}", NEEDED)

    def _raise_bridge(self, step: AddressMove, bridge: Nic, netns: Netns, kernel: NetlinkConnection, deadline: Deadline) -> None:
        """Set the bridge's link up; a bridge over which no next hop answers gets nothing."""
        _send(kernel, f"{_what(step)}: setting the bridge's link up", [links.change(bridge.index, up=True)], frozenset())
        moved = {each.key for each in bridge.addresses}
        if any(each.key in moved for each in step.addresses):
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
            raise combine(f"{error.message}; and not all of it can be put back now", (error, other)) from error
        raise error

    def _cut_differences(self, step: AddressMove, chains: object) -> list[tuple[str, Value, Value]]:
        chain = chains.get(step.nic) if isinstance(chains, dict) else None
        if step.cut:
            return [(f"cut {field}".strip(), expected, found) for field, expected, found in differences(step.nic, chain)]
        return [("cut", Absent(), "a chain that drops what arrives")] if chain else []

    def _is_up(self, step: AddressMove, name: str) -> bool:
        """Whether the link is up: setting a link down removes its IPv6 addresses; that is not another program's change."""
        link = look_at_all((name,), step.switch_netns, self._root).get(name)
        return link is not None and link.up

    def _look(self, step: AddressMove) -> _MoveEnds:
        return _MoveEnds(step.nic, step.bridge, step.switch_netns, self._root)

    def _drops(self, step: AddressMove) -> Drops:
        return Drops(step.switch_netns, table_of(step.store), self._root)

    @contextmanager
    def _opened(self, step: AddressMove) -> Iterator[tuple[Netns, NetlinkConnection]]:
        with open_switch_netns(step.switch_netns, self._root) as netns:
            try:
                kernel = netns.do(lambda: NetlinkConnection(ROUTE))
            except OSError as error:
                raise of_kernel(_what(step), error, _RIGHTS) from error
            with kernel:
                yield netns, kernel


_RIGHTS: Final = "it takes CAP_NET_ADMIN in the network namespace of the switch; ip address, ip route show what is there"


def _what(step: AddressMove) -> str:
    return f"moving the addresses of {step.nic} to {step.bridge}"


def _shown(addresses: Iterable[KeptAddress]) -> str:
    return ", ".join(each.shown for each in addresses)


def _in_order(addresses: Sequence[KeptAddress]) -> list[KeptAddress]:
    """So that the kernel shows them in the former order: a secondary one of IPv4 after its primary, the newest of IPv6 first."""
    later = [each for each in addresses if each.version == 6]
    return [each for each in addresses if each.version == 4] + later[::-1]


def _to_bridge(step: AddressMove, bridge: Nic) -> list[Message]:
    """The routes after the addresses: the kernel makes none by itself, so that none is in the way of another."""
    quiet = {4: NOPREFIXROUTE, 6: NOPREFIXROUTE | NODAD}
    return _given(step.addresses, bridge, quiet) + [
        replace_route(each, bridge.index) for each in step.routes if not bridge.up or each not in bridge.routes
    ]


def _given(wanted: Sequence[KeptAddress], link: Nic, flags: Mapping[int, int]) -> list[Message]:
    """Give the link the addresses that it lacks, in order, with more flags by their version.

    Of two IPv4 addresses of one network the later is secondary, and goes with the first: so one that is there too early is taken
    off first, and given again.
    """
    has = {each.key for each in link.addresses}
    given: list[KeptAddress] = []
    for each in _in_order(wanted):
        follows = each.version == 4 and each.network in [other.network for other in given]
        if follows or each.key not in has:
            given.append(each)
    early = [delete_address(each, link.index) for each in given if each.key in has]
    return early + [new_address(each, link.index, link.name, flags=flags.get(each.version, 0)) for each in given]


def _of_nic(step: AddressMove, nic: Nic) -> tuple[list[KeptRoute], list[KeptAddress]]:
    """The routes and addresses of the NIC that have moved; deleting a route that was replaced does nothing."""
    addresses, routes = {each.key for each in step.addresses}, {each.key for each in step.routes}
    return [each for each in nic.routes if each.key in routes], [each for each in nic.addresses if each.key in addresses]


def _to_nic(back: AddressMove, nic: Nic) -> list[Message]:
    """An address of IPv6 serves at once only without duplicate detection, and then gets the flags that it had."""
    has = {each.key for each in nic.addresses}
    later = [each for each in back.addresses if each.version == 6 and each.key not in has]
    return _given(back.addresses, nic, {6: NODAD}) + [new_address(each, nic.index, nic.name) for each in later]


def _over_nic(back: AddressMove, nic: Nic) -> list[Message]:
    """The routes that have not come with the addresses."""
    has = {each.key for each in nic.routes}
    return [replace_route(each, nic.index) for each in back.routes if each.key not in has]


def _take_off(
    kernel: NetlinkConnection, what: str, link: Nic, routes: Iterable[KeptRoute], addresses: Sequence[KeptAddress]
) -> Sequence[KeptAddress]:
    """Take routes and addresses off the link, the last address first; returns the addresses that it had no more."""
    old = _in_order(addresses)[::-1]
    stale = [delete_route(each, link.index) for each in routes]
    answers = _send(kernel, what, stale + [delete_address(each, link.index) for each in old], _GONE, link)
    ends = zip(old, answers[len(stale) :], strict=True)
    return [each for each, answer in ends if answer.error and answer.error.errno in _TAKEN_OFF]


def _send(
    kernel: NetlinkConnection, what: str, messages: Sequence[Message], passed: frozenset[int], link: Nic | None = None
) -> list[Answer]:
    """Send the messages, in one call if they are not too many; all are tried. Raises the first refusal that is not `passed`.

    `link`: the one from which some of them take addresses. What others have just added there in the network of one of these must
    not go with it: the kernel keeps it for as long as the call takes, so that also a killed process leaves the setting as it was.
    """
    takes = link is not None and not link.promotes and any(each.type == DELETE_ADDRESS for each in messages)
    around = [links.promoting(link.index, on=on) for on in (True, False)] if link and takes else []
    found: list[Answer] = []
    try:
        for at in range(0, len(messages), EXCHANGE_MAX - 2):
            batch = messages[at : at + EXCHANGE_MAX - 2]
            found += kernel.exchange(*around[:1], *batch, *around[1:])[len(around[:1]) :][: len(batch)]
    except OSError as error:
        raise of_kernel(what, error, _RIGHTS) from error
    refused = next((each.error for each in found if each.error and each.error.errno not in passed), None)
    if refused:
        raise of_kernel(what, refused, _RIGHTS) from refused
    return found


def _beside(addresses: Iterable[KeptAddress], others: Iterable[KeptAddress]) -> list[KeptAddress]:
    known = {each.key for each in others}
    return [each for each in addresses if each.key not in known]


def _tell(what: str, step: AddressMove, addresses: Sequence[KeptAddress]) -> None:
    if addresses:
        say("info", what, nic=step.nic, bridge=step.bridge, addresses=_shown(addresses))


def _require_nothing_left(step: AddressMove, bridge: Nic | None) -> None:
    if bridge and bridge.addresses:
        raise Unavailable(
            f"there is no NIC {step.nic} to which {_shown(bridge.addresses)} could go back: {step.bridge} stays, and has them",
            "they go back when the NIC is there again; `userspace-cni uplink remove NAME --force` gives them up",
        )


def _announce(netns: Netns, link: Nic, addresses: Iterable[KeptAddress]) -> None:
    """Tell the neighbours, who mostly know it: NIC and bridge have one MAC address. What fails shows by the next hop."""
    with suppress(OSError, UserspaceError), wire(netns, link.name, listening=False) as opened:
        for each in addresses:
            opened.send(announcement(link.mac, ip_address(each.address)))


def _require_answer(step: AddressMove, netns: Netns, bridge: Nic, deadline: Deadline, outcome: str) -> None:
    own = [each.shown for each in step.addresses]
    if step.next_hops and len(find_silent(netns, bridge, own, step.next_hops, deadline)) == len(set(step.next_hops)):
        raise StepFailed(
            f"{_what(step)}: over the bridge no answer from the next hop {', '.join(step.next_hops)}; {outcome}",
            "look at the port of the NIC and its VLANs (ovs-vsctl show), and at the next hop itself",
        )


def _still(step: AddressMove, now: AddressMove) -> AddressMove:
    """The move without what others have removed from the bridge since it was planned: the next plan is without it, too."""
    addresses, routes = {each.key for each in now.addresses}, {each.key for each in now.routes}
    return replace(
        step,
        addresses=tuple(each for each in step.addresses if each.key in addresses),
        routes=tuple(each for each in step.routes if each.key in routes),
    )


def _unremoved(step: AddressMove, nic: Nic, bridge: Nic) -> AddressMove:
    """The move without what others have removed since it was planned: what neither link has, while one has others of its
    version of IP.

    Where neither has any of a version, they were lost (the link was set down, or made anew), and are made again.
    """
    return replace(
        step,
        addresses=_present(step.addresses, (*nic.addresses, *bridge.addresses)),
        routes=_present(step.routes, (*nic.routes, *bridge.routes)),
    )


def _present(wanted: Sequence[Kept], found: Sequence[Kept]) -> tuple[Kept, ...]:
    there = {each.key for each in found}
    versions = {each.version for each in wanted if each.key in there}
    return tuple(each for each in wanted if each.key in there or each.version not in versions)


def _differences(step: AddressMove, nic: Nic | None, bridge: Nic | None) -> Iterator[tuple[str, Value, Value]]:
    """Field, expected and found of what is not as moved."""
    if nic is None:
        yield f"link {step.nic}", "the NIC", Absent()
    if bridge is None or not bridge.up:
        yield f"link {step.bridge}", "up", "down" if bridge else Absent()
        return
    there = {each.key for each in bridge.addresses}
    here = {each.key for each in nic.addresses} if nic else set()
    ways = {each.key for each in bridge.routes}
    for address in step.addresses:
        if address.key not in there:
            yield f"address of {step.bridge}", address.shown, Absent()
        if address.key in here:
            yield f"address of {step.nic}", Absent(), address.shown
    for route in step.routes:
        if route.key not in ways:
            yield f"route over {step.bridge}", route.shown, Absent()
