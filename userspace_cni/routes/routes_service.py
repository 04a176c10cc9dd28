"""Routes in this node's pods, in the agent: what is known, the thread that keeps them, and what is told of it.

Nothing here waits for the API server. While it is away, what is known stays, and so does every route; the agent that starts then
reads what its predecessor knew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import DirectoryRefused, InvalidConfig, UserspaceError, of_kernel
from userspace_cni.base.log import say
from userspace_cni.base.supervisor import Supervisor
from userspace_cni.host.files.whole_files import read_file, read_trusted, replace_file
from userspace_cni.host.netlink.listening import DirectoryWatch
from userspace_cni.host.pod_net.pod_routes import PodRoutes
from userspace_cni.node.belongings import KNOWN_ROUTES
from userspace_cni.routes.known import KnownCluster, as_json, from_json
from userspace_cni.routes.passes import Passes, Rules
from userspace_cni.routes.places import NamespaceSources
from userspace_cni.routes.refusal_events import RefusalEvents
from userspace_cni.routes.reports import describe, uses
from userspace_cni.routes.routes_keeper import RouteKeeper

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

    from userspace_cni.attachment.attachment_store import AttachmentStore
    from userspace_cni.base.findings import Finding
    from userspace_cni.base.notices import Recipient
    from userspace_cni.base.settings import Settings
    from userspace_cni.node.installation import Installation
    from userspace_cni.node.state import RouteUse
    from userspace_cni.routes.passes import RouteKernel
    from userspace_cni.routes.watching import Watching

ADD_S: Final = 0.2
"""How long the answer to an ADD waits for the routes of its pod at most."""
KEEP_S: Final = 5.0
"""Seconds between two writes of what is known beside Routes: others' objects change as often as they like."""
_SETTLING_S: Final = 0.05
KEEP_AGAIN_S: Final = 60.0
"""After how many seconds a write that failed is tried again, where nothing else asks for a round."""
_MODE: Final = 0o600
_KEPT_MAX: Final = 64 << 20

TellPod = Callable[["Recipient", "Sequence[Finding]"], None]
"""Has a pod told by Events. It must not wait."""


