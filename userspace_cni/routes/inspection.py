"""Routes in this node's pods as commands see them: looked at, explained, taken out, and Route objects put into the API.

It works beside an agent, and without one. What Route objects ask for is known from the file that the agent keeps: a command
follows no objects. Nothing here makes a route in a pod; that is the agent's alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from userspace_cni.base.errors import ContainerGone, HostNamespace, InvalidConfig, NameTaken, Unavailable, UserspaceError
from userspace_cni.base.findings import Finding
from userspace_cni.base.routing import Address, DesiredRoute, Inside, Network, PodRoute
from userspace_cni.host.netlink.netns import open_pod_netns
from userspace_cni.host.pod_net.pod_routes import KernelWay, PodNamespace, PodRoutes, RoutePass
from userspace_cni.linux import paths
from userspace_cni.routes.explanation import Explanation, RouteDrift, drift, explain, find_route
from userspace_cni.routes.known import KnownCluster
from userspace_cni.routes.passes import VisitedSandbox
from userspace_cni.routes.places import LocatedSandbox, Source
from userspace_cni.routes.reports import read_wanted
from userspace_cni.routes.resolving import ResolvedRoutes
from userspace_cni.routes.routes_service import compose, kernel_of, read_kept, read_routes_file, with_ranges

if TYPE_CHECKING:
    from collections.abc import Collection

    from userspace_cni.attachment.attachment_store import AttachmentStore
    from userspace_cni.node.installation import Installation

MANAGER: Final = "userspace-cni-routes"
"""Whose the fields of Route objects are that a command applied."""
POD_UNKNOWN: Final = "pod-unknown"
POD_UNFOUND: Final = "pod-unfound"
SOURCE_UNREAD: Final = "source-unread"
_KEPT_METADATA: Final = ("name", "labels", "annotations")
Applied = Literal["created", "changed", "unchanged"]


@dataclass(frozen=True)
class InspectedPod:
    """A pod, what a look at it showed, and how it differs from what it is to have. `drift` None: there was no look."""

    visited: VisitedSandbox
    drift: RouteDrift | None

    @property
    def pod(self) -> str:
        return self.visited.located.title

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Why it could not be looked at, or what has to be changed in it."""
        if self.drift is None:
            return (Finding(POD_UNKNOWN, "error", self.pod, self.visited.problem),)
        return tuple(self.drift.findings(self.pod, self.visited.resolved))


@dataclass(frozen=True)
class Inspection:
    """All pods. `unfound`: pods for which Routes ask, and of which no namespace is found. `problems`: sources that cannot be
    read, and why."""

    pods: tuple[InspectedPod, ...]
    unfound: tuple[str, ...]
    problems: Mapping[Source, str]

    @property
    def findings(self) -> list[Finding]:
        """Everything that is wrong, the pods first."""
        found = [each for pod in self.pods for each in pod.findings]
        found += [Finding(POD_UNFOUND, "error", each, "no network namespace of it is found") for each in self.unfound]
        return found + [Finding(SOURCE_UNREAD, "error", source, why) for source, why in self.problems.items()]


@dataclass(frozen=True)
class Holding:
    """A sandbox, and its routes with our number. `problem`: why it could not be looked at."""

    located: LocatedSandbox
    routes: tuple[PodRoute, ...]
    problem: str = ""

    @property
    def pod(self) -> str:
        return self.located.title


