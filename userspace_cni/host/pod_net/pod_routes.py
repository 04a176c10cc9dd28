"""Reads and reconciles our routes in pods' network namespaces.

The namespace itself is the record: routes with our protocol number are ours, and nothing else is changed or removed. A
namespace is opened, verified, worked in and closed within one call: an open socket would keep a deleted namespace and its links
alive. The order of the sends allows a kill between any two of them: first the new routes, then a default route once all routes
that must keep the former one's gateway are there, and last the removals.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, NamedTuple

from userspace_cni.base.errors import ContainerGone, DirectoryRefused, HostNamespace, NameTaken, of_kernel
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.base.routing import Address, DesiredRoute, Inside, Interface, Network, PodLink, PodRoute, Rank, RouteKey
from userspace_cni.host.netlink import address_messages as addresses
from userspace_cni.host.netlink import link_messages as links
from userspace_cni.host.netlink import route_messages as routes
from userspace_cni.host.netlink.address_messages import FAMILIES
from userspace_cni.host.netlink.netns import Netns, open_pod_netns
from userspace_cni.host.netlink.route_messages import FoundRoute, Route
from userspace_cni.linux.netlink import EXCHANGE_MAX, LISTED_MAX, ROUTE, Message, NetlinkConnection

RIGHTS: Final = "it takes CAP_NET_ADMIN and CAP_SYS_ADMIN in the pod's network namespace"
_FULL: Final = "its routes of ours stay until it has fewer: ip link, ip route show table all, in the pod"
KEPT_MAX: Final = 1 << 9
"""Answers of one pod's namespace that are kept until its next look; one with more is read anew each time."""
_ANSWERS: Final = 1 << 12
"""Answers that are kept with their result: pods have most of theirs in common, and every pass meets them again. Not those about
links, which differ from time to time in what is not read."""
_address: Final = lru_cache(_ANSWERS)(addresses.read)
_route_of: Final = lru_cache(_ANSWERS)(routes.read)
_IP: Final = frozenset(FAMILIES.values())
"""The kernel lists addresses and routes of every family that it has, as those of MPLS."""
_OWN: Final = "/proc/self/ns/net"
_FIRST: Final = "/proc/1/ns/net"


@dataclass(frozen=True)
class PodNamespace:
    """Where a pod's namespace is. `sandbox`: the id of its sandbox, which has this namespace alone; `inode` 0 for unknown."""

    sandbox: str
    path: str
    inode: int = 0


