"""The leader's work, in rounds: look at what the watches know, and write the difference.

A round begins when something has changed, not more often than its times allow, so that many changes are one write; with nothing
changed there are no rounds but one when a node has been absent for long enough. Each write asks first whether this process still
leads, and carries the version that it follows from: what another writer changed meanwhile makes it fail, and the next round sees
that. A write that failed is done by a later round, after a pause that grows. A death between two writes leaves nothing to finish:
the next round, of this controller or another, writes what is still missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import Conflict, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.loops import Loop
from userspace_cni.controller.absence import Absence
from userspace_cni.controller.cluster import ClusterState
from userspace_cni.controller.writes import Garbage, Summary, Version, garbage, list_nodes, summaries, versions
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.resources import ApiResource

MANAGER: Final = "userspace-cni-controller"
"""Our name as the owner of fields."""
STOP_S: Final = 2.0


@dataclass(frozen=True)
class RoundTimes:
    """Seconds between two rounds, and between two writes.

    A status is left as it was written for `lag_s` for each node of the cluster, unless nodes wait for it: it has a part for each
    node, and each node's agent is told of each write.
    """

    rounds_s: float = 2.0
    writes_s: float = 0.05
    lag_s: float = 0.03
    back_off: BackOff = BackOff(2.0, 60.0)


@dataclass(frozen=True)
class WriteListener:
    """What is told of writes. `write`: each, by its resource and whether it was "written", "deleted", a "conflict" or "failed";
    `written`: each status that the server took. Neither may wait."""

    write: Callable[[str, str], None] = lambda *_: None
    written: Callable[[Summary], None] = lambda _: None


class Rounds(Loop):
    """The thread; `ask` it for a round. `cluster` gives what is known, None until all of it is.

    `leading`: whether this process may write now.
    """

    failing = "the nodes' reports cannot be summed up now; the controller tries again: "
    end_s = STOP_S

    def __init__(
        self,
        objects: Objects,
        cluster: Callable[[], ClusterState | None],
        leading: Callable[[], bool],
        absence: Absence | None = None,
        hearing: WriteListener | None = None,
        times: RoundTimes | None = None,
    ) -> None:
        super().__init__("rounds", "sums up what nodes report")
        self._objects = objects
        self._cluster = cluster
        self._leading = leading
        self._absence = absence or Absence()
        self._hearing = hearing or WriteListener()
        self._times = times or RoundTimes()
        self.apart_s, self.back_off = self._times.rounds_s, self._times.back_off
        # only the thread uses it
        self._unseen: frozenset[Version] = frozenset()
        self._written: dict[tuple[ApiResource, str], float] = {}
        self._due = float("inf")

    def _round(self) -> float:
        self.round()
        return self._due - time.monotonic()

    def round(self) -> int:
        """Write what is not as it should be; how many writes were tried. Only the thread may call it, or a caller without one.

        Raises the first error of a write, after all were tried.
        """
        cluster, self._due = self._cluster(), float("inf")
        if cluster is None or not self._leading():
            self._absence.forget()
            return 0
        known = versions(cluster)
        self._unseen &= known
        self._written = {each[:2]: self._written[each[:2]] for each in known if each[:2] in self._written}
        held = self._held(cluster)
        failed: list[UserspaceError] = []
        tried = 0
        writes: tuple[Summary | Garbage, ...] = (*summaries(cluster, held, _now()), *garbage(cluster, held))
        for write in writes:
            if isinstance(write, Summary) and not self._is_ripe(write, self._times.lag_s * len(cluster.nodes)):
                continue
            if not self._rest(self._times.writes_s if tried else 0.0) or not self._leading():
                break
            tried += 1
            try:
                self._write(write)
            except UserspaceError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        return tried

    def _held(self, cluster: ClusterState) -> frozenset[str]:
        """The nodes that are not gone: all, while nodes are not watched. Then a later round looks whether they are."""
        if not cluster.nodes_watched:
            self._absence.forget()
            self._due = time.monotonic() + self.back_off.most_s
            return frozenset((*cluster.nodes, *list_nodes(cluster)))
        held = self._absence.list_retained(cluster.nodes, list_nodes(cluster), time.monotonic())
        self._due = self._absence.next_due
        return held

    def _is_ripe(self, write: Summary, lag_s: float) -> bool:
        """Whether it is written in this round: not before the watch has told of our last write, and not too soon after it."""
        if write.follows in self._unseen:
            return False
        due = self._written.get((write.resource, write.name), 0.0) + lag_s
        if write.urgent or due <= time.monotonic():
            return True
        self._due = min(self._due, due)
        return False

    def _write(self, write: Summary | Garbage) -> None:
        """Do it. Raises UserspaceError."""
        outcome = "failed"
        try:
            if isinstance(write, Summary):
                self._sum_up(write)
                outcome = "written"
            else:
                self._objects.delete(write.resource, write.name, uid=write.uid)
                say("info", "collected what was left of a node that is gone", object=f"{write.resource.title} {write.name}")
                outcome = "deleted"
        except Conflict:
            outcome = "conflict"  # the watch tells of the other's change, and that asks for a round
        finally:
            self._hearing.write(write.resource.plural, outcome)

    def _sum_up(self, write: Summary) -> None:
        body = {"metadata": {"uid": write.uid, "resourceVersion": write.version}, "status": write.status}
        answer = self._objects.apply(write.resource, write.name, body, manager=MANAGER, subresource="status")
        self._written[write.resource, write.name] = time.monotonic()
        if _version(answer) != write.version:
            self._unseen |= {write.follows}
        self._hearing.written(write)


def _version(thing: Mapping[str, Any]) -> Any:
    metadata = thing.get("metadata")
    return metadata.get("resourceVersion") if isinstance(metadata, dict) else None


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