@dataclass(frozen=True)
class PodExplanation:
    """What becomes of packets from a pod. `way`: the kernel's own answer, None for a network, of which it cannot be asked."""

    explanation: Explanation
    way: KernelWay | None

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known beside; also that the kernel does not go by the table in which the routes are."""
        now = self.explanation.now
        if self.way and self.way.dev and now and now.dev and self.way.dev != now.dev:
            other = "the kernel goes by another table: a rule of the pod's decides (ip rule, in the pod)"
            return (*self.explanation.notes, other)
        return self.explanation.notes


class Inspector:
    """Looks at the pods of `node`. For one thread."""

    def __init__(self, here: Installation, store: AttachmentStore) -> None:
        self._here = here
        self._kernel = kernel_of(here, _kept(here))
        self._looking = _DryRunKernel(self._kernel)
        self._passes, self._places = compose(here, store, self._looking)

    def inspect(self) -> Inspection:
        """How all pods are. Raises Unavailable where what Routes ask is not known, UserspaceError for unreadable files."""
        known = known_now(self._here)
        self._visit(known, self._places.locate())
        visited = [each for sandbox, each in self._passes.visited.items() if sandbox not in self._looking.gone]
        visited.sort(key=lambda each: (each.pod.namespace, each.pod.name, each.located.place.sandbox))
        there = {each.located.uid for each in visited}
        pods = known.pods if known.has_api and self._here.has_account else {}
        running = {uid: pod for uid, pod in pods.items() if pod.phase == "Running" and uid not in there}
        unfound = sorted(pod.title for pod in running.values() if self._passes.book.claims(pod).claims)
        seen = tuple(self._inspected(each) for each in visited if not each.host)
        return Inspection(seen, tuple(unfound), dict(self._places.problems))

    def explain(self, pod: str, dst: Address | Network) -> PodExplanation:
        """What becomes of the pod's packets to `dst`. Raises ContainerGone for a pod that is not found; as `inspect`."""
        known = known_now(self._here)
        for located in self.find_sandboxes(pod):
            self._visit(known, [located])
            visited, asked = self._passes.visited.get(located.place.sandbox), self._passes.find_claims(located)
            if asked is None or located.place.sandbox in self._looking.gone:
                continue
            try:
                inside = self._looking.inside(located.place)
            except ContainerGone:
                continue
            found = explain(dst, asked, visited.resolved if visited else ResolvedRoutes(), inside, self._kernel.protocol)
            alone = found.dst.prefixlen == found.dst.max_prefixlen
            return PodExplanation(found, self._kernel.way_to(located.place, found.dst.network_address) if alone else None)
        raise self._unfound(pod)

    def ours(self, pod: str = "") -> Iterator[Holding]:
        """The sandboxes of all pods, or of one, that are there, each once: with what they have of ours."""
        for located in self.find_sandboxes(pod) if pod else self._places.locate():
            try:
                inside = self._kernel.look(located.place)
            except (ContainerGone, HostNamespace, NameTaken):  # the last one: that namespace was looked at under another id
                continue
            except UserspaceError as error:
                yield Holding(located, (), str(error))
            else:
                yield Holding(located, inside.ours(self._kernel.protocol, *self._kernel.former))

    def take_out(self, holdings: Iterable[Holding]) -> dict[str, str]:
        """Remove every route of ours from these sandboxes; the ids of those in which some are left, and why."""
        left = {}
        for each in holdings:
            try:
                refused = self._kernel.converge(each.located.place, lambda _: ()).refused
            except UserspaceError as error:
                refused = (str(error),)
            if refused:
                left[each.located.place.sandbox] = "; ".join(refused)
        return left

    def entrance(self, pod: str) -> int:
        """A descriptor of the network namespace of the pod, which is none of the node's own; the caller's to close.

        Raises ContainerGone where none is found, HostNamespace, and as PodRoutes.look.
        """
        for located in self._proven_first(pod):
            try:
                opened = open_pod_netns(located.place.path, located.place.inode, self._here.root)
            except ContainerGone:
                continue
            with opened as netns:
                # while it is open the kernel gives its number to no other namespace: the proven one is the one that is entered
                self._kernel.look(replace(located.place, inode=os.fstat(netns.fileno()).st_ino))
                return os.dup(netns.fileno())
        raise self._unfound(pod)

    def _proven_first(self, pod: str) -> Iterator[LocatedSandbox]:
        """First the sandboxes that the API has confirmed, then others with the pod's name: they may be a former pod's."""
        pods, others = _kept(self._here).pods, []
        for each in self.find_sandboxes(pod):
            if not pods or each.uid in pods:
                yield each
            else:
                others.append(each)
        yield from others

    def find_sandboxes(self, pod: str) -> Iterator[LocatedSandbox]:
        """The sandboxes of that pod, or with that id, each once. The runtime is asked when the others do not suffice."""
        seen: set[str] = set()
        for wanted in ((), None):
            for each in self._places.locate(wanted):
                if each.is_called(pod) and each.place.sandbox not in seen:
                    seen.add(each.place.sandbox)
                    yield each

    @property
    def problems(self) -> Mapping[Source, str]:
        """Which sources the last look could not read, and why."""
        return dict(self._places.problems)

    def _visit(self, known: KnownCluster, located: Iterable[LocatedSandbox]) -> None:
        self._passes.learn(known)
        self._passes.visit(located, everything=True)

    def _inspected(self, visited: VisitedSandbox) -> InspectedPod:
        inside = self._looking.seen.get(visited.located.place.sandbox)
        return InspectedPod(visited, drift(visited.resolved, inside, self._kernel.protocol) if inside else None)

    def _unfound(self, pod: str) -> ContainerGone:
        why = "".join(f"; {source}: {problem}" for source, problem in self._places.problems.items())
        return ContainerGone(
            f"pod {pod}: no network namespace of it is found on this node{why}",
            "looked for in the records, in cni_cache_dir and at cri_socket: docs/routes.md",
        )


class _DryRunKernel:
    """The kernel's part in passes that change nothing. `gone`: the sandboxes whose namespaces have gone; `seen`: what others
    have."""

    def __init__(self, kernel: PodRoutes) -> None:
        self._kernel = kernel
        self.protocol = kernel.protocol
        self.gone: set[str] = set()
        self.seen: dict[str, Inside] = {}

    def converge(self, place: PodNamespace, decide: Callable[[Inside], Iterable[DesiredRoute]]) -> RoutePass:
        """As PodRoutes.converge, but for the changes."""
        try:
            inside = self._kernel.look(place)
        except ContainerGone:
            self.gone.add(place.sandbox)
            raise
        self.seen[place.sandbox] = inside
        list(decide(inside))
        return RoutePass(inside)

    def keep(self, sandboxes: Collection[str]) -> None:
        self._kernel.keep(sandboxes)

    def inside(self, place: PodNamespace) -> Inside:
        """What the namespace has. Raises as PodRoutes.look."""
        return self._kernel.look(place)


