"""The leader's work on policies: what NetworkPolicies, namespaces, pods and logical ports have become, as rows.

A change costs what it changes (`ovn.policy.policy_book`). Its rows are written as those of other objects are (`scope_rounds`):
sets of peers first, then the groups of policies, then the groups that isolate.

The thread that makes ports does not wait for this loop: it asks `list_groups`, and puts a new port into its groups in the same
transaction. A policy that cannot be read, or that asks for too much, isolates its pods; its author is told by an Event.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.findings import Finding
from userspace_cni.base.notices import POLICY_FRAGMENTS, POLICY_REFUSED, Recipient
from userspace_cni.controller.northbound_hold import NorthboundHold
from userspace_cni.controller.pod_changes import PodChanges
from userspace_cni.controller.port_news import PortNews, ToldPorts
from userspace_cni.controller.scope_rounds import ScopeRounds, ScopeTimes
from userspace_cni.kube.object_watch import ObjectWatch
from userspace_cni.kube.resources import MULTI_NETWORK_POLICIES, NETWORK_POLICIES
from userspace_cni.ovn.cluster_pods import ClusterPod
from userspace_cni.ovn.fragment_judging import JudgeFragments, judges_fragments, may_judge_fragments
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.northbound_tables import GLOBAL, PORT_GROUP, SWITCH_PORT
from userspace_cni.ovn.policy.pod_selections import PolicyPod
from userspace_cni.ovn.policy.policy_acls import ISOLATED
from userspace_cni.ovn.policy.policy_book import PolicyBook
from userspace_cni.ovn.policy.policy_members import PortSubject
from userspace_cni.ovn.policy.policy_objects import DEFAULT, MULTI_POLICY, POLICY
from userspace_cni.ovn.policy_ports import PolicyPortView
from userspace_cni.ovn.port_rows import NETWORK, PODS
from userspace_cni.ovn.row_view import scope_of
from userspace_cni.ovn.scope_writing import DesiredScope
from userspace_cni.ovsdb.column_values import read_references, value_of
from userspace_cni.ovsdb.database import ROW_UPDATE

PREFIX: Final = "policies "
"""Of the scopes: a row's name follows."""
_RESOURCES: Final = {POLICY: NETWORK_POLICIES, MULTI_POLICY: MULTI_NETWORK_POLICIES}


@dataclass(frozen=True)
class PolicySources:
    """What policies follow from, beside the database. `take_pods`: the pods that have changed, or all, None for one that is
    gone."""

    pods: PodChanges
    take_pods: Callable[[bool], Mapping[str, ClusterPod | None]]
    namespaces: ObjectWatch
    policies: ObjectWatch
    multi_policies: ObjectWatch

    @property
    def watches(self) -> tuple[ObjectWatch, ...]:
        """Those that are of policies alone."""
        return self.namespaces, self.policies, self.multi_policies

    @property
    def known(self) -> set[str]:
        """The kinds of policies of which there was a first list, or of which it is known that there is none to have."""
        found = ((POLICY, self.policies.synced), (MULTI_POLICY, self.multi_policies.synced or self._are_multi_absent))
        return {kind for kind, is_known in found if is_known} if self.namespaces.synced else set()

    @property
    def certain(self) -> frozenset[str]:
        """The kinds of policies of which what is not known is not there: two lists have said so, also of pods and namespaces."""
        found = ((POLICY, self.policies.confirmed), (MULTI_POLICY, self.multi_policies.confirmed or self._are_multi_absent))
        kinds = frozenset(kind for kind, is_certain in found if is_certain)
        return kinds if self.pods.confirmed and self.namespaces.confirmed else frozenset()

    @property
    def lacking(self) -> str:
        """What is not known of policies, "" for nothing."""
        return "" if POLICY in self.known else f"{NETWORK_POLICIES.title} are not known yet, and new pods wait for that"

    @property
    def problems(self) -> list[str]:
        """Why some of it is not watched now."""
        multi = self.multi_policies
        return [each for each in (self.namespaces.problem, self.policies.problem, multi.problem if multi.tried else "") if each]

    @property
    def _are_multi_absent(self) -> bool:
        """Whether the server has no such resource: one that does not answer for it has said nothing."""
        multi = self.multi_policies
        return multi.tried and not multi.synced and not multi.problem


@dataclass
class _Fed:
    """What the book was told last, by kind."""

    namespaces: Mapping[str, Any] = field(default_factory=dict)
    policies: dict[str, Mapping[str, Any]] = field(default_factory=dict)