@dataclass(frozen=True)
class RoutePass:
    """What a pass in one namespace found and did. `refused`: what the kernel refused, with its reason."""

    inside: Inside
    added: tuple[DesiredRoute, ...] = ()
    removed: tuple[PodRoute, ...] = ()
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelWay:
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

    def claim(self, place: PodNamespace, cookie: int) -> None:
        """Record it. ContainerGone: the path leads to another namespace by now. NameTaken: another sandbox has this one."""
        with self._lock:
            had = self._cookies.setdefault(place.sandbox, cookie)
            if had != cookie:
                raise ContainerGone(
                    f"{place.path} is another namespace by now than that of sandbox {place.sandbox}", "its path was used again"
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
        self._settled: dict[str, tuple[Inside, tuple[DesiredRoute, ...]]] = {}
        """What was seen where, and wanted there, when nothing had to be changed."""
        self._own = os.stat(_OWN)  # noqa: PTH116 - of the namespace
        self._never = (*filter(None, never), _FIRST)
        self._root = root

    def keep(self, sandboxes: Collection[str]) -> None:
        """Forget which namespaces all sandboxes but these have."""
        self._claims.keep(sandboxes)
        self._seen = {each: seen for each, seen in self._seen.items() if each in sandboxes}
        self._settled = {each: settled for each, settled in self._settled.items() if each in sandboxes}

    def look(self, place: PodNamespace) -> Inside:
        """What the namespace has; the same object as long as nothing changes there. Raises as `converge`."""
        with self._connected(place, "looking at its routes") as kernel:
            return self._inside(place, kernel)

    def converge(self, place: PodNamespace, decide: Callable[[Inside], Iterable[DesiredRoute]]) -> RoutePass:
        """Look, have it decided which routes of ours are to be there, and make it so. `decide` must not wait.

        Raises ContainerGone for a namespace that has gone or is another one by now; HostNamespace for one of the node's own;
        NameTaken for one of another sandbox; BadEnvironment, Unavailable and StepFailed for one that cannot be entered or read.
        What the kernel refuses of single routes is in the outcome; the others are made.
        """
        with self._connected(place, "setting its routes") as kernel:
            inside = self._inside(place, kernel)
            wanted = tuple(decide(self._without_former(inside)))
            if self._settled.get(place.sandbox) == (inside, wanted):
                return RoutePass(inside)
            changes = _changes(inside, wanted, self.protocol, self.former)
            done = _tried_again(kernel, _made(kernel, changes))
        if not changes and place.sandbox in self._seen:
            self._settled[place.sandbox] = inside, wanted
        return _outcome(inside, done)

    def way_to(self, place: PodNamespace, address: Address) -> KernelWay:
        """How the namespace reaches the address now. Raises as `converge`."""
        with self._connected(place, f"asking the way to {address}") as kernel:
            names = {index: name for index, name, _ in _links(kernel)}
            try:
                [(_, payload)] = kernel.ask(routes.way_to(address))
            except OSError as error:
                if error.errno not in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL):
                    raise
                return KernelWay(problem=error.strerror or str(error))
        found = routes.read(payload)
        return KernelWay(names.get(found.index, ""), found.route.gw, routes.source(payload))

    def _without_former(self, inside: Inside) -> Inside:
        if not self.former:
            return inside
        return replace(inside, routes=inside.others(*self.former))

    def _inside(self, place: PodNamespace, kernel: NetlinkConnection) -> Inside:
        raw = _asked(kernel)
        before = self._seen.get(place.sandbox)
        if before and before[0] == raw:
            return before[1]
        if sum(map(len, raw)) > KEPT_MAX:
            self._seen.pop(place.sandbox, None)
            self._settled.pop(place.sandbox, None)
            return _read(raw)
        self._seen[place.sandbox] = raw, _read(raw)
        return self._seen[place.sandbox][1]

    @contextmanager
    def _connected(self, place: PodNamespace, doing: str) -> Iterator[NetlinkConnection]:
        what = f"network namespace {place.path}: {doing}"
        with open_pod_netns(place.path, place.inode, self._root) as netns:
            self._require_of_a_pod(netns, place)
            try:
                with netns.do(partial(NetlinkConnection, ROUTE, most=LISTED_MAX)) as kernel:
                    self._claims.claim(place, kernel.cookie())
                    yield kernel
            except OSError as error:
                raise of_kernel(what, error, _FULL if error.errno == errno.E2BIG else RIGHTS) from error

    def _require_of_a_pod(self, netns: Netns, place: PodNamespace) -> None:
        found, own = os.fstat(netns.fileno()), [self._own]
        for path in self._never:
            with suppress(OSError, DirectoryRefused):  # without it no namespace is that one
                own.append(os.stat(self._root.path(path)))  # noqa: PTH116 - of the namespace
        if any(os.path.samestat(found, each) for each in own):
            raise HostNamespace(f"{place.path} is a network namespace of the node's own", "its routes are not touched")


# -- what is there ---------------------------------------------------------------------------------------------------------------


_Raw = list[list[tuple[int, bytes]]]


def _links(kernel: NetlinkConnection) -> list[tuple[int, str, bool]]:
    return [links.read_name_and_state(payload) for _, payload in kernel.ask(links.dump_without_counters())]


def _asked(kernel: NetlinkConnection) -> _Raw:
    asked = links.dump_without_counters(), addresses.dump(0), routes.dump_main()
    return [kernel.ask(each) for each in asked]