def _kept(here: Installation) -> KnownCluster:
    """What the agent knew last; nothing where that cannot be read."""
    try:
        return read_kept(here)
    except UserspaceError:
        return KnownCluster()


def known_now(here: Installation) -> KnownCluster:
    """What is known of Routes, pods and Services: as the agent has kept it, with the file as it is now. Raises UserspaceError.

    Unavailable: the node is one of a cluster, and no agent has kept anything yet; or the file is none of routes.
    """
    kept = read_kept(here)
    if here.has_account and not kept.has_api:
        raise Unavailable(
            f"what Route objects ask for is not known: nothing of the API is kept in {here.settings.state_dir}",
            "an agent with routes = true reads it when the API server answers; see its log",
        )
    try:
        from_file = read_routes_file(here)
    except InvalidConfig as error:
        raise Unavailable(f"what the file of routes asks for is not known: {error.message}", error.details) from error
    return with_ranges(replace(kept, from_file=from_file), here.settings)


def enter(netns: int) -> None:
    """Move this thread into the network namespace, for good: a program is started in it next. Raises OSError."""
    paths.setns(netns, paths.NETWORK)


def apply_object(here: Installation, thing: Mapping[str, Any], *, force: bool, dry_run: bool = False) -> Applied:
    """Put a Route object into the API, by server-side apply; `force`: take over fields of others. Raises UserspaceError.

    `dry_run`: the server judges it, says what would become of it, and stores nothing.
    """
    from userspace_cni.kube.object_requests import Objects
    from userspace_cni.kube.resources import ROUTES

    objects = Objects(here.clients.of("").session)
    name = str(thing["metadata"]["name"])
    metadata = {key: thing["metadata"][key] for key in _KEPT_METADATA if thing["metadata"].get(key)}
    body = {"metadata": metadata, "spec": thing.get("spec") or {}}
    before = objects.get(ROUTES, name)
    if dry_run:
        after = objects.dry_run(ROUTES, name, body, manager=MANAGER, force=force)
        same = before is not None and _stored(before) == _stored(after)
    else:
        after = objects.apply(ROUTES, name, body, manager=MANAGER, force=force)
        same = before is not None and _version(before) == _version(after)
    return "created" if before is None else "unchanged" if same else "changed"


def _version(thing: Mapping[str, Any]) -> object:
    return (thing.get("metadata") or {}).get("resourceVersion")


def _stored(thing: Mapping[str, Any]) -> dict[str, Any]:
    """What a write of the object would change: a dry run has no version of its own."""
    metadata = {key: each for key, each in (thing.get("metadata") or {}).items() if key != "resourceVersion"}
    return {**thing, "metadata": metadata}


def see_routes(here: Installation, pods: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The pods as the agent tells of them (`reports.describe`), each with what its namespace has now: of each route that it is to
    have whether it is there (`now`, a Presence; `instead`), and why it cannot be looked at (`unseen`), else ""."""
    kernel = kernel_of(here, KnownCluster())
    for pod in pods:
        wanted, unseen = [dict(each) for each in pod["wanted"]], ""
        try:
            inside = kernel.look(PodNamespace(pod["sandbox"], pod["netns"])) if wanted else Inside()
        except ContainerGone:
            unseen = "its network namespace has gone"
        except UserspaceError as error:
            unseen = str(error)
        for each in wanted:
            seen = None if unseen else find_route(read_wanted(each), inside, kernel.protocol)
            each |= {"now": seen.presence if seen else "", "instead": str(seen.instead or "") if seen else ""}
        yield {**pod, "wanted": wanted, "unseen": unseen}


def describe_pods(drifts: Sequence[InspectedPod]) -> list[dict[str, Any]]:
    """Pods and how they differ, as JSON values."""
    return [
        {
            "namespace": each.visited.pod.namespace,
            "name": each.visited.pod.name,
            "sandbox": each.visited.located.place.sandbox,
            "source": each.visited.located.source,
            "wanted": len(each.visited.resolved.wanted),
            "missing": [_asked(each, wanted) for wanted in each.drift.missing] if each.drift else [],
            "extra": [str(route) for route in each.drift.extra] if each.drift else [],
            "behind": [{"route": str(route), "protocol": route.protocol} for route in each.drift.behind] if each.drift else [],
            "problem": each.visited.problem,
        }
        for each in drifts
    ]


def _asked(inspected: InspectedPod, wanted: DesiredRoute) -> dict[str, str]:
    by = next((each.asked_by for each in inspected.visited.resolved.wanted if each.wanted == wanted), "")
    return {"route": str(wanted), "asked_by": by}