class PolicyRounds(ScopeRounds):
    """The thread; `ask` it for a round."""

    failing = "policies cannot be kept now; the controller tries again: "

    def __init__(self, hold: NorthboundHold, sources: PolicySources, times: ScopeTimes | None = None) -> None:
        super().__init__(hold, PREFIX, "keeps the rows of policies", times)
        self._sources = sources
        self._ports = PolicyPortView(self.ask)
        hold.follow(self._follow, lambda: None)
        self.passes_fragments = False
        """Whether, where OVN does not know the ports of fragments, they pass to every port for those whom a rule lets through."""
        self.on_written: Callable[[], None] = lambda: None
        """Called when rows may be there for which new ports wait; it must not wait."""
        self.on_news: Callable[[Recipient, Sequence[Finding]], None] = lambda _recipient, _findings: None
        """Told what the authors of policies are to know; it must not wait."""
        self._lock = threading.Lock()
        self._book = PolicyBook()  # with the lock
        self._unwritable: Mapping[str, str] = {}
        """The rows that the database does not take, and why."""
        # only the thread uses these
        self._fed, self._has_pods = _Fed(), False
        self._sure: frozenset[str] = frozenset()
        """The kinds of policies of which the book has all, and none that is gone."""
        self._compared: frozenset[str] = frozenset()
        """Those by which groups were last compared."""
        self._recipients: dict[str, Recipient] = {}
        self._closed = ToldPorts(PortNews(POLICY_REFUSED, "policies let nothing through: ", self._tell_policy))
        self._fragmented = ToldPorts(PortNews(POLICY_FRAGMENTS, "policies do not cover fragments: ", self._tell_policy))
        self._judged = False
        """Whether OVN judges fragments by their ports."""
        self._others = False
        """Whether there may be others whose rules do not cover fragments than was told."""

    # -- for others ---------------------------------------------------------------------------------------------------------

    def list_groups(self, subjects: Collection[PortSubject]) -> Collection[str] | None:
        """The port groups that a port with these pods is to be in; None while that is not known."""
        with self._lock:
            found = self._book.list_groups(subjects)
        unwritable = self._unwritable  # of these, a port waits for a group that isolates it, and not for one that opens it
        return None if found is None else [each for each in found if each not in unwritable or each.startswith(ISOLATED)]

    @property
    def policies(self) -> int:
        """How many policies there are."""
        return self._book.policies

    @property
    def closed(self) -> int:
        """How many policies let less through than they say."""
        return len(self._closed.reasons)

    @property
    def without_fragments(self) -> int:
        """How many policies have rules with ports, which do not cover fragments."""
        return len(self._fragmented.reasons)

    # -- a round --------------------------------------------------------------------------------------------------------------

    def _round(self) -> float | None:
        self._feed()
        due_s = super()._round()
        self._tell_closed()
        self._tell_fragmented()
        return due_s if due_s is None else min(due_s, self._closed.write(), self._fragmented.write())

    def _feed(self) -> None:
        """Tell the book what has changed. Raises Unavailable."""
        deadline = Deadline.after(self._times.write_s)
        session = self._hold.open(deadline)
        if session is None:
            return
        if self._hold.may_write and session.look(may_judge_fragments):
            session.transact([JudgeFragments(session)], deadline)
        judged = session.look(judges_fragments)
        self._others |= judged is not self._judged
        self._judged = judged
        former = self._book.known
        try:
            self._tell_book(session)
        except Exception:
            self._forget()
            raise
        if self._book.known != former:
            self.on_written()

    def _tell_book(self, session: NorthboundSession) -> None:
        sources, fed = self._sources, self._fed
        self._sure = sources.certain  # before the objects are read: what is sure now is in the book then
        known = sources.known
        session.look(lambda _: self._take_pods(session, everything=not self._has_pods))
        namespaces = sources.namespaces.objects() or {}
        policies = {POLICY: sources.policies.objects() or {}, MULTI_POLICY: sources.multi_policies.objects() or {}}
        with self._lock:
            book = self._book
            for name in _find_others(fed.namespaces, namespaces):
                book.take_namespace(name, namespaces.get(name))
            for kind, now in policies.items():
                for name in _find_others(fed.policies.get(kind, {}), now):
                    book.take_policy(f"{kind}/{name}", now.get(name))
            book.take_fragments(passed=self.passes_fragments and not self._judged)
            book.known = known
        self._fed, self._has_pods = _Fed(namespaces, {**policies}), True

    def _take_pods(self, session: NorthboundSession, *, everything: bool) -> None:
        """Tell the book of pods and ports as they are now. Called with the session's lock."""
        ports, nodes = self._ports.take(session)
        pods = self._sources.take_pods(everything)
        with self._lock:
            for name, port in ports.items():
                self._book.take_port(name, port)
            for name, is_nodes in nodes.items():
                self._book.take_node_port(name, is_nodes=is_nodes)
            for key, pod in pods.items():
                self._book.take_pod(key, _read_pod(pod))

    def _forget(self) -> None:
        """Begin a new book with everything: what was taken of changes is in none now."""
        with self._lock:
            self._book = PolicyBook()
        self._fed, self._has_pods = _Fed(), False
        self._ports.forget()

    def _follow(self, table: str, event: str, row: Any, former: Any) -> None:
        self._ports.told(table, event, row, former)
        if table == GLOBAL and (event != ROW_UPDATE or "options" in former._data):  # noqa: SLF001 - ovs.db.idl has no other list
            self.ask()

    def _listed(self) -> bool:
        return self._sources.pods.synced and POLICY in self._sources.known

    def _are_certain(self) -> bool:
        return self._sure == _RESOURCES.keys()

    def _take(self, session: NorthboundSession, *, everything: bool) -> Collection[str]:
        self._session = session
        with self._lock:
            names = self._book.take_changed()
            if everything or self._sure != self._compared:
                names |= self._book.rows
        self._compared = self._sure
        self._others |= bool(names)
        return [f"{PREFIX}{name}" for name in names]

    def _desired(self, scope: str) -> DesiredScope:
        session = self._session
        try:  # else a port that has come into its groups since the round began would lose them for a moment
            self._take_pods(session, everything=False)
        except Exception:
            self._forget()
            raise

        def find_port(name: str) -> Any:
            row: Any = session.row(SWITCH_PORT, name)
            return None if row is None else row.uuid

        name = scope.removeprefix(PREFIX)
        with self._lock:
            return self._book.desired(name, find_port, self._list_staying(name))

    def _list_staying(self, name: str) -> frozenset[UUID]:
        """The ports that are in a group that isolates, and stay in it. A group has ports by policies of both kinds: before all
        of a kind are known, none of its networks leaves. Nor does a port that has lost its mark: whose it is, is not known."""
        group: Any = self._session.row(PORT_GROUP, name) if name.startswith(ISOLATED) else None
        if group is None:
            return frozenset()
        rows = self._session.replica.tables[SWITCH_PORT].rows
        there = ((each, rows[each]) for each in read_references(group, "ports") if each in rows)
        return frozenset(each for each, row in there if scope_of(row) != PODS or _kind(row) not in self._sure)

    def _told(self, refused: Mapping[str, str], settled: Collection[str]) -> None:
        former, self._unwritable = self._unwritable, {scope.removeprefix(PREFIX): why for scope, why in refused.items()}
        with self._lock:
            self._book.take_unwritable(frozenset(self._unwritable))
        if former.keys() != self._unwritable.keys():
            self.ask()
        if settled:
            self.on_written()

    def _tell_policy(self, recipient: Recipient, findings: Sequence[Finding]) -> None:
        self.on_news(recipient, findings)

    def _tell_closed(self) -> None:
        with self._lock:
            found = self._book.list_refused(self._unwritable)
        self._recipients = {key: _recipient(policy) for key, (policy, _) in found.items()}
        self._closed.take({key: f"{key}: {why}" for key, (_, why) in found.items()}, lambda key: [self._recipients[key]])

    def _tell_fragmented(self) -> None:
        if not (self._others and self._hold.may_write):
            return
        self._others = False
        with self._lock:
            found = {} if self._judged else self._book.list_with_ports()
        they = "pass to every port, for those whom such a rule lets through" if self.passes_fragments else "are dropped"
        why = f"OVN before 26.03 knows no ports of IP fragments: by rules with ports those of requests {they} (policy_fragments)"
        self._fragmented.take({key: f"{key}: {why}" for key in found}, lambda key: [_recipient(found[key])])


def _recipient(policy: Any) -> Recipient:
    resource = _RESOURCES[policy.kind]
    return Recipient(policy.namespace, policy.name, policy.uid, "", resource.kind, resource.api_version)


def _kind(port: Any) -> str:
    """Of which kind are the policies of a logical port."""
    return POLICY if value_of(port, "external_ids").get(NETWORK, DEFAULT) == DEFAULT else MULTI_POLICY


def _find_others(former: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is another object now, or is gone, or has come."""
    if former is now:
        return []
    return [*(name for name, each in now.items() if former.get(name) is not each), *(former.keys() - now.keys())]


def _read_pod(pod: ClusterPod | None) -> PolicyPod | None:
    if pod is None or not pod.is_connected:
        return None
    return PolicyPod(pod.namespace, pod.name, pod.owner, pod.labels, pod.ports)