def _read(raw: _Raw) -> Inside:
    found_links, found_addresses, found_routes = raw
    has: dict[int, list[Interface]] = {}
    for _, payload in found_addresses:
        if payload[0] not in _IP:
            continue
        address = _address(payload)
        has.setdefault(address.index, []).append(address.interface)
    known = {
        index: PodLink(name, index, up, tuple(has.get(index, ())))
        for index, name, up in (links.read_name_and_state(payload) for _, payload in found_links)
    }
    names = {each.index: each.name for each in known.values()}
    listed = [(payload, _route_of(payload)) for _, payload in found_routes if payload[0] in _IP]
    return Inside(
        {each.name: each for each in known.values()},
        tuple(
            _pod_route(payload, names.get(each.index, "")) if each.is_plain else _other_route(each, names)
            for payload, each in listed
            if each.route.table == routes.MAIN and not each.is_for_some
        ),
    )


@lru_cache(_ANSWERS)
def _pod_route(payload: bytes, dev: str) -> PodRoute:
    found = _route_of(payload)
    given = found.route
    return PodRoute(
        given.dst,
        given.gw,
        dev,
        given.priority or 0,
        found.protocol,
        scope=given.scope or 0,
        onlink=given.onlink,
        by_object=found.by_object,
    )


def _other_route(found: FoundRoute, names: Mapping[int, str]) -> PodRoute:
    """One that is not to one next hop."""
    hops = tuple((names.get(index, ""), via) for index, via in found.hops) if found.route.dst.version == 6 else ()
    given = found.route
    return PodRoute(
        given.dst,
        None,
        "",
        given.priority or 0,
        found.protocol,
        is_void=found.is_void,
        by_object=found.by_object,
        hops=hops,
    )


# -- what changes; pure ----------------------------------------------------------------------------------------------------------


class _RouteChange(NamedTuple):
    message: Message
    passes: int
    """The errno with which it is true already."""
    adds: DesiredRoute | None = None
    removes: PodRoute | None = None


def _changes(inside: Inside, wanted: Sequence[DesiredRoute], protocol: int, former: Collection[int]) -> list[_RouteChange]:
    """What makes ours those that are wanted: first what comes, in the order of `DesiredRoute.order`, then what goes.

    Ours are those with any of the numbers; those that are wanted have the first one.

    A route over a link that is not there is left out: `decide` has seen the same state, and has reported it.
    """
    numbers = (protocol, *former)
    foreign = {each.rank for each in inside.others(*numbers)}
    first: dict[Rank, PodRoute] = {}
    for found in inside.routes:
        first.setdefault(found.rank, found)
    left = {(each.key, each.protocol): each for each in inside.ours(*numbers)}
    same: dict[Rank, list[tuple[RouteKey, int]]] = {}
    for key, found in left.items():
        same.setdefault(found.rank, []).append(key)
    coming: list[_RouteChange] = []
    for each in sorted(wanted, key=lambda each: each.order):
        link = inside.links.get(each.dev)
        if link is None:
            continue
        there = left.pop((each.key, protocol), None)
        if there and first[there.rank] is there:
            continue
        if there:  # another program has put its own before it since
            coming += _removals(inside, there)
        if each.dst.version == 4:
            coming.append(_RouteChange(_put(routes.put_first, link.index, each, protocol), errno.EEXIST, adds=each))
            continue
        old = next((old for key in same.get(each.rank, ()) if (old := left.pop(key, None))), None)
        if old and not old.hops and each.rank not in foreign:
            coming.append(_RouteChange(_put(routes.replace_first, link.index, each, protocol), 0, adds=each, removes=old))
            continue
        if old:  # another program's next hops may be with it, which would be replaced, too
            coming += _removals(inside, old)
        coming.append(_RouteChange(_put(routes.put, link.index, each, protocol), 0, adds=each))
    return coming + [change for each in left.values() for change in _removals(inside, each)]


def _removals(inside: Inside, found: PodRoute) -> list[_RouteChange]:
    """What removes the route: of one to several next hops those of our number, which the kernel compares for each."""
    if found.hops:
        hops = [replace(found, dev=dev, via=via, hops=()) for dev, via in found.hops]
        return [change for each in hops for change in _removals(inside, each)]
    link = inside.links.get(found.dev)
    index = link.index if link else 0
    return [
        _RouteChange(_message(routes.remove, index, found.key, found.protocol, scope=found.scope), errno.ESRCH, removes=found)
    ]


