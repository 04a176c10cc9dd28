"""The logical ports of pods as a part of a controller, and as a process of its own.

It watches pods, nodes and network definitions, keeps rows and annotations, and tells what is in the way. It waits for no node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from threading import TIMEOUT_MAX

from userspace_cni.base.errors import LogicalPortRefused
from userspace_cni.base.notices import ANNOTATIONS_REFUSED, Recipient
from userspace_cni.base.settings import Settings
from userspace_cni.base.supervisor import StayingThread, Supervisor
from userspace_cni.base.tenancy import require_logical_switch, require_without_security
from userspace_cni.cni.ovn_keys import OvnLimits
from userspace_cni.controller.controller_metrics import ControllerMetrics
from userspace_cni.controller.election import Election
from userspace_cni.controller.northbound_hold import NorthboundHold
from userspace_cni.controller.note_writers import NoteListener, NoteWriters
from userspace_cni.controller.pod_changes import PodChanges
from userspace_cni.controller.policy_keeper import PolicyKeeper
from userspace_cni.controller.port_news import PortNews
from userspace_cni.controller.port_rounds import PortRounds, PortSources, PortTimes, count_lag
from userspace_cni.controller.row_keeper import RowKeeper
from userspace_cni.controller.service_keeper import ServiceKeeper
from userspace_cni.controller.status_events import COMPONENT
from userspace_cni.kube.credentials import ApiSession
from userspace_cni.kube.events import Events
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.object_watch import ObjectWatch
from userspace_cni.kube.resources import NETWORK_DEFINITIONS, NODES
from userspace_cni.ovn.cluster_pods import LogicalNetwork, keep_network, keep_node
from userspace_cni.ovn.pod_notes import AddressNote
from userspace_cni.ovn.port_rules import PortRules
from userspace_cni.ovn.remotes import reached_files, reached_remote, tls_files
from userspace_cni.ovsdb.database import Tls

LEASE = "userspace-cni-ovn"
"""Of processes that keep logical ports alone."""


@dataclass(frozen=True)
class PortTask:
    """What the logical ports are kept by: the database at `remote`, the files for it, the rules. `services`, `policies`: whether
    Services and NetworkPolicies are kept, too; `fragments`: what becomes of fragments whose ports OVN does not know (setting
    policy_fragments)."""

    remote: str
    tls: Tls | None
    rules: PortRules
    services: bool
    policies: bool
    fragments: str


def read_task(settings: Settings, remote: str = "", *, adopts: bool = False, map_path: Callable[[str], str] = str) -> PortTask:
    """What the settings say of it; `remote`: where the database is, unless they say it. Raises InvalidConfig.

    `map_path`: a path of the settings as this process reaches it.
    """
    remote = settings.ovn_nb or remote

    def allows(require: Callable[[], None]) -> bool:
        try:
            require()
        except LogicalPortRefused:
            return False
        return True

    def may_have(namespace: str, switch: str) -> bool:
        return allows(lambda: require_logical_switch(settings.rules, namespace, switch))

    def may_send(namespace: str, switch: str) -> bool:
        return allows(lambda: require_without_security(settings.rules, namespace, switch, ""))

    limits = OvnLimits() if settings.ovn_default_limits == "ovn" else None
    default = LogicalNetwork("default", limits=limits) if settings.ovn_default_network else None
    tls = reached_files(tls_files(settings, remote), map_path)
    rules = PortRules(
        settings.ovn_naming, default, may_have, may_send, adopts, settings.ovn_pod_ports, settings.kubeovn_annotations
    )
    kept = (settings.ovn_services, settings.ovn_policies, settings.policy_fragments)
    return PortTask(reached_remote(remote, map_path), tls, rules, *kept)


class PodPortKeeper(RowKeeper):
    """The threads. `leading`: whether this process is to act; `metrics` gets their numbers."""

    def __init__(
        self,
        session: ApiSession,
        task: PortTask,
        leading: Callable[[], bool],
        metrics: ControllerMetrics,
        times: PortTimes | None = None,
        watch_times: WatchTimes | None = None,
    ) -> None:
        super().__init__()
        self._sources = PortSources(
            PodChanges(session, self.ask, watch_times),
            ObjectWatch(session, NODES, keep=keep_node, on_change=self.ask, times=watch_times),
            ObjectWatch(session, NETWORK_DEFINITIONS, keep=keep_network, on_change=self.ask, times=watch_times),
        )
        self._refused = PortNews(ANNOTATIONS_REFUSED, "pods do not get their addresses: ", self._tell)
        listener = NoteListener(lambda outcome: metrics.count_write("pods", outcome), self._tell_refused)
        self.hold = NorthboundHold(task.remote, task.tls, leading)
        self._notes = NoteWriters(Objects(session.for_own_threads()), lambda: self.hold.may_write, listener)
        self.rounds = PortRounds(self.hold, self._sources, self._notes, task.rules, times)
        self.rounds.on_news = self._tell
        self.rounds.on_write = lambda change: metrics.count_row("logical_switch_ports", change)
        self.services = ServiceKeeper(session, self.hold, metrics, watch_times) if task.services else None
        self.policies = PolicyKeeper(session, self.hold, self._sources.pods, metrics, watch_times) if task.policies else None
        if self.policies:
            self.rounds.groups_of = self.policies.rounds.list_groups
            self.policies.rounds.on_written = self.rounds.retry_held
            self.policies.rounds.passes_fragments = task.fragments == "allow"
        self._leading = leading
        self._add_numbers(metrics)

    def start(self) -> None:
        """Begin. Raises Unavailable."""
        sources = self._sources
        self.begin(sources.pods, sources.nodes, sources.networks, self._notes, self.rounds)
        if self.services:
            self.begin(self.services)
        if self.policies:
            self.begin(self.policies)

    def stop(self, within_s: float = TIMEOUT_MAX, *, but: Collection[StayingThread] = ()) -> None:
        """As of Supervisor; then the session ends, and with it the lock is free."""
        super().stop(within_s, but=but)
        self.hold.close()

    def tell_by(self, events: Events) -> None:
        """Have pods, Services and policies told by these Events of what is wrong with their rows."""
        super().tell_by(events)
        if self.services:
            self.services.tell_by(events)
        if self.policies:
            self.policies.tell_by(events)

    def ask(self) -> None:
        """Have a round soon: something has changed, as who leads."""
        self.rounds.ask()
        if self.services:
            self.services.ask()
        if self.policies:
            self.policies.ask()

    @property
    def obstacles(self) -> list[str]:
        """Why it could not act now. That a single port cannot be is told elsewhere: a pod's author can have one that cannot."""
        sources = self._sources
        is_fenced = self._leading() and not self.hold.has_lock and not self.rounds.problem
        return [
            each
            for each in (
                sources.pods.problem,
                sources.nodes.problem,
                sources.networks.problem if not sources.networks.tried or sources.networks.synced else "",
                self.rounds.problem or self.rounds.pending,
                self._notes.problem,
                "another session has the lock of OVN's northbound database" if is_fenced else "",
                *(self.services.obstacles if self.services else ()),
                *(self.policies.obstacles if self.policies else ()),
            )
            if each
        ]

    def _tell_refused(self, note: AddressNote, why: str) -> None:
        self._refused.tell([(why, [Recipient(note.namespace, note.name, note.uid, "")])])

    def _add_numbers(self, metrics: ControllerMetrics) -> None:
        rounds = self.rounds
        metrics.add("ovn_lock", "1 for the controller that has the lock of OVN's northbound database", lambda: self.hold.has_lock)
        metrics.add("ovn_pods", "Pods that the controller knows", lambda: len(self._sources.pods))
        metrics.add("ovn_ports", "Logical switch ports in the northbound database", lambda: rounds.rows)
        metrics.add("ovn_ports_lacking", "Logical ports that cannot be made now", lambda: rounds.lacking)
        metrics.add("ovn_limits_refused", "Logical ports whose limits stay as they are", lambda: rounds.limits_refused)
        metrics.add("ovn_ports_doubtful", "Logical ports that keep what they could not get now", lambda: rounds.doubtful)
        queue = self._notes.queue
        metrics.add("ovn_notes_waiting", "Pods whose addresses wait to be written into them", lambda: len(queue))
        metrics.add("ovn_notes_refused", "Of these, pods for which the server did not take them", lambda: queue.resting)
        metrics.add("ovn_full_seconds", "Seconds of the last comparison of all ports", lambda: rounds.full_s)
        metrics.add(
            "ovn_lag", "Changes of the northbound database that ovn-northd has not taken over", lambda: self.hold.look(count_lag)
        )


class PortController(Supervisor):
    """A process that keeps logical ports alone: several may run, and one acts. `namespace`: where the Lease is."""

    def __init__(self, session: ApiSession, namespace: str, task: PortTask) -> None:
        super().__init__()
        self.election = Election(Objects(session), namespace, on_change=self._changed, name=LEASE)
        self.metrics = ControllerMetrics(lambda: self.election.leading, {})
        self.events = Events(session, "", self.metrics.count_dropped_events, component=COMPONENT)
        self.ports = PodPortKeeper(session, task, lambda: self.election.leading, self.metrics)
        self.ports.tell_by(self.events)
        self.page_ports: Sequence[StayingThread] = ()

    def start(self) -> None:
        """Begin. Raises Unavailable."""
        self.begin(*self.page_ports, self.events, self.election, self.ports)

    def obstacles(self) -> list[str]:
        """The reasons why this process could not act now, or does not do all that it should."""
        return [each for each in (self.election.problem, *self.ports.obstacles) if each]

    def _changed(self) -> None:
        self.ports.ask()
