"""The leader's work on logical ports: what pods and the northbound database have become, and the difference, written.

A round judges the ports of pods and rows that have changed; all of them where the session with the database is new, where this
process has begun to act, and every ten minutes. Rows are written in groups, and what changes meanwhile is the next group. Then
the pods of those rows get their annotations.

A process that has Lease and lock writes (`northbound_hold`). What another one knew of addresses it reads from annotations and
rows.

Before two lists have told which pods and networks there are, no row is removed.

A death at any point leaves rows without annotations, or annotations that are not needed any more: the next full look finishes it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.findings import Finding
from userspace_cni.base.log import say
from userspace_cni.base.loops import Loop
from userspace_cni.base.notices import ADDRESS_CONFLICT, LIMIT_REFUSED, LOGICAL_PORT_MISSING, Recipient
from userspace_cni.controller.northbound_hold import NorthboundHold
from userspace_cni.controller.note_writers import NoteWriters
from userspace_cni.controller.pod_changes import PodChanges
from userspace_cni.controller.port_news import PortNews, ToldPorts
from userspace_cni.kube.object_watch import ObjectWatch
from userspace_cni.ovn.address_book import HELD_S, AddressBook
from userspace_cni.ovn.cluster_pods import ClusterPod
from userspace_cni.ovn.limit_rows import LimitChange
from userspace_cni.ovn.limited_ports import LimitedPorts
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.pod_ports import LogicalFacts, PodPorts, Settled
from userspace_cni.ovn.policy.policy_members import PortSubject
from userspace_cni.ovn.port_rows import PortChange
from userspace_cni.ovn.port_rules import PortRules
from userspace_cni.ovn.port_view import NorthboundFacts, PortView, count_ports
from userspace_cni.ovn.port_writing import BATCH, WritePorts

_SYNC_S: Final = 1.0
"""Between looks whether there were first lists, where one of them may never be."""
_NONE: Final[Mapping[str, Any]] = {}
_LACKING_S: Final = 5.0
"""Until ports that cannot be are judged again, where nothing of them changes: another one may have freed an address. And until
what is known is asked again, while it is not certain: that a server has no network definitions is no event."""
_LACKING_SHARE: Final = 100
"""One part in so many of a core is what this may take: with 22,500 such ports it is done more seldom."""


@dataclass(frozen=True)
class PortTimes:
    """Seconds. Everything is judged each `full_s`; a transaction may take `write_s`; rounds are `rounds_s` apart."""

    full_s: float = 600.0
    write_s: float = 30.0
    rounds_s: float = 0.02
    held_s: float = HELD_S
    back_off: BackOff = BackOff(0.5, 8.0, spread=0.3)


@dataclass(frozen=True)
class PortSources:
    """What a cluster's ports follow from, beside the database."""

    pods: PodChanges
    nodes: ObjectWatch
    networks: ObjectWatch

    @property
    def listed(self) -> bool:
        """Whether there was a first list of each, or it is known that there is none to have."""
        return self.pods.synced and self.nodes.synced and (self.networks.synced or self.networks.tried)

    @property
    def certain(self) -> bool:
        """Whether a port for which they have no pod, or no network, is one that none is to have.

        A server that has no network definitions at all says so (404); one that does not answer for them has said nothing.
        """
        networks = self.networks
        is_absent = networks.tried and not networks.synced and not networks.problem
        return self.pods.confirmed and (networks.confirmed or is_absent)