def _put(make: Callable[[int, Route, int], Message], index: int, wanted: DesiredRoute, protocol: int) -> Message:
    return _message(make, index, wanted.key, protocol, onlink=wanted.onlink)


@lru_cache(_ANSWERS)
def _message(
    make: Callable[[int, Route, int], Message],
    index: int,
    key: RouteKey,
    protocol: int,
    *,
    scope: int | None = None,
    onlink: bool = False,
) -> Message:
    """What has `make` done with the route; pods have most of theirs in common."""
    (version, network, length, metric), _, via = key
    dst: Network = IPv4Network((network, length)) if version == 4 else IPv6Network((network, length))
    hop = None if via < 0 else IPv4Address(via) if version == 4 else IPv6Address(via)
    return make(index, Route(dst, hop, priority=metric or None, scope=scope, onlink=onlink), protocol)


# -- making it so ----------------------------------------------------------------------------------------------------------------


class _ChangeOutcome(NamedTuple):
    """What came of a change. `why` not: "" where it is so now. `by_us`: it was not so before."""

    change: _RouteChange
    why: str
    by_us: bool = False


def _made(kernel: NetlinkConnection, changes: Sequence[_RouteChange]) -> list[_ChangeOutcome]:
    """Make the changes. A default route is not made where the kernel has refused one that must stay with the former default."""
    start = next((number for number, each in enumerate(changes) if _is_default(each)), len(changes))
    if not any(each.adds and each.adds.kept for each in changes[:start]):
        start = len(changes)
    done = _sent(kernel, changes[:start])
    lacking = {adds.dst.version: adds for each in done if each.why and (adds := each.change.adds) and adds.kept}
    held = [each for each in changes[start:] if _is_default(each) and each.adds and each.adds.dst.version in lacking]
    done += [_ChangeOutcome(each, f"not made, for {lacking[each.adds.dst.version]} is refused") for each in held if each.adds]
    return done + _sent(kernel, [each for each in changes[start:] if each not in held])


def _tried_again(kernel: NetlinkConnection, done: Sequence[_ChangeOutcome]) -> Sequence[_ChangeOutcome]:
    """What was made, with another try at what was refused: a route of ours that has gone by now may have led to its gateway;
    that the kernel refuses for IPv6. What must stay with a former default route waits for the next pass, as that default does."""
    if not any(each.change.removes and each.by_us for each in done):
        return done
    again = [each.change for each in done if _is_worth_another_try(each)]
    return [*(each for each in done if not _is_worth_another_try(each)), *_sent(kernel, again)]


def _is_worth_another_try(done: _ChangeOutcome) -> bool:
    adds = done.change.adds
    return bool(done.why and adds and adds.via and adds.dst.prefixlen and not adds.kept)


def _is_default(change: _RouteChange) -> bool:
    return change.adds is not None and not change.adds.dst.prefixlen


def _sent(kernel: NetlinkConnection, changes: Sequence[_RouteChange]) -> list[_ChangeOutcome]:
    done = []
    for start in range(0, len(changes), EXCHANGE_MAX):
        batch = changes[start : start + EXCHANGE_MAX]
        for change, answer in zip(batch, kernel.exchange(*(each.message for each in batch)), strict=True):
            error = answer.error
            why = "" if error is None or error.errno == change.passes else error.strerror or str(error)
            done.append(_ChangeOutcome(change, why, by_us=error is None))
    return done


def _outcome(inside: Inside, done: Sequence[_ChangeOutcome]) -> RoutePass:
    return RoutePass(
        inside,
        tuple(each.change.adds for each in done if each.change.adds and not each.why),
        tuple(each.change.removes for each in done if each.change.removes and each.by_us),
        tuple(f"{each.change.adds or each.change.removes}: {each.why}" for each in done if each.why),
    )
