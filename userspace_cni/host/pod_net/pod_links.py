"""A pod's veth: both ends made in one message, and all that belongs to them set in as few as possible.

One send of netlink is one system call, so that a killed process leaves a pair with our alias or none. A host end with another
alias is never touched. Nothing here runs in the pod's namespace but what makes a socket and writes below /proc/sys/net there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.drift import Absent, Drift, Other, Value
from userspace_cni.attachment.steps import Driver, Link, LinkRef, SharedReads
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import (
    AlreadyAttached,
    ContainerGone,
    NameTaken,
    StepFailed,
    Unavailable,
    UserspaceError,
    of_kernel,
)
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink import address_messages as addresses
from userspace_cni.host.netlink import link_messages as links
from userspace_cni.host.netlink import route_messages as routes
from userspace_cni.host.netlink.link_messages import End, FoundLink
from userspace_cni.host.netlink.netns import Netns, is_gone, open_pod_netns, open_switch_netns
from userspace_cni.host.netlink.route_messages import Route
from userspace_cni.linux.netlink import EXCHANGE_MAX, LISTED_MAX, ROUTE, NetlinkConnection

if TYPE_CHECKING:
    from ipaddress import IPv4Interface, IPv6Interface

    from userspace_cni.linux.netlink import Message

_POD_SYSCTLS: Final = {"disable_ipv6": "0", "keep_addr_on_down": "1", "accept_ra": "0", "accept_dad": "0"}
"""For an end with an IPv6 address: it has the addresses and routes that it is given, and uses them at once."""

_IPV6_MTU_MIN: Final = 1280
_SIOCETHTOOL: Final = 0x8946
_GTXCSUM: Final = 0x16
_STXCSUM: Final = 0x17
_SYSCTL_MAX: Final = 64
_HELD_S: Final = 1.0
_POLL_S: Final = 0.01


class LinkDriver(Driver[Link]):
    """Veths of pods. `beside`: RTPROT of routes that come and go beside those of the step, and are none of its."""

    def __init__(self, root: HostRoot = HERE, beside: int | None = None) -> None:
        self._root = root
        self._beside = beside

    def apply(self, step: Link, deadline: Deadline) -> None:
        """Make the pair, or converge one of ours. Raises AlreadyAttached when the pod has another interface of this name."""
        deadline.require(_what(step))
        wanted, given = _addresses(step), _routes(step)
        with (
            open_pod_netns(step.netns, step.netns_inode, self._root) as pod,
            open_switch_netns(step.switch_netns, self._root) as switch,
            connect(switch, _what(step)) as kernel,
        ):
            host = _paired(step, kernel, pod, deadline)
            with kernel_does(f"link {step.host}: setting it up"):
                # a host end is the switch's: without an IPv6 address the node sends nothing but a router's groups there
                settings = links.change(host.index, _host_settings(step), up=True)
                silent, up = kernel.exchange(links.without_ipv6(host.index), settings)
                for error in (silent.error, up.error):
                    if error and error.errno != errno.EAFNOSUPPORT:
                        raise error
            ipv6 = any(each.version == 6 for each in wanted)
            with kernel_does(f"interface {step.name}: entering the pod's network namespace"):
                inside = pod.do(lambda: _prepared(step.name if ipv6 else ""))
            with inside:
                with kernel_does(f"interface {step.name}: turning checksum offload off"):
                    _ethtool(inside, step.name, _STXCSUM)
                exist = _set_up(step, host.peer, (wanted, given), inside, deadline)
                _require_same(step, exist, host.peer, inside, self._beside)

    def undo(self, step: Link, deadline: Deadline) -> None:
        """Delete the pair by its host end, which also one finds that the pod has renamed; gone with its namespace is fine."""
        delete(step.host, step.alias, step.switch_netns, self._root, deadline)

    def check(self, step: Link, deadline: Deadline) -> list[Drift]:
        """Both ends: names, MAC addresses, MTU, whether they are up and belong together; addresses, routes, checksum offload."""
        deadline.require(_what(step))
        with open_switch_netns(step.switch_netns, self._root) as switch, connect(switch, _what(step)) as kernel:
            host = find_link(kernel, step.host)
        if host is None:
            return [Drift(f"link {step.host}", "", "the host end of the pod's veth", Absent(), "ip link, at the switch")]
        if host.alias != step.alias:
            return [
                Drift(f"link {step.host}", "alias", step.alias, host.alias or Absent(), "another program's link has the name")
            ]
        drifts = _host_differing(step, host)
        try:
            pod = open_pod_netns(step.netns, step.netns_inode, self._root)
        except ContainerGone as error:
            return [*drifts, Drift(f"interface {step.name}", "", "the pod's network namespace", Absent(), error.message)]
        with pod, connect(pod, _what(step), LISTED_MAX) as inside:
            return [*drifts, *_checked(step, host, inside, self._beside)]

    def is_lost(self, step: Link, seen: SharedReads, deadline: Deadline) -> bool:
        """Whether the pair is gone while the pod's namespace lives, for one end goes with the other; or the host end is down."""
        deadline.require(_what(step))
        host = seen.once(ListedLinks(step.switch_netns, self._root)).get(step.host)
        if host and (host.up or host.alias != step.alias):
            return False
        try:
            open_pod_netns(step.netns, step.netns_inode, self._root).close()
        except UserspaceError:
            return False  # gone, or not to be seen from here
        return True

    def find_changes(self, step: Link, seen: SharedReads, deadline: Deadline) -> list[Drift]:
        """MAC, MTU and queue of the host end.

        Not the pod's end: plugins that come later in the chain, and programs of the pod, change address, route and MAC there on
        purpose, and nothing tells that from a mistake.
        """
        deadline.require(_what(step))
        host = seen.once(ListedLinks(step.switch_netns, self._root)).get(step.host)
        return _host_differing(step, host) if host and host.alias == step.alias and host.up else []

    def put_back(self, step: Link, deadline: Deadline) -> None:
        deadline.require(_what(step))
        with open_switch_netns(step.switch_netns, self._root) as switch, connect(switch, _what(step)) as kernel:
            host = find_link(kernel, step.host)
            if host and host.alias == step.alias:
                with kernel_does(f"link {step.host}: setting it up"):
                    kernel.send(links.change(host.index, _host_settings(step), up=True))


