"""Routes of ours in pods' network namespaces: looked at, and made to be those that are wanted.

The namespace itself is the record: what carries our protocol number there is ours, and nothing else is ever changed or removed. A
namespace is opened, proven, worked in and closed again within one call: a socket that is kept would keep a deleted namespace and
its links alive. All changes of one pod are sent at once, so that a process that is killed has made all of them or none.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, NamedTuple

from userspace_cni.base.errors import ContainerGone, DirectoryRefused, HostNamespace, NameTaken, of_kernel
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.base.routing import Address, Inside, Interface, PodLink, PodRoute, Rank, RouteKey, Wanted
from userspace_cni.host.netlink import addresses, links, routes
from userspace_cni.host.netlink.addresses import FAMILIES
from userspace_cni.host.netlink.codec import EXCHANGE_MAX, ROUTE, Answer, Connection, Message
from userspace_cni.host.netlink.routes import Route
from userspace_cni.host.netns import Netns, opened_pod

RIGHTS: Final = "it takes CAP_NET_ADMIN and CAP_SYS_ADMIN in the pod's network namespace"
_FULL: Final = "its routes of ours stay until it has fewer: ip link, ip route show table all, in the pod"
LISTED_MAX: Final = 1 << 15
"""Links, addresses or routes that a pod may have: who may change its network could fill our memory with them."""
_ANSWERS: Final = 1 << 14
"""Answers that are kept with what they say: pods have most of theirs in common, and every pass meets them again."""
_link: Final = lru_cache(_ANSWERS)(links.named)
_address: Final = lru_cache(_ANSWERS)(addresses.read)
_route_of: Final = lru_cache(_ANSWERS)(routes.read)
_IP: Final = frozenset(FAMILIES.values())
"""The kernel lists addresses and routes of every family that it has, as those of MPLS."""
_OWN: Final = "/proc/self/ns/net"
_FIRST: Final = "/proc/1/ns/net"


@dataclass(frozen=True)
class Place:
    """Where a pod's namespace is. `sandbox`: the id of its sandbox, which has this namespace alone; `inode` 0 for unknown."""

    sandbox: str
    path: str
    inode: int = 0


@dataclass(frozen=True)
class Outcome:
    """What a pass in one namespace found and did. `refused`: what the kernel refused, with its reason."""

    inside: Inside
    added: tuple[Wanted, ...] = ()
    removed: tuple[PodRoute, ...] = ()
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Way:
    """How a namespace reaches an address now. `dev` "" and a `problem`: not at all."""

    dev: str = ""
    via: Address | None = None
    source: Address | None = None
    problem: str = ""