class PortRounds(Loop):
    """The thread; `ask` it for a round. `hold`: the session by which it reads and writes; its owner closes it."""

    failing = "logical ports of pods cannot be kept now; the controller tries again: "
    end_s = 2.0

    def __init__(
        self,
        hold: NorthboundHold,
        sources: PortSources,
        notes: NoteWriters,
        rules: PortRules,
        times: PortTimes | None = None,
    ) -> None:
        super().__init__("logical ports", "keeps logical ports of pods")
        self._times = times or PortTimes()
        self.apart_s, self.back_off = self._times.rounds_s, self._times.back_off
        self._sources = sources
        self._notes = notes
        self._rules = rules
        self._view = PortView(self.ask)
        self._hold = hold
        hold.follow(self._view.told, self.ask)
        self.on_write: Callable[[str], None] = lambda _: None
        """Told of each port's row that was written: "insert", "update" or "delete"."""
        self.on_news: Callable[[Recipient, Sequence[Finding]], None] = lambda _recipient, _findings: None
        """Told what pods are to know of their ports; it must not wait."""
        self.groups_of: Callable[[Collection[PortSubject]], Collection[str] | None] = lambda _subjects: ()
        """The port groups of a port with these pods; None while its policies are not known. It is called with the session's
        lock."""
        self.full_s: float | None = None
        """Seconds of the last look at everything; None before the first."""
        # only the thread uses these
        self._ports = self._new_ports()
        self._limited = LimitedPorts(kubeovn_read=rules.kubeovn_read)
        self._unlimited = ToldPorts(PortNews(LIMIT_REFUSED, "limits of logical ports cannot be: ", self._tell_pod))
        self._facts: LogicalFacts | None = None
        self._known: dict[str, ClusterPod] = {}
        self._ended: deque[tuple[float, ClusterPod]] = deque()
        self._acts = self._certain = False
        self._lacking = ToldPorts(PortNews(LOGICAL_PORT_MISSING, "logical ports cannot be: ", self._tell_pod))
        self._doubtful = ToldPorts(PortNews(ADDRESS_CONFLICT, "logical ports keep what their pods live with: ", self._tell_pod))
        self._held: dict[str, float] = {}
        """Ports that wait for their policies, and since when."""
        self._may_be_free = False
        self._lacking_due = 0.0
        self._full_due = 0.0

    @property
    def pending(self) -> str:
        """What has to be done before it could act; "" when that was done."""
        if not self._hold.was_open:
            return "there was no session with OVN's northbound database yet"
        if self.full_s is None and self._hold.may_write:
            return "the logical ports have not been compared with the pods yet"
        return ""

    @property
    def lacking(self) -> int:
        """How many logical ports cannot be made now."""
        return len(self._lacking.reasons)

    @property
    def limits_refused(self) -> int:
        """How many logical ports keep the limits that they have, because of what their pods say."""
        return len(self._unlimited.reasons)

    @property
    def doubtful(self) -> int:
        """How many logical ports keep what they could not get now."""
        return len(self._doubtful.reasons)

    @property
    def rows(self) -> int:
        """How many logical ports the database has."""
        return int(self._hold.look(count_ports) or 0)

    def retry_held(self) -> None:
        """Look again at the ports that wait for their policies. Never waits and never fails."""
        self._may_be_free = True
        self.ask()

    def _round(self) -> float | None:
        session = self._hold.open(Deadline.after(self._times.write_s))
        if session is None:
            return _SYNC_S
        now = time.monotonic()
        sources = self._sources
        if not sources.listed:
            return _SYNC_S
        acts, certain = self._hold.may_write, sources.certain
        began, self._acts = acts and not self._acts, acts
        is_full = began or now >= self._full_due or certain != self._certain
        self._certain = certain
        pods = sources.pods.take(everything=is_full)
        self._note_ended(pods, now)
        if not acts:
            self._full_due = 0.0
            session.look(lambda _: self._view.forget())  # else it kept each name that was ever told
            return None  # Lease and lock ask for a round when they are ours
        if began:
            say("info", "this controller keeps the logical ports of pods")
            self._ports, self._facts = self._new_ports(), None
            self._limited = LimitedPorts(kubeovn_read=self._rules.kubeovn_read)
            pods = dict(self._known)
        self._look(session, pods, is_full=is_full)
        again = math.inf if certain else now + _LACKING_S
        lacking_due = self._lacking_due if self._lacking.reasons or self._held else math.inf
        due_s = min(self._full_due, self._ports.next_due(now), again, lacking_due) - time.monotonic()
        return max(0.0, min(due_s, *(each.write() for each in (self._lacking, self._doubtful, self._unlimited))))

    def _look(self, session: NorthboundSession, pods: Mapping[str, ClusterPod | None], *, is_full: bool) -> None:
        """Judge what has changed, or everything, and write the difference. Raises Unavailable, RowsRefused."""
        began, due = time.monotonic(), self._full_due
        self._full_due = 0.0  # what was taken here is judged again, unless all of it succeeds
        is_new, names, facts = session.look(self._view.take)
        is_full = is_full or is_new or self._facts is None
        names |= self._take_facts(facts)
        if is_full:
            pods = {**self._known, **pods}
        known = {key: pod for key, pod in pods.items() if pod is not None}
        names |= self._ports.take_pods(known, pods, self._view.ports)
        judges_lacking = is_full or began >= self._lacking_due
        if is_full:
            names |= {*self._ports.names, *self._view.ports, *self._view.limits, *self._limited.names}
        elif judges_lacking:
            names |= self._lacking.reasons.keys() | self._held.keys()
        if self._may_be_free:
            self._may_be_free = False
            names |= self._held.keys()
        settled = self._ports.settle(names, self._view.ports, began)
        limits = self._limited.settle(names, self._ports, settled, self._view, certain=self._certain)
        if judges_lacking:
            self._lacking_due = time.monotonic() + pause_after(time.monotonic() - began)
        held = self._write(session, settled, limits)
        if names:
            self._note_held(names, held, settled, began)
            self._tell(names, settled)
        self._full_due = due
        if is_full:
            self._full_due = began + self._times.full_s
            self.full_s = time.monotonic() - began

    def _take_facts(self, found: NorthboundFacts) -> set[str]:
        """The ports that are to be judged anew because of what they depend on beside pods and rows."""
        nodes, networks = self._sources.nodes.objects() or _NONE, self._sources.networks.objects() or _NONE
        facts = LogicalFacts(nodes, networks, found.switches, found.routers, found.version, found.macs)
        if self._facts is not None and (facts.is_made_of(self._facts) or facts == self._facts):
            return set()
        is_first, self._facts = self._facts is None, facts
        names = self._ports.take_facts(facts)
        for ended, pod in self._ended if is_first else ():
            self._ports.hold(pod, ended)
        return names

    def _write(self, session: NorthboundSession, settled: Settled, limits: Sequence[LimitChange]) -> Mapping[str, str]:
        """Rows, then notes; a port's limits not after the port. Which ports wait, and why. Raises Unavailable, RowsRefused; a
        later round does the rest."""
        changes: list[PortChange | LimitChange] = [*limits]
        changes += (each for each in settled.changes if each.kind != "delete" or self._certain)
        held: dict[str, str] = {}
        for first in range(0, len(changes), BATCH):
            held |= self._commit(session, changes[first : first + BATCH])
        waiting = {f"{each.pod.namespace}/{each.pod.name}" for name in held for each in self._ports.claimants.of(name)}
        self._notes.put([each for each in settled.notes if f"{each.namespace}/{each.name}" not in waiting])
        return held

    def _note_held(self, names: Collection[str], held: Mapping[str, str], settled: Settled, now: float) -> None:
        """Keep which ports wait for their policies; of those that were judged, those that do for long are told as lacking."""
        others = {name: since for name, since in self._held.items() if name not in names}
        self._held = others | {name: self._held.get(name, now) for name in held}
        settled.lacking |= {
            name: f"logical port {name} is not made: {why}" for name, why in held.items() if now - self._held[name] >= _LACKING_S
        }

    def _tell(self, names: Collection[str], settled: Settled) -> None:
        """Keep why ports cannot be, of those that were judged; they are judged again in a while. And which ones are in doubt."""
        lacking = {name: why for name, why in self._lacking.reasons.items() if name not in names} | settled.lacking
        self._lacking.take(lacking, self._ports.list_recipients)
        self._doubtful.take(self._ports.doubtful, self._ports.list_recipients)
        self._unlimited.take(dict(self._limited.refused), self._ports.list_recipients)

    def _commit(self, session: NorthboundSession, changes: Sequence[PortChange | LimitChange]) -> Mapping[str, str]:
        made = [each for each in changes if isinstance(each, PortChange) and each.kind != "delete"]
        subjects = {each.name: self._list_subjects(each.name) for each in made}
        command = WritePorts(session, changes, lambda name: self.groups_of(subjects[name]))
        with self._hold.client.describe_attempt("writing logical ports"):
            session.transact([command], Deadline.after(self._times.write_s))
        for change in changes:
            if isinstance(change, PortChange) and change.name not in command.held:
                self.on_write(change.kind)
        self.beat = time.monotonic()
        return command.held

    def _list_subjects(self, name: str) -> Collection[PortSubject]:
        """What decides about a port's policies."""
        claimants = self._ports.claimants.of(name)
        return [PortSubject(each.pod.namespace, each.pod.labels, each.interface.definition) for each in claimants]

    # -- pods that have ended -------------------------------------------------------------------------------------------------

    def _note_ended(self, pods: Mapping[str, ClusterPod | None], now: float) -> None:
        """Keep what is known, and which pods have ended of late: the next one that acts holds their addresses, too."""
        for key, pod in pods.items():
            former = self._known.get(key)
            if (
                former is not None
                and former.is_connected
                and not (pod is not None and pod.is_connected and pod.uid == former.uid)
            ):
                self._ended.append((now, former))
                self._notes.forget(former)
            if pod is None:
                self._known.pop(key, None)
            else:
                self._known[key] = pod
        while self._ended and self._ended[0][0] + self._times.held_s < now:
            self._ended.popleft()

    def _tell_pod(self, recipient: Recipient, findings: Sequence[Finding]) -> None:
        self.on_news(recipient, findings)

    def _new_ports(self) -> PodPorts:
        return PodPorts(self._rules, AddressBook(self._times.held_s))


def pause_after(seconds: float) -> float:
    """Until ports that cannot be are judged again, which took so long just now."""
    return max(_LACKING_S, _LACKING_SHARE * seconds)


def count_lag(session: NorthboundSession) -> float:
    """How many changes that were asked for ovn-northd has not taken over yet."""
    from userspace_cni.ovsdb.column_values import value_of

    row: Any = session.root()
    return float(value_of(row, "nb_cfg") - value_of(row, "sb_cfg"))