class LinkRefDriver(Driver[LinkRef]):
    """A veth that is only ever undone."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: LinkRef, deadline: Deadline) -> None:
        """It is never made."""

    def undo(self, step: LinkRef, deadline: Deadline) -> None:
        delete(step.host, step.alias, step.switch_netns, self._root, deadline)

    def check(self, step: LinkRef, deadline: Deadline) -> list[Drift]:  # noqa: ARG002
        """Nothing is expected of it."""
        return []


def delete(host: str, alias: str, switch_netns: str, root: HostRoot, deadline: Deadline) -> None:
    """Delete the pair whose host end has this name and alias; a link with another alias is not ours and stays."""
    what = f"link {host}: deleting it"
    deadline.require(what)
    if switch_netns and is_gone(switch_netns, root):
        return  # and its links with it
    with open_switch_netns(switch_netns, root) as switch, connect(switch, what) as kernel:
        found = find_link(kernel, host)
        if found and found.alias == alias:
            _delete(kernel, found)


@dataclass(frozen=True)
class ListedLinks:
    """The links where ovs-vswitchd opens its ports, as one look shows them. Equal ones share a look (`SharedReads.once`)."""

    switch_netns: str = ""
    root: HostRoot = HERE

    def __call__(self) -> Mapping[str, FoundLink]:
        """Every link, by name. Raises Unavailable."""
        what = "listing host ends"
        with open_switch_netns(self.switch_netns, self.root) as switch, connect(switch, what) as kernel, kernel_does(what):
            found = [links.read(payload) for _, payload in kernel.ask(links.dump())]
        return {each.name: each for each in found}


def ifindex(host: str, switch_netns: str = "", root: HostRoot = HERE) -> int:
    """The index of a link where ovs-vswitchd opens its ports, 0 when there is none. Raises Unavailable."""
    with open_switch_netns(switch_netns, root) as switch, connect(switch, f"link {host}: finding it") as kernel:
        found = find_link(kernel, host)
        return found.index if found else 0


def set_up(host: str, switch_netns: str = "", root: HostRoot = HERE) -> None:
    """Set a link there up if there is one, and it is down. Raises StepFailed and Unavailable."""
    what = f"link {host}: setting it up"
    with open_switch_netns(switch_netns, root) as switch, connect(switch, what) as kernel:
        found = find_link(kernel, host)
        if found and not found.up:
            with kernel_does(what):
                kernel.send(links.change(found.index, up=True))


def host_ends(store: str, switch_netns: str = "", root: HostRoot = HERE) -> dict[LinkRef, int]:
    """Every host end with an alias of that store, with its index: what a record does not name can be undone by the reference."""
    ours, found = f"userspace-cni {store} ", ListedLinks(switch_netns, root)().values()
    return {LinkRef(each.name, each.alias, switch_netns): each.index for each in found if each.alias.startswith(ours)}


def own_addresses() -> tuple[str, ...]:
    """The addresses of this node itself, without prefix length: those of the namespace of this process that others can reach."""
    what = "listing this node's addresses"
    with open_switch_netns("") as here, connect(here, what) as kernel, kernel_does(what):
        found = [addresses.read(payload).interface.ip for _, payload in kernel.ask(addresses.dump(0))]
    return tuple(str(each) for each in found if not (each.is_loopback or each.is_link_local))


@contextmanager
def connect(netns: Netns, what: str, most: int = 0) -> Iterator[NetlinkConnection]:
    """A connection for links, addresses, routes and qdiscs in that namespace; `what` is tried, as errors call it.

    `most`: as of Connection; LISTED_MAX in a pod.
    """
    with kernel_does(what):
        connection = netns.do(lambda: NetlinkConnection(ROUTE, most=most))
    with connection:
        yield connection


@contextmanager
def kernel_does(what: str, details: str = "") -> Iterator[None]:
    """Turn a refusal by the kernel into Unavailable where it passes, else into StepFailed: `what` was tried."""
    try:
        yield
    except OSError as error:
        raise of_kernel(what, error, details or "ip -d link, here and in the pod's network namespace") from error


def _paired(step: Link, kernel: NetlinkConnection, pod: Netns, deadline: Deadline) -> FoundLink:
    """The host end of a pair whose other end is in the pod: one of ours that is there, or a new one."""
    patience = Deadline.after(min(_HELD_S, deadline.require(_what(step))))
    while True:
        host = find_link(kernel, step.host)
        if host and host.alias != step.alias:
            raise NameTaken(
                f"link {step.host}: its alias is {host.alias!r}, so it is not this attachment's", "ip link show, at the switch"
            )
        if host:
            with connect(pod, _what(step)) as inside:
                end = find_link(inside, step.name)
            if _are_pair(host, end):
                return host
            _delete(kernel, host)
        made = _made(step, kernel, pod)
        if made:
            return made
        with connect(pod, _what(step)) as inside:
            if find_link(inside, step.name):
                raise AlreadyAttached(
                    f"interface {step.name}: the pod has one of this name already", "ip -d link, in the pod's network namespace"
                )
        if not patience.remaining():  # a program that has the former link open keeps its name a moment longer
            raise Unavailable(f"link {step.host}: its name is not free yet", "ip link, at the switch")
        time.sleep(_POLL_S)


def _made(step: Link, kernel: NetlinkConnection, pod: Netns) -> FoundLink | None:
    """Make the pair with its alias; None when one of the names is taken."""
    here, there = End(step.host, step.host_mac, step.mtu, step.queue), End(step.name, step.mac, step.mtu)
    with kernel_does(_what(step)):
        pair, mark, found = kernel.exchange(
            links.veth(here, there, pod.fileno()), links.set_alias(step.host, step.alias), links.get(step.host)
        )
        if pair.error and pair.error.errno == errno.EEXIST:
            return None
        if pair.error:
            raise pair.error
        if found.error:
            raise found.error
        host = links.read(found.replies[0][1])
        if mark.error:  # without its mark no later undo would find it
            kernel.send(links.delete(host.index))
            raise mark.error
    return host


def _set_up(
    step: Link,
    index: int,
    has: tuple[list[IPv4Interface | IPv6Interface], list[Route]],
    inside: NetlinkConnection,
    deadline: Deadline,
) -> list[Route]:
    """Give the pod's end its addresses and routes, in as few sends as there can be; the routes in whose place there was one."""
    wanted, given = has
    named = f"interface {step.name}: "
    work: list[tuple[str, Message]] = [
        ("setting lo up", links.change(links.LO, up=True)),
        ("setting MAC address and MTU", links.change(index, links.settings(mac=step.mac, mtu=step.mtu))),
        *((f"adding the address {each}", addresses.put(index, each)) for each in wanted),
        ("setting it up", links.change(index, up=True)),
    ]
    made = [(f"adding the route {each}", routes.put(index, each)) for each in given]
    with kernel_does(f"{named}setting it up"):
        messages = [message for _, message in (*work, *made)]
        parts = [messages[at : at + EXCHANGE_MAX] for at in range(0, len(messages), EXCHANGE_MAX)]
        answers = []
        for part in parts:
            deadline.require(_what(step))
            answers += inside.exchange(*part)
    exist = []
    for (tried, _), answer, route in zip((*work, *made), answers, (*(None for _ in work), *given), strict=True):
        if answer.error and answer.error.errno == errno.EEXIST and route:
            exist.append(route)
        elif answer.error:
            with kernel_does(f"{named}{tried}", _hint(step, wanted)):
                raise answer.error
    return exist