class Claims:
    """Which sandbox has which namespace, by the number that the kernel gives a namespace for ever. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sandboxes: dict[int, str] = {}
        self._cookies: dict[str, int] = {}

    def claim(self, place: Place, cookie: int) -> None:
        """Record it. ContainerGone: the path leads to another namespace by now. NameTaken: another sandbox has this one."""
        with self._lock:
            had = self._cookies.setdefault(place.sandbox, cookie)
            if had != cookie:
                raise ContainerGone(
                    f"{place.path} is another namespace by now than that of sandbox {place.sandbox}", "its path was used anew"
                )
            other = self._sandboxes.setdefault(cookie, place.sandbox)
            if other != place.sandbox:
                raise NameTaken(
                    f"the namespace at {place.path} is said to be that of sandbox {place.sandbox}, and of {other}",
                    "no route is set there for the second one: lsns -t net",
                )

    def keep(self, sandboxes: Collection[str]) -> None:
        """Forget all sandboxes but these."""
        with self._lock:
            self._cookies = {each: cookie for each, cookie in self._cookies.items() if each in sandboxes}
            self._sandboxes = {cookie: each for cookie, each in self._sandboxes.items() if each in sandboxes}


class PodRoutes:
    """Routes with the number `protocol` in pods' namespaces. `never`: paths of the node's own namespaces, beside the host's."""

    def __init__(self, protocol: int, never: Sequence[str] = (), root: HostRoot = HERE) -> None:
        self.protocol = protocol
        self.former: frozenset[int] = frozenset()
        """Numbers that ours had before: what has one is ours, too, and gives way to routes with the number of now."""
        self._claims = Claims()
        self._seen: dict[str, tuple[_Raw, Inside]] = {}
        self._settled: dict[str, tuple[Inside, tuple[Wanted, ...]]] = {}
        """What was seen where, and wanted there, when nothing had to be changed."""
        self._own = os.stat(_OWN)  # noqa: PTH116 - of the namespace
        self._never = (*filter(None, never), _FIRST)
        self._root = root

    def keep(self, sandboxes: Collection[str]) -> None:
        """Forget which namespaces all sandboxes but these have."""
        self._claims.keep(sandboxes)
        self._seen = {each: seen for each, seen in self._seen.items() if each in sandboxes}
        self._settled = {each: settled for each, settled in self._settled.items() if each in sandboxes}

    def look(self, place: Place) -> Inside:
        """What the namespace has; the same object as long as nothing changes there. Raises as `converge`."""
        with self._connected(place, "looking at its routes") as kernel:
            return self._inside(place, kernel)

    def converge(self, place: Place, decide: Callable[[Inside], Iterable[Wanted]]) -> Outcome:
        """Look, have it decided which routes of ours are to be there, and make it so. `decide` must not wait.

        Raises ContainerGone for a namespace that has gone or is another one by now; HostNamespace for one of the node's own;
        NameTaken for one of another sandbox; BadEnvironment, Unavailable and StepFailed for one that cannot be entered or read.
        What the kernel refuses of single routes is in the outcome; the others are made.
        """
        with self._connected(place, "setting its routes") as kernel:
            inside = self._inside(place, kernel)
            wanted = tuple(decide(self._without_former(inside)))
            if self._settled.get(place.sandbox) == (inside, wanted):
                return Outcome(inside)
            changes = _changes(inside, wanted, self.protocol, self.former)
            answers = [
                answer
                for start in range(0, len(changes), EXCHANGE_MAX)
                for answer in kernel.exchange(*(each.message for each in changes[start : start + EXCHANGE_MAX]))
            ]
        if not changes:
            self._settled[place.sandbox] = inside, wanted
        return _outcome(inside, changes, answers)

    def way_to(self, place: Place, address: Address) -> Way:
        """How the namespace reaches the address now. Raises as `converge`."""
        with self._connected(place, f"asking the way to {address}") as kernel:
            names = {index: name for index, name, _ in _links(kernel)}
            try:
                [(_, payload)] = kernel.ask(routes.way_to(address))
            except OSError as error:
                if error.errno not in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL):
                    raise
                return Way(problem=error.strerror or str(error))
        found = routes.read(payload)
        return Way(names.get(found.index, ""), found.route.gw, routes.source(payload))

    def _without_former(self, inside: Inside) -> Inside:
        if not self.former:
            return inside
        return replace(inside, routes=tuple(each for each in inside.routes if each.protocol not in self.former))

    def _inside(self, place: Place, kernel: Connection) -> Inside:
        raw = _asked(kernel)
        before = self._seen.get(place.sandbox)
        inside = before[1] if before and before[0] == raw else _read(raw)
        self._seen[place.sandbox] = raw, inside
        return inside

    @contextmanager
    def _connected(self, place: Place, doing: str) -> Iterator[Connection]:
        what = f"network namespace {place.path}: {doing}"
        with opened_pod(place.path, place.inode, self._root) as netns:
            self._require_of_a_pod(netns, place)
            try:
                with netns.do(partial(Connection, ROUTE, most=LISTED_MAX)) as kernel:
                    self._claims.claim(place, kernel.cookie())
                    yield kernel
            except OSError as error:
                raise of_kernel(what, error, _FULL if error.errno == errno.E2BIG else RIGHTS) from error

    def _require_of_a_pod(self, netns: Netns, place: Place) -> None:
        found, own = os.fstat(netns.fileno()), [self._own]
        for path in self._never:
            with suppress(OSError, DirectoryRefused):  # without it no namespace is that one
                own.append(os.stat(self._root.path(path)))  # noqa: PTH116 - of the namespace
        if any(os.path.samestat(found, each) for each in own):
            raise HostNamespace(f"{place.path} is a network namespace of the node's own", "its routes are not touched")


# -- what is there ---------------------------------------------------------------------------------------------------------------


_Raw = list[list[tuple[int, bytes]]]


def _links(kernel: Connection) -> list[tuple[int, str, bool]]:
    return [links.named(payload) for _, payload in kernel.ask(links.listed_shortly())]


def _asked(kernel: Connection) -> _Raw:
    asked = links.listed_shortly(), addresses.listed(0), routes.listed_unicast()
    return [kernel.ask(each) for each in asked]


