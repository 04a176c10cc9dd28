"""The leader's work, in rounds: look at what the watches know, and write the difference.

A round begins when something has changed, not more often than a Pace allows, so that many changes are one write; with nothing
changed there are no rounds but one when a node has been absent for long enough. Each write asks first whether this process still
leads, and carries the version that it follows from: what another writer changed meanwhile makes it fail, and the next round sees
that. A write that failed is done by a later round, after a pause that grows. A death between two writes leaves nothing to finish:
the next round, of this controller or another, writes what is still missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from userspace_cni.base.errors import Conflict, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.loops import Loop, longer
from userspace_cni.controller.absence import Absence
from userspace_cni.controller.cluster import Cluster
from userspace_cni.controller.writes import Garbage, Summary, Version, garbage, named, summaries, versions
from userspace_cni.kube.objects import Objects
from userspace_cni.kube.resources import Resource

MANAGER: Final = "userspace-cni-controller"
"""Our name as the owner of fields."""
STOP_S: Final = 2.0


@dataclass(frozen=True)
class Pace:
    """Seconds between two rounds, and between two writes.

    A status is left as it was written for `lag_s` for each node of the cluster, unless nodes wait for it: it has a part for each
    node, and each node's agent is told of each write. After a round in which a write failed the pause doubles from `pause_min_s`
    to `pause_max_s`.
    """

    rounds_s: float = 2.0
    writes_s: float = 0.05
    lag_s: float = 0.03
    pause_min_s: float = 2.0
    pause_max_s: float = 60.0


@dataclass(frozen=True)
class Hearing:
    """What is told of writes. `write`: each, by its resource and whether it was "written", "deleted", a "conflict" or "failed";
    `written`: each status that the server took. Neither may wait."""

    write: Callable[[str, str], None] = lambda *_: None
    written: Callable[[Summary], None] = lambda _: None


class Rounds(Loop):
    """The thread; `ask` it for a round. `cluster` gives what is known, None until all of it is.

    `leading`: whether this process may write now.
    """

    def __init__(
        self,
        objects: Objects,
        cluster: Callable[[], Cluster | None],
        leading: Callable[[], bool],
        absence: Absence | None = None,
        hearing: Hearing | None = None,
        pace: Pace | None = None,
    ) -> None:
        super().__init__("rounds", "summing up what nodes report", STOP_S)
        self._objects = objects
        self._cluster = cluster
        self._leading = leading
        self._absence = absence or Absence()
        self._hearing = hearing or Hearing()
        self._pace = pace or Pace()
        self._asked = True
        # only the thread uses it
        self._unseen: frozenset[Version] = frozenset()
        self._written: dict[tuple[Resource, str], float] = {}
        self._due = float("inf")

    def _run(self) -> None:
        pause_s = 0.0
        while self._await_round(pause_s):
            try:
                self.round()
            except Exception as error:  # noqa: BLE001 -- whatever it was, the next round may do better
                self._complain(f"a round failed: {type(error).__name__}: {error}")
            pause_s = longer(pause_s, self._pace.pause_min_s, self._pace.pause_max_s) if self.problem else 0.0

    def _await_round(self, pause_s: float) -> bool:
        """Wait until a round is due; False when the thread is to end. `pause_s`: after a round that failed."""
        self._rest(pause_s or self._pace.rounds_s)
        return self._await_asked(0.0 if pause_s else min(self._due - time.monotonic(), threading.TIMEOUT_MAX))

    def round(self) -> int:
        """Write what is not as it should be; how many writes were tried. Only the thread may call it, or a caller without one."""
        cluster, self._due = self._cluster(), float("inf")
        if cluster is None or not self._leading():
            self._absence.forget()
            self.problem = ""
            return 0
        known = versions(cluster)
        self._unseen &= known
        self._written = {each[:2]: self._written[each[:2]] for each in known if each[:2] in self._written}
        held = self._held(cluster)
        problems: list[str] = []
        tried = 0
        writes: tuple[Summary | Garbage, ...] = (*summaries(cluster, held, _now()), *garbage(cluster, held))
        for write in writes:
            if isinstance(write, Summary) and not self._is_ripe(write, self._pace.lag_s * len(cluster.nodes)):
                continue
            if not self._rest(self._pace.writes_s if tried else 0.0) or not self._leading():
                break
            tried += 1
            problem = self._write(write)
            problems += [problem] if problem else []
        self._complain(problems[0] if problems else "")
        return tried

    def _held(self, cluster: Cluster) -> frozenset[str]:
        """The nodes that are not gone: all, while nodes are not watched. Then a later round looks whether they are."""
        if not cluster.nodes_watched:
            self._absence.forget()
            self._due = time.monotonic() + self._pace.pause_max_s
            return frozenset((*cluster.nodes, *named(cluster)))
        held = self._absence.held(cluster.nodes, named(cluster), time.monotonic())
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

    def _write(self, write: Summary | Garbage) -> str:
        """Do it; the problem, "" for none."""
        outcome, problem = "failed", ""
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
        except UserspaceError as error:
            problem = str(error)
        self._hearing.write(write.resource.plural, outcome)
        return problem

    def _sum_up(self, write: Summary) -> None:
        body = {"metadata": {"uid": write.uid, "resourceVersion": write.version}, "status": write.status}
        answer = self._objects.apply(write.resource, write.name, body, manager=MANAGER, subresource="status")
        self._written[write.resource, write.name] = time.monotonic()
        if _version(answer) != write.version:
            self._unseen |= {write.follows}
        self._hearing.written(write)

    def _complain(self, problem: str) -> None:
        self._note(problem, "what nodes report cannot be summed up now; it is tried again: ")


def _version(thing: Mapping[str, Any]) -> Any:
    metadata = thing.get("metadata")
    return metadata.get("resourceVersion") if isinstance(metadata, dict) else None


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