def _require_same(step: Link, exist: list[Route], index: int, inside: NetlinkConnection, beside: int | None) -> None:
    """Raise StepFailed unless the routes that were there already are those of the step. `beside`: as in `_missing`."""
    if exist:
        for route in _missing(exist, index, inside, beside):
            raise StepFailed(
                f"interface {step.name}: adding the route {route}: the pod has another one to that destination",
                'ip route, in the pod\'s network namespace; "priority" of a route, higher for the one that is to be second',
            )


def _hint(step: Link, wanted: list[IPv4Interface | IPv6Interface]) -> str:
    """What to look at when an address or a route is refused."""
    if step.mtu < _IPV6_MTU_MIN and any(each.version == 6 for each in wanted):
        return f"the MTU is {step.mtu}, and IPv6 needs {_IPV6_MTU_MIN} at least: host.mtu of the network, or the node's settings"
    return "ip address, ip route, in the pod's network namespace; the network's ipam"


def _checked(step: Link, host: FoundLink, inside: NetlinkConnection, beside: int | None) -> list[Drift]:
    subject, details = f"interface {step.name}", "ip -d address, in the pod's network namespace"
    end = find_link(inside, step.name)
    if end is None:
        return [Drift(subject, "", f"the other end of {step.host}", Absent(), details)]
    if not _are_pair(host, end):
        return [Drift(subject, "", f"the other end of {step.host}", Other("another link"), details)]
    drifts = _differing(subject, end, {"mac": step.mac, "mtu": step.mtu})
    with kernel_does(f"{subject}: reading its addresses, routes and settings"):
        found = [addresses.read(payload) for _, payload in inside.ask(addresses.dump(end.index))]
        there = {each.interface for each in found if each.index == end.index}
        drifts += [Drift(subject, "address", str(each), Absent(), details) for each in _addresses(step) if each not in there]
        lacks = _missing(_routes(step), end.index, inside, beside)
        drifts += [Drift(subject, "route", str(each), Absent(), "ip route show table all, in the pod") for each in lacks]
        if has_checksum_offload(inside, step.name):
            why = "the switch completes no checksum, so TCP from the pod never connects: ethtool -K … tx off"
            drifts.append(Drift(subject, "checksum offload", "off", "on", why))
    return drifts