def _read(raw: _Raw) -> Inside:
    found_links, found_addresses, found_routes = raw
    has: dict[int, list[Interface]] = {}
    for _, payload in found_addresses:
        if payload[0] not in _IP:
            continue
        index, address = _address(payload)
        has.setdefault(index, []).append(address)
    known = {
        index: PodLink(name, index, up, tuple(has.get(index, ())))
        for index, name, up in (_link(payload) for _, payload in found_links)
    }
    listed = [(payload, _route_of(payload)) for _, payload in found_routes if payload[0] in _IP]
    names = {each.index: each.name for each in known.values()}
    return Inside(
        {each.name: each for each in known.values()},
        tuple(_pod_route(payload, names.get(each.index, "")) for payload, each in listed if each.route.table == routes.MAIN),
    )


@lru_cache(_ANSWERS)
def _pod_route(payload: bytes, dev: str) -> PodRoute:
    """The route in a reply, over the device of that name."""
    found = _route_of(payload)
    return PodRoute(found.route.dst, found.route.gw, dev, found.route.priority or 0, found.protocol)


# -- what changes; pure ----------------------------------------------------------------------------------------------------------


class _Change(NamedTuple):
    message: Message
    passes: int
    """The errno with which it is true already."""
    adds: Wanted | None = None
    removes: PodRoute | None = None


def _changes(inside: Inside, wanted: Sequence[Wanted], protocol: int, former: Collection[int]) -> list[_Change]:
    """What makes ours those that are wanted: first what comes, from long prefixes to short, then what goes.

    Ours are those with any of the numbers; those that are wanted have the first one.

    A route over a link that is not there is left out: `decide` has seen the same look, and has told of it.
    """
    numbers = {protocol, *former}
    foreign = {each.rank for each in inside.routes if each.protocol not in numbers}
    first: dict[Rank, PodRoute] = {}
    for found in inside.routes:
        first.setdefault(found.rank, found)
    left = {(each.key, each.protocol): each for each in inside.routes if each.protocol in numbers}
    coming: list[_Change] = []
    for each in sorted(wanted, key=lambda each: -each.dst.prefixlen):
        link = inside.links.get(each.dev)
        if link is None:
            continue
        there = left.pop((each.key, protocol), None)
        if there and first[there.rank] is there:
            continue
        if there:  # another program has put its own before it since
            coming.append(_removal(inside, there))
        if each.dst.version == 4:
            coming.append(_Change(_message(routes.put_first, link.index, each.key, protocol), errno.EEXIST, adds=each))
            continue
        old = next((old for old in left.values() if old.rank == each.rank), None)
        if old and each.rank not in foreign:
            del left[old.key, old.protocol]
            coming.append(_Change(_message(routes.replaced, link.index, each.key, protocol), 0, adds=each, removes=old))
        else:
            coming.append(_Change(_message(routes.put, link.index, each.key, protocol), 0, adds=each))
    return coming + [_removal(inside, each) for each in left.values()]


def _removal(inside: Inside, found: PodRoute) -> _Change:
    link = inside.links.get(found.dev)
    index = link.index if link else 0
    return _Change(_message(routes.removed, index, found.key, found.protocol), errno.ESRCH, removes=found)


@lru_cache(_ANSWERS)
def _message(make: Callable[[int, Route, int], Message], index: int, key: RouteKey, protocol: int) -> Message:
    """What has `make` done with the route; pods have most of theirs in common."""
    (version, network, length, metric), _, via = key
    if version == 4:
        dst, hop = IPv4Network((network, length)), IPv4Address(via) if via >= 0 else None
        return make(index, Route(dst, hop, priority=metric or None), protocol)
    dst6, hop6 = IPv6Network((network, length)), IPv6Address(via) if via >= 0 else None
    return make(index, Route(dst6, hop6, priority=metric or None), protocol)


def _outcome(inside: Inside, changes: Sequence[_Change], answers: Sequence[Answer]) -> Outcome:
    done = [
        (change, "" if answer.error is None or answer.error.errno == change.passes else answer.error.strerror)
        for change, answer in zip(changes, answers, strict=True)
    ]
    return Outcome(
        inside,
        tuple(change.adds for change, why in done if change.adds and not why),
        tuple(change.removes for change, why in done if change.removes and not why),
        tuple(f"{change.adds or change.removes}: {why}" for change, why in done if why),
    )