class NodeRoutes(Supervisor):
    """What the agent does for routes in pods. `told` gets what this node has of each Route, after each round; it must not wait.

    After `start` its methods may be called from any thread.
    """

    def __init__(
        self, here: Installation, store: AttachmentStore, tell: TellPod, told: Callable[[Sequence[RouteUse]], None]
    ) -> None:
        super().__init__()
        settings = here.settings
        self._here = here
        self._kept = self._last = self._read_kept()
        self._kernel = kernel_of(here, self._kept)
        self._passes, self._places = compose(here, store, self._kernel)
        self._refusals = RefusalEvents(tell)
        self._told = told
        self._keeper = RouteKeeper(self._passes, self._places, self._learn, self._tell, self._keep_rest)
        self._watching: Watching | None = None
        self._file_problem = ""
        self._file_identity: tuple[int, ...] | None = None
        self._keep_at = 0.0
        self._unkept: KnownCluster | None = None
        """What to store later, because something was just stored."""
        self._keep_problem = ""
        results = f"{settings.cni_cache_dir}/results"
        self._watches = [DirectoryWatch(self._keeper.ask, results, "the sandboxes of the runtime", here.root)]
        if settings.routes_file:
            directory = os.path.dirname(settings.routes_file)  # noqa: PTH120 - the host's path, which root.path translates
            self._watches.append(DirectoryWatch(self._keeper.ask, directory, "the file of routes", here.root))

    def start(self) -> None:
        """Make the pods' routes so, and keep them. Raises Unavailable."""
        if self._here.has_account:
            from userspace_cni.routes.watching import Watching

            find_ranges = not self._here.settings.route_cluster_ranges
            session = self._here.clients.of("").session
            self._watching = Watching(session, self._here.name, self._keeper.ask, find_ranges=find_ranges)
            self._watching.start()
        elif not self._here.settings.routes_file:
            say("warning", "neither Route objects nor a file can be read: no routes are kept", look="kubeconfig, routes_file")
        self._keeper.ask()
        self.begin(*self._watches, self._keeper)

    def ask(self) -> None:
        """Look at every pod, and read again what may be read again. Never waits."""
        self._keeper.ask_all()

    def look(self, deadline: Deadline) -> None:
        """Look at every pod now, and wait for it. Raises Unavailable at the deadline."""
        self._keeper.look(deadline)

    def await_routes(self, sandbox: str) -> None:
        """Wait a moment for the routes of a pod that was just attached, so that its application starts with them. Never fails."""
        if self._passes.routes:
            self._keeper.look_at(sandbox, ADD_S)

    def gauges(self) -> dict[str, Callable[[], float]]:
        def pods(state: str) -> Callable[[], float]:
            return lambda: sum(each.state == state for each in self._passes.visited.values())

        return {
            "route_pods_applied": pods("applied"),
            "route_pods_skipped": pods("skipped"),
            "route_pods_failed": pods("failed"),
            "routes_in_pods": lambda: sum(len(each.resolved.wanted) for each in self._passes.visited.values()),
            "route_conflicts": lambda: sum(len(each.resolved.conflicts) for each in self._passes.visited.values()),
            "route_looks": lambda: self._keeper.looks,
            "route_round_seconds": lambda: self._keeper.seconds,
            "route_cache_unreadable": lambda: self._places.unreadable,
        }

    def describe(self) -> dict[str, Any]:
        return {
            **describe(self._passes),
            "problems": {
                **({"api": self._watching.problem} if self._watching and self._watching.problem else {}),
                **({"file": self._file_problem} if self._file_problem else {}),
                **self._places.problems,
                **({"rounds": self._keeper.problem} if self._keeper.problem else {}),
            },
            "unreadable": self._places.unreadable,
            "rounds": self._keeper.rounds,
        }

    def _keep_rest(self) -> None:
        """Store what was postponed: nothing is changed any more, and the routes stay."""
        if self._unkept:
            self._keep(self._unkept)

    def _tell(self) -> None:
        """Tell of the round that has come to its end: the report to the API, and the pods of which something was refused."""
        if self._kernel.former and self._has_looked_everywhere():
            self._kernel.former = frozenset()
            self._keeper.ask()
        self._told(uses(self._passes))
        self._refusals.tell(self._passes.visited.values())

    def _has_looked_everywhere(self) -> bool:
        """Whether no pod can have been left out since this agent began, whose first round is over all that it knows of."""
        if (self._watching and not self._watching.has_listed) or self._places.problems:
            return False
        return not any(each.problem or each.refused for each in self._passes.visited.values())

    def _learn(self) -> bool:
        """Go by what is known now, and keep it when it has changed; whether it is enough to act on."""
        before = self._last
        settling = bool(self._watching and self._watching.settling)
        known = self._watching.known(before) if self._watching else replace(before, has_api=False, objects=())
        known = replace(known, from_file=self._of_file(before.from_file))
        numbers = tuple(sorted({self._kernel.protocol, *self._kernel.former}))
        known = replace(with_ranges(known, self._here.settings), protocols=numbers)
        self._last = known
        self._passes.learn(known)
        if self._watching:
            self._watching.follow(self._passes.routes)
            if settling or self._watching.settling:
                self._keeper.remind(_SETTLING_S)
                return False
        if known.is_enough:
            self._keep_if_changed(known)
        return known.is_enough

    def _keep_if_changed(self, known: KnownCluster) -> None:
        """Keep what is known, if it is something else.

        Routes at once, before anything is done for them: the next agent, which may find no API server, must not make again what
        was deleted.
        """
        if known == self._kept:
            self._unkept = None
            return
        same_routes = (known.objects, known.from_file) == (self._kept.objects, self._kept.from_file)
        wait_s = self._keep_at - time.monotonic()
        if same_routes and wait_s > 0:
            self._unkept = known
            self._keeper.remind(wait_s)
        else:
            self._keep(known)
            self._keep_at = time.monotonic() + KEEP_S

    def _of_file(self, before: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
        """What is in the file of routes, which is read when it is another one; `before` where it cannot be read."""
        identity = file_identity(self._here)
        if identity == self._file_identity and identity is not None:
            self._file_problem = ""
            return before
        try:
            found = read_routes_file(self._here)
        except UserspaceError as error:
            say("warning", "the file of routes cannot be read; what was in it stays", error=error)
            self._file_problem = str(error)
            return before
        self._file_problem, self._file_identity = "", identity
        return found

    def _read_kept(self) -> KnownCluster:
        try:
            return read_kept(self._here)
        except UserspaceError as error:
            say("warning", "what the former agent knew of routes cannot be read", error=error)
            return KnownCluster()

    def _keep(self, known: KnownCluster) -> None:
        """Keep what is known for the next agent. It is whole or the former one, and needs no flush: it is read again anyway."""
        state = self._here.root.path(self._here.settings.state_dir)
        try:
            dirfd = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                replace_file(dirfd, KNOWN_ROUTES, as_json(known), _MODE)
            finally:
                os.close(dirfd)
        except (OSError, ValueError, TypeError, RecursionError, UserspaceError) as error:
            problem, text = repr(error), "what is known of routes cannot be kept for the next agent"
            if problem != self._keep_problem and say("warning", text, error=problem):
                self._keep_problem = problem
            self._keeper.remind(KEEP_AGAIN_S)
        else:
            if self._keep_problem:
                say("info", "what is known of routes is kept for the next agent again")
            self._kept, self._unkept, self._keep_problem = known, None, ""


def kernel_of(here: Installation, kept: KnownCluster) -> PodRoutes:
    """Routes of ours in the namespaces of the pods of `node`, with the numbers that they have had there."""
    made = PodRoutes(here.settings.route_protocol, (here.settings.switch_netns,), here.root)
    made.former = frozenset(kept.protocols) - {made.protocol}
    return made


def compose(here: Installation, store: AttachmentStore, kernel: RouteKernel | None = None) -> tuple[Passes, NamespaceSources]:
    """The passes over the pods of `node`, and where those are found. `kernel`: what the passes do there, else `kernel_of`."""
    settings = here.settings
    rules = Rules(settings.route_metric6, settings.route_exclude_namespaces)
    cri = None
    if settings.cri_socket:
        from userspace_cni.host.runtimes.cri import Cri

        cri = Cri(settings.cri_socket, here.root)
    return Passes(kernel or kernel_of(here, KnownCluster()), rules), NamespaceSources(here, store, cri)


def read_kept(here: Installation) -> KnownCluster:
    """What the agent of this state directory knew last; nothing where there was none. Raises UserspaceError."""
    state = here.root.path(here.settings.state_dir)
    what = f"reading {here.settings.state_dir}/{KNOWN_ROUTES}"
    try:
        dirfd = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return KnownCluster()
    except OSError as error:
        raise of_kernel(what, error, "it takes root") from error
    try:
        content = read_file(dirfd, KNOWN_ROUTES, _KEPT_MAX + 1)
        if content is not None and len(content) > _KEPT_MAX:
            raise ValueError(f"it has more than {_KEPT_MAX >> 20} MiB")
        return KnownCluster() if content is None else from_json(content.decode())
    except OSError as error:
        raise of_kernel(what, error, "it takes root") from error
    except ValueError as error:
        raise InvalidConfig(what, str(error)) from error
    finally:
        os.close(dirfd)


def read_routes_file(here: Installation) -> tuple[Mapping[str, Any], ...]:
    """The Route objects of `routes_file`; none where the setting is empty or the file is absent. Raises UserspaceError."""
    path = here.settings.routes_file
    if not path:
        return ()
    # with YAML, which a node without such a file does not need
    from userspace_cni.routes.route_files import BYTES_MAX, objects_in, parse

    try:
        real = here.root.path(here.root.resolve(path))  # a file of a ConfigMap is a link
        directory, name = os.path.split(real)
        dirfd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            content = read_trusted(dirfd, name, BYTES_MAX + 1)
        finally:
            os.close(dirfd)
        if content is None and os.path.lexists(real):
            raise InvalidConfig(f"{path} is not a regular file", "the setting routes_file")
        text = (content or b"").decode()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise of_kernel(f"reading {path}", error, "the setting routes_file") from error
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{path} is not UTF-8", "the setting routes_file") from error
    if content is None:
        return ()
    if not text.strip():  # who writes it may have begun by making it empty
        raise InvalidConfig(f"{path} is empty", "to have no routes, remove it, or write []")
    return objects_in(parse(text, path), path)


def file_identity(here: Installation) -> tuple[int, ...] | None:
    """What tells the file of routes from another one, or from itself before a change; None where there is none."""
    try:
        facts = os.stat(here.root.path(here.settings.routes_file))  # noqa: PTH116 - the host's path
    except (OSError, DirectoryRefused):
        return None
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_mode, facts.st_uid


def with_ranges(known: KnownCluster, settings: Settings) -> KnownCluster:
    """What is known, with the networks of the cluster that the settings name in the place of those that were found."""
    from ipaddress import ip_network

    named: tuple[IPv4Network | IPv6Network, ...] = tuple(map(ip_network, settings.route_cluster_ranges))
    versions = {each.version for each in named}

    def found(ranges: Sequence[IPv4Network | IPv6Network]) -> tuple[IPv4Network | IPv6Network, ...]:
        return tuple(each for each in ranges if each.version not in versions)

    cluster = known.cluster
    services, pods = found(cluster.service_ranges), found(cluster.pod_ranges)
    return replace(known, cluster=replace(cluster, service_ranges=services, pod_ranges=pods, named_ranges=named))