def _host_settings(step: Link) -> bytes:
    return links.settings(mac=step.host_mac, mtu=step.mtu, queue=step.queue)


def _host_differing(step: Link, host: FoundLink) -> list[Drift]:
    return _differing(f"link {step.host}", host, {"mac": step.host_mac, "mtu": step.mtu, "queue": step.queue})


def _differing(subject: str, found: FoundLink, expected: Mapping[str, str | int]) -> list[Drift]:
    """What differs of a link; what is expected to be "" or 0 is the kernel's own."""
    details = "ip -d link"
    drifts = [
        Drift(subject, field, value, getattr(found, field), details)
        for field, value in expected.items()
        if value and getattr(found, field) != (value.lower() if isinstance(value, str) else value)
    ]
    state: tuple[Value, Value] = ("up", "down")
    return drifts if found.up else [*drifts, Drift(subject, "state", *state, details)]


def _missing(wanted: list[Route], index: int, inside: NetlinkConnection, beside: int | None) -> list[Route]:
    """Those of the routes that the link has not. `beside`: the protocol of routes that do not count."""
    found = (
        routes.read(payload)
        for version in sorted({each.dst.version for each in wanted})
        for _, payload in inside.ask(routes.dump(version, index))
    )
    return routes.find_missing(wanted, (each.route for each in found if each.index == index and each.protocol != beside))


