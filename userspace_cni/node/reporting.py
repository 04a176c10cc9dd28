"""What this node tells the API of itself: its NodeState, and labels and annotations of its own Node.

It is written when it differs from what the server has, and not otherwise: a thousand nodes at rest write nothing. It is never on
a verb's path: `note_specs` only notes, and one thread writes, a moment later, so that changes that come together are one write.
While the server is away the latest is kept and tried again. What others have changed in it, or deleted, a look
from time to time mends.

Of its Node it owns its labels and annotations alone, by server-side apply, and says the Node's UID with it: a Node is never made.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from userspace_cni.attachment.specs import SpecStatus
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import ObjectRefused, UserspaceError, combine
from userspace_cni.base.findings import Finding
from userspace_cni.base.loops import Loop, TryAgain
from userspace_cni.base.notices import Recipient
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.pod_requests import Clients
from userspace_cni.kube.resources import NODE_STATES, NODES
from userspace_cni.node.state import CHASSIS, KUBEOVN_CHASSIS, LABELS, RouteUse, SubnetUse, labels, news, notes, status

MANAGER: Final = "userspace-cni-agent"
"""Our name as the owner of fields."""
STOP_S: Final = 0.5


@dataclass(frozen=True)
class ReportTimes:
    """Seconds.

    Changes within `settle_s` are one write. The server's object is compared each `look_s`, up to half of that later to spread
    the nodes.
    """

    settle_s: float = 1.0
    look_s: float = 1200.0
    back_off: BackOff = BackOff()


@dataclass(frozen=True)
class ReportParts:
    """Parts of the report beside the labels and annotations of the Node.

    `state`: the NodeState. `kubeovn`: annotations for programs that know kube-ovn. `routes`: the node keeps Routes; the former
    agent's report about them stays until there is a new one.
    """

    state: bool = True
    kubeovn: bool = False
    routes: bool = False


class Report(Loop):
    """The report of node `node` (as the API calls it).

    `chassis` gives the switch's name, and may wait and raise UserspaceError. `tell` is called with what is news in a NodeState
    that was written, for Events about it; it must not wait.

    Nothing is written before `note_specs` was called: what the former agent has written stands.
    """

    failing = "this node cannot report its state now; it tries again: "
    end_s = STOP_S

    def __init__(
        self,
        objects: Objects,
        node: str,
        chassis: Callable[[], str],
        *,
        parts: ReportParts | None = None,
        tell: Callable[[Recipient, Sequence[Finding]], None] = lambda *_: None,
        times: ReportTimes | None = None,
    ) -> None:
        super().__init__("node-report", "reports what this node has")
        self._objects = objects
        self._node = node
        self._chassis = chassis
        self._parts = parts or ReportParts()
        self._tell = tell
        self._times = times or ReportTimes()
        self.settle_s, self.back_off = self._times.settle_s, self._times.back_off
        self._statuses: Sequence[SpecStatus] | None = None
        self._subnets: Sequence[SubnetUse] | None = None
        self._routes: Sequence[RouteUse] | None = None
        self.writes = 0
        """How many writes the server took."""
        self._applied: tuple[Mapping[str, str], Mapping[str, str]] | None = None
        """Labels and annotations of the last write to the Node: what is there beside them after it is another's."""

    def note_specs(self, statuses: Sequence[SpecStatus]) -> None:
        """Note what became of the specs. Never waits."""
        with self._wake:
            if statuses != self._statuses:
                self._statuses = tuple(statuses)
                self.ask()

    def note_subnets(self, subnets: Iterable[SubnetUse] | None) -> None:
        """Note what this node has of Subnets; None where that is not known. Never waits."""
        now = None if subnets is None else tuple(subnets)
        with self._wake:
            if now is not None and now != self._subnets:
                self._subnets = now
                self.ask()

    def note_routes(self, routes: Sequence[RouteUse]) -> None:
        """Note what this node has of Routes. Never waits."""
        with self._wake:
            if routes != self._routes:
                self._routes = routes
                self.ask()

    def _round(self) -> float:
        self.report()
        return random.SystemRandom().uniform(1.0, 1.5) * self._times.look_s  # spreads nodes

    def report(self) -> None:
        """Write what the server does not have. Raises UserspaceError when some of it cannot be written."""
        with self._wake:
            statuses, subnets, routes = self._statuses, self._subnets, self._routes
        if statuses is None:
            return
        node = self._objects.get(NODES, self._node)
        if node is None:
            raise UserspaceError(f"the API server knows no node {self._node}", "the setting node_name")
        state = (self._objects.get(NODE_STATES, self._node) or {}) if self._parts.state else {}
        known = state.get("status") or {}
        chassis = self._named(known, node)
        wanted = status(statuses, _with_ranges(subnets, known), _addresses(node), chassis, routes)
        if self._parts.routes and routes is None:
            wanted["routes"] = known.get("routes") or []
        errors: list[UserspaceError] = []
        writes: list[Callable[[], None]] = [lambda: self._write_state(node, state, wanted)] if self._parts.state else []
        writes.append(lambda: self._write_node(node, labels(statuses), notes(chassis, kubeovn=self._parts.kubeovn)))
        for write in writes:
            try:
                write()
            except UserspaceError as error:
                errors.append(error)
        if errors:
            raise combine("the state of this node is not in the API", errors)

    def _named(self, known: Mapping[str, Any], node: Mapping[str, Any]) -> str:
        """The switch's name; while the switch is away, the one that was reported, in the NodeState or at the Node."""
        try:
            return self._chassis()
        except UserspaceError:
            said = node["metadata"].get("annotations") or {}
            return str(known.get("chassis") or said.get(CHASSIS) or "")

    def _write_state(self, node: Mapping[str, Any], state: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        metadata = node["metadata"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": metadata["uid"]}
        owned = owner in (state.get("metadata") or {}).get("ownerReferences", ())
        if owned and state.get("status") == wanted:
            return
        body = {"metadata": {"ownerReferences": [owner]}, "status": wanted}
        written = self._objects.apply(NODE_STATES, self._node, body, manager=MANAGER)
        self.writes += 1
        uid = str((written.get("metadata") or {}).get("uid") or "")
        for each in news(state.get("status") or {}, wanted):
            self._tell(Recipient("", self._node, uid, each.subject, NODE_STATES.kind, NODE_STATES.api_version), [each])

    def _write_node(self, node: Mapping[str, Any], wanted: Mapping[str, str], noted: Mapping[str, str]) -> None:
        metadata = node["metadata"]
        marked, said = metadata.get("labels") or {}, metadata.get("annotations") or {}
        lacking = not wanted.items() <= marked.items() or not noted.items() <= said.items()
        beside = any(LABELS in key for key in marked.keys() - wanted) or {CHASSIS, KUBEOVN_CHASSIS} & (said.keys() - noted)
        if not lacking and (not beside or self._applied == (wanted, noted)):
            return
        body = {"metadata": {"uid": metadata["uid"], "labels": wanted, "annotations": noted}}
        self._objects.apply(NODES, self._node, body, manager=MANAGER)
        self._applied = (wanted, noted)
        self.writes += 1


class Withdrawal(Loop):
    """Takes the Routes out of the NodeState of node `node`, once, and ends: an agent that keeps none has no part in them.

    Without it the controller would await this node's word on each Route for ever.
    """

    def __init__(self, clients: Clients, node: str) -> None:
        super().__init__("node-withdrawal", "takes back what a former agent has reported")
        self._clients = clients
        self._node = node

    def _round(self) -> None:
        try:
            self.withdraw()
        except Exception as error:
            self.problem = repr(error)
            raise TryAgain from error
        self.stop()

    def withdraw(self) -> None:
        """Write the NodeState without Routes, where it has some and may be read. Raises UserspaceError."""
        objects = Objects(self._clients.of("").session)
        try:
            state = objects.get(NODE_STATES, self._node)
        except ObjectRefused:
            return  # most accounts may not: nothing is reported in their clusters
        said = (state or {}).get("status") or {}
        if state and "routes" in said:
            owners = {"ownerReferences": state["metadata"].get("ownerReferences") or []}
            rest = {key: value for key, value in said.items() if key != "routes"}
            objects.apply(NODE_STATES, self._node, {"metadata": owners, "status": rest}, manager=MANAGER)


def _with_ranges(subnets: Iterable[SubnetUse] | None, known: Mapping[str, Any]) -> list[SubnetUse]:
    """The Subnets with the ranges that the node has, or had when it last reported: from that a lost status is made again."""
    before = {each.get("name"): each.get("range") for each in known.get("subnets") or ()}
    if subnets is None:
        return [SubnetUse(str(name), str(given)) for name, given in before.items()]
    return [replace(each, range=each.range or before.get(each.name) or "") for each in subnets]


def _addresses(node: Mapping[str, Any]) -> list[str]:
    """The Node's InternalIPs."""
    found = (node.get("status") or {}).get("addresses") or ()
    return [str(each["address"]) for each in found if each.get("type") == "InternalIP"]