def _delete(kernel: NetlinkConnection, found: FoundLink) -> None:
    with kernel_does(f"link {found.name}: deleting it"):
        (answer,) = kernel.exchange(links.delete(found.index))
        if answer.error and answer.error.errno != errno.ENODEV:  # the end of the pod's namespace was quicker
            raise answer.error


def find_link(kernel: NetlinkConnection, name: str) -> FoundLink | None:
    """The link of this name or alternative name, or None."""
    with kernel_does(f"link {name}: finding it"):
        (answer,) = kernel.exchange(links.get(name))
        if answer.error and answer.error.errno in (errno.ENODEV, errno.ERANGE):  # none, or a name that none can have
            return None
        if answer.error:
            raise answer.error
    return links.read(answer.replies[0][1])


def _are_pair(host: FoundLink, end: FoundLink | None) -> bool:
    return end is not None and end.kind == "veth" and (host.peer, end.peer) == (end.index, host.index)


def _addresses(step: Link) -> list[IPv4Interface | IPv6Interface]:
    from ipaddress import ip_interface

    with _possible(step):
        return [ip_interface(each) for each in step.addresses]


def _routes(step: Link) -> list[Route]:
    with _possible(step):
        return [Route.of(each) for each in step.routes]


@contextmanager
def _possible(step: Link) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise StepFailed(f"interface {step.name}: {error}", "the addresses and routes of the network's ipam") from error


def _prepared(ipv6_of: str) -> NetlinkConnection:
    """In the pod's namespace: let `ipv6_of` and lo have IPv6, if it is not "", and make a connection."""
    if ipv6_of:
        _write("lo", {"disable_ipv6": "0"})
        _write(ipv6_of, _POD_SYSCTLS)
    return NetlinkConnection(ROUTE, most=LISTED_MAX)


def _write(name: str, values: Mapping[str, str]) -> None:
    """Write IPv6 sysctls of a link of this thread's namespace; a kernel without IPv6 has none.

    What is as wanted is not written: the kernel tries a write of disable_ipv6 again and again, without a pause, for as long as
    any link is being changed.
    """
    for key, value in values.items():
        try:
            fd = os.open(f"/proc/sys/net/ipv6/conf/{name}/{key}", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if os.read(fd, _SYSCTL_MAX).strip() != value.encode():
                os.pwrite(fd, value.encode(), 0)
        finally:
            os.close(fd)


def has_checksum_offload(inside: NetlinkConnection, name: str) -> bool:
    """Whether what leaves by the link may be without its checksums. Raises OSError."""
    return bool(_ethtool(inside, name, _GTXCSUM))


def _ethtool(inside: NetlinkConnection, name: str, command: int) -> int:
    """Ask for a setting of a link, or set it to 0. Source: linux/ethtool.h, struct ethtool_value."""
    value = array("I", [command, 0])
    fcntl.ioctl(inside.fileno(), _SIOCETHTOOL, struct.pack("16sP16x", os.fsencode(name), value.buffer_info()[0]))
    return value[1]


def _what(step: Link) -> str:
    return f"veth {step.name} with the host end {step.host}"
